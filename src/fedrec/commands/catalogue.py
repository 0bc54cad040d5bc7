"""`fedrec methods`, `fedrec protocols` and `fedrec metrics`: the list, or one of them in full."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

import typer

from fedrec.commands import completion

if TYPE_CHECKING:
    from fedrec.methods.index import Kind, Listing, NamedSettings


def methods_command(
    name: Annotated[
        str | None, typer.Argument(help="Show one method and its parameters.", autocompletion=completion.methods)
    ] = None,
) -> None:
    """List the methods, or show one with its parameters."""
    from fedrec.commands import console
    from fedrec.methods import listing, listings

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
    show_method(listing(name))


def show_method(method: Listing) -> None:
    """One method in full: what it is, every parameter and preset, what its server sees."""
    from fedrec.commands import console

    paper = f" ({method.paper})" if method.paper else ""
    console.out.print(f"{method.name}: {method.summary}{paper}", style="bold")
    if method.about:
        console.out.print(method.about + "\n")
    usual, *others = method.kinds
    _show_kind(usual, "parameter (--set)")
    for kind in others:
        console.out.print()
        _show_kind(kind, f"silos, --backbone {' | '.join(kind.backbones)}")
    for kind in _describe_variants(method, {one.name for one in usual.parameters}):
        console.out.print()
        _show_kind(kind, "variants (--set)")
    if method.server:
        console.out.print("\n" + method.server)


def _describe_variants(method: Listing, known: Collection[str]) -> Iterator[Kind]:
    """Yield what variants of other packages add to the known parameters and to the presets."""
    from importlib.metadata import entry_points

    # only where there are some: they are imported, and torch with them
    if not any(point.name.split(".")[0] == method.name for point in entry_points(group="fedrec.variants")):
        return
    from fedrec.methods import method_class
    from fedrec.methods.index import describe_kind
    from fedrec.methods.kinds import variants_of

    own = {preset.name for kind in method.kinds for preset in kind.presets}
    for kind in map(describe_kind, variants_of(method_class(method.name)[0])):
        parameters = [one for one in kind.parameters if one.name not in known]
        yield replace(kind, parameters=parameters, presets=[one for one in kind.presets if one.name not in own])


def _show_kind(kind: Kind, title: str) -> None:
    from fedrec.commands import console

    rows = [[one.name, one.default, one.takes, one.meaning] for one in kind.parameters]
    console.table([title, "default", "takes", "meaning"], rows)
    if kind.presets:
        console.out.print()
        presets = [[one.name, _settings(one), one.meaning] for one in kind.presets]
        console.table(["preset (--preset)", "settings", "meaning"], presets)


def _settings(preset: NamedSettings) -> str:
    return " ".join(f"{name}={value}" for name, value in preset.settings.items()) or "the defaults"


def _what(method: Listing) -> str:
    """A method in a line or two: what it does, its backbones and other names, who sees the attributes of items."""
    parts = {
        "backbones": ", ".join(method.backbones),
        "also called": ", ".join(method.aliases),
        "attributes at": "" if method.attributes == "none" else method.attributes,
    }
    return "; ".join([method.summary, *(f"{name}: {text}" for name, text in parts.items() if text)])


def protocols_command(
    spec: Annotated[
        str | None,
        typer.Argument(help='Show one; overrides too: "honest,neg_pool=leaked".', autocompletion=completion.protocols),
    ] = None,
) -> None:
    """List the protocols, or show one with all its settings and leaks."""
    from fedrec import evaluation
    from fedrec.commands import console
    from fedrec.evaluation.describe import describe_briefly, record

    if spec is None:
        rows = [[p.name, "yes" if p.leaks else "no", describe_briefly(p)] for p in evaluation.PRESETS.values()]
        console.table(["protocol", "leaks", "what"], rows)
        console.out.print(
            "\nleaks: figures under such a protocol cannot be read as accuracy; `fedrec protocols NAME` explains why"
        )
        return
    chosen = evaluation.protocol(spec)
    console.out.print(chosen.label, style="bold")
    console.out.print(describe_briefly(chosen) + "\n")
    console.table(["field", "value"], record(chosen))
    for leak in chosen.leaks or ("no known leak",):
        console.out.print(f"not honest: {leak}" if chosen.leaks else leak)


def metrics_command() -> None:
    """List the metrics, your own among them."""
    from fedrec.commands import console
    from fedrec.evaluation.metrics import SUMMARIES
    from fedrec.evaluation.own_metrics import own_metrics

    rows = [[name, summary, "fedrec"] for name, summary in SUMMARIES.items()]
    rows += [[own.name, own.summary, f"your own, 0 to {own.most:g}"] for own in own_metrics().values()]
    console.table(["metric", "what", "from"], rows)
    console.out.print("\nask for them by --protocol honest,metrics=recall+ndcg+NAME; they are printed as NAME@k")
