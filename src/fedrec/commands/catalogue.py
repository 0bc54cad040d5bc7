"""`fedrec methods` and `fedrec protocols`: the list, or one of them in full."""

from __future__ import annotations

import dataclasses
import inspect
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from fedrec.federation.contract import Method
    from fedrec.methods.index import Listing


def methods_command(
    name: Annotated[str | None, typer.Argument(help="Show one method and its parameters.")] = None,
) -> None:
    """List the methods, or show one with its parameters."""
    from fedrec import console
    from fedrec.methods import listings, method_class

    if name is None:
        for title, central in (("federated", False), ("centralised baselines", True)):
            found = [method for method in listings() if method.centralised == central]
            if central:
                console.table(["method", title], [[method.name, _what(method)] for method in found])
            else:
                console.table(["method", title, "blind server"], [[m.name, _what(m), m.blind] for m in found])
            console.out.print()
        console.out.print(
            "blind server: yes: sums over clients are enough (--secure-sums); needed: it must not see more"
        )
        return
    _show(method_class(name)[0])


def _show(cls: type[Method]) -> None:
    from fedrec import console
    from fedrec.methods.kinds import kinds_of
    from fedrec.privacy.exposure import seen_by_server

    console.out.print(
        f"{cls.info.name}: {cls.info.summary}" + (f" ({cls.info.paper})" if cls.info.paper else ""), style="bold"
    )
    module = inspect.getmodule(cls)
    if module is not None and module.__doc__:
        console.out.print(module.__doc__.strip() + "\n")
    usual, *others = kinds_of(cls)
    _show_parameters(usual, "parameter (--set)")
    for kind in others:
        console.out.print()
        _show_parameters(kind, f"silos, --backbone {' | '.join(kind.info.backbones)}")
    if not cls.info.centralised:
        console.out.print(seen_by_server(cls()))


def _show_parameters(cls: type[Method], title: str) -> None:
    from fedrec import console
    from fedrec.experiment.params import describe, parameters, range_of

    defaults = {f.name: f.default for f in dataclasses.fields(cls)}
    hints = parameters(cls).items()
    rows = [[key, str(defaults[key]), describe(hint), range_of(cls, key, hint)] for key, hint in hints]
    console.table([title, "default", "type", "range"], rows)
    if cls.info.presets:
        console.out.print(f"presets: {', '.join(cls.info.presets)}")


def _what(method: Listing) -> str:
    """A method in a line or two: what it does, its backbones and other names, who sees the attributes of items."""
    parts = {
        "backbones": ", ".join(method.backbones),
        "also called": ", ".join(method.aliases),
        "attributes at": "" if method.attributes == "none" else method.attributes,
    }
    return "; ".join([method.summary, *(f"{name}: {text}" for name, text in parts.items() if text)])


def protocols_command(
    spec: Annotated[str | None, typer.Argument(help='Show one; overrides too: "honest,neg_pool=leaked".')] = None,
) -> None:
    """List the protocols, or show one with all its settings and leaks."""
    from fedrec import console, evaluation
    from fedrec.evaluation.describe import one_line, record

    if spec is None:
        rows = [[p.name, "yes" if p.leaks else "no", one_line(p)] for p in evaluation.PRESETS.values()]
        console.table(["protocol", "leaks", "what"], rows)
        console.out.print(
            "\nleaks: figures under such a protocol cannot be read as accuracy; `fedrec protocols NAME` explains why"
        )
        return
    chosen = evaluation.protocol(spec)
    console.out.print(chosen.label, style="bold")
    console.out.print(one_line(chosen) + "\n")
    console.table(["field", "value"], record(chosen))
    for leak in chosen.leaks or ("no known leak",):
        console.out.print(f"not honest: {leak}" if chosen.leaks else leak)
