"""Commands whose help is complete (what arguments mean and, of `run`, the parameters of the method that is named), and
which take no option twice."""

from __future__ import annotations

import inspect
import re
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import TYPE_CHECKING, Any, get_type_hints

import typer
from typer.core import TyperCommand

from fedrec.errors import FedrecError

if TYPE_CHECKING:
    from fedrec.methods.index import Listing

WORDS = "fedrec.words"  # where a context keeps what was typed
ONE_FILE = "join files into one first"
BY_COMMAS, BY_SEMICOLONS = "separate them by commas", "separate them by semicolons"
SEVERAL = {
    "--config": "one file can hold all keys",
    "--data": f"it takes one dataset or file: {ONE_FILE}",
    "--datasets": f"{BY_COMMAS}: --datasets ml-100k,filmtrust",
    "--history": "one file can hold several users: columns user,item",
    "--methods": f"{BY_COMMAS}: --methods fedmf,fedavg",
    "--metrics": f"{BY_COMMAS}: --metrics recall@10,ndcg@10",
    "--negatives": ONE_FILE,
    "--privacy": "join its stages by commas: --privacy clip=1,gaussian=0.1",
    "--protocol": "set its fields behind commas: --protocol honest,ks=10",
    "--protocols": BY_SEMICOLONS,
    "--rows": BY_SEMICOLONS,
    "--scores": ONE_FILE,
    "--seed": "for several seeds use --seeds 1,2",
    "--seeds": f"{BY_COMMAS}: --seeds 1,2",
    "--test": ONE_FILE,
    "--train": ONE_FILE,
    "--train-negatives": ONE_FILE,
    "--user": "for several users use --users FILE",
    "--users": "one file can hold all ids",
    "--valid": ONE_FILE,
}
"""By option, how to say several things with one of it. No advice where it names an option that a command lacks."""


class Command(TyperCommand):
    """Some versions of typer, with some of click, lose the help of arguments and print [ as \\[."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """An option that takes one value is refused twice: the last would silently take the place of the others."""
        _, _, given = self.make_parser(ctx).parse_args(list(args))
        # Completion and --help must work on a line that is unfinished or wrong.
        if not ctx.resilient_parsing and not any(param.is_eager for param in given):
            self._require_once(given)
        return super().parse_args(ctx, args)

    def _require_once(self, given: Iterable[Any]) -> None:
        options = Counter(param for param in given if param.param_type_name == "option" and not param.multiple)
        for option, times in options.items():
            if times > 1:
                names = "/".join([*option.opts[:1], *option.secondary_opts[:1]])
                raise FedrecError(f"{names} is given more than once; {self._instead(option) or 'keep one'}")

    def _instead(self, option: Any) -> str:
        advice = "" if option.is_flag else SEVERAL.get(option.opts[0], "")
        known = {name for param in self.params for name in param.opts}
        # Advice that names an option which this command lacks would lead into the next error.
        return advice if known.issuperset(re.findall("--[a-z-]+", advice)) else ""

    def get_help(self, ctx: Any) -> str:
        told = _arguments(self.callback)
        for param in self.params:
            if param.param_type_name == "argument" and not getattr(param, "help", None):
                param.help = told.get(param.name or "")
        # Some versions print the backslash that hides a bracket from their own markup.
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

    def command(
        self, name: str | None = None, *, cls: type[TyperCommand] | None = Command, **how: Any
    ) -> Callable[[Any], Any]:
        return super().command(name, cls=cls, **how)


def _method(word: str) -> Listing | None:
    from fedrec.methods import listing

    with suppress(FedrecError):
        return listing(word)
    return None


def _arguments(callback: Any) -> dict[str, str | None]:
    """What the function of a command says of its arguments."""
    hints = get_type_hints(inspect.unwrap(callback), include_extras=True)
    return {
        name: mark.help
        for name, hint in hints.items()
        for mark in getattr(hint, "__metadata__", ())
        if isinstance(mark, typer.models.ArgumentInfo)
    }
