"""Commands whose help is complete: what arguments mean and, of `run`, the parameters of the method that is named."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any, get_type_hints

import typer
from typer.core import TyperCommand

from fedrec.errors import FedrecError

if TYPE_CHECKING:
    from fedrec.methods.index import Listing

WORDS = "fedrec.words"  # where a context keeps what was typed


class Command(TyperCommand):
    """Some versions of typer, with some of click, lose the help of arguments and print [ as \\[."""

    def get_help(self, ctx: Any) -> str:
        told = _arguments(self.callback)
        for param in self.params:
            if param.param_type_name == "argument" and not getattr(param, "help", None):
                param.help = told.get(param.name or "")
        return super().get_help(ctx).replace(r"\[", "[")

    def format_arguments(self, ctx: Any, formatter: Any) -> None:
        """Typer lists them before the options."""


class MethodCommand(Command):
    """One that takes the name of a method: with it, `--help` also shows the method's parameters and their defaults."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        ctx.meta[WORDS] = list(args)
        return super().parse_args(ctx, args)

    def format_epilog(self, ctx: Any, formatter: Any) -> None:
        super().format_epilog(ctx, formatter)
        method = next(filter(None, map(_method, ctx.meta.get(WORDS, ()))), None)
        if method is None:
            formatter.write_paragraph()
            formatter.write_text("fedrec run METHOD --help shows the parameters of a method.")
            return
        for kind in method.kinds:
            with formatter.section(f"Parameters of {method.name} (--set NAME=VALUE)"):
                formatter.write_dl([(f"{one.name}={one.default}", one.meaning or one.takes) for one in kind.parameters])
            if kind.presets:
                with formatter.section("Presets (--preset NAME)"):
                    formatter.write_dl([(one.name, one.meaning or str(dict(one.settings))) for one in kind.presets])


class App(typer.Typer):
    """A group of such commands."""

    def command(self, name: str | None = None, *, cls: type[TyperCommand] | None = Command,
                **how: Any) -> Callable[[Any], Any]:  # fmt: skip
        return super().command(name, cls=cls, **how)


def _method(word: str) -> Listing | None:
    from fedrec.methods import listing

    with suppress(FedrecError):
        return listing(word)
    return None


def _arguments(callback: Any) -> dict[str, str | None]:
    """What the function of a command says of its arguments."""
    hints = get_type_hints(inspect.unwrap(callback), include_extras=True)
    return {name: mark.help for name, hint in hints.items()
            for mark in getattr(hint, "__metadata__", ()) if isinstance(mark, typer.models.ArgumentInfo)}  # fmt: skip
