"""Commands of other packages, by the entry point group `fedrec.commands`.

The name of an entry point is that of the command, `survey`, or of one within a group, `deploy.survey`. It leads to a
function annotated as Typer wants it, or to a `typer.Typer` with several. A package is imported when its command is
called, or when all commands are listed.
"""

from __future__ import annotations

from contextlib import suppress
from functools import cache
from typing import TYPE_CHECKING, Any, ClassVar

import typer
from typer.core import TyperGroup

from fedrec.commands.app import App
from fedrec.errors import FedrecError
from fedrec.plugins import in_words

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

GROUP = "fedrec.commands"
STUDIES = ("bench", "leaderboard", "reproduce", "deploy.faults", "deploy.load", "deploy.secrecy")
"""Commands of the package fedrec-studies: without it, the answer is how to install it."""


class PluggedGroup(TyperGroup):
    """A group of commands to which other packages may add theirs."""

    prefix: ClassVar[str] = ""

    def list_commands(self, ctx: Any) -> list[str]:
        own = super().list_commands(ctx)
        return [*own, *(name for name in sorted(self._find_own_added()) if name not in own and self._is_usable(name))]

    def _is_usable(self, name: str) -> bool:
        """Whether it can be listed; one that cannot says why when it is called."""
        with suppress(FedrecError):
            return load_command(self._find_own_added()[name], name) is not None
        return False

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        own = super().get_command(ctx, cmd_name)
        if own is not None:
            return own
        if (point := self._find_own_added().get(cmd_name)) is not None:
            return load_command(point, cmd_name)
        if self.prefix + cmd_name in STUDIES:
            words = (self.prefix + cmd_name).replace(".", " ")
            raise FedrecError(
                f"`fedrec {words}` belongs to the package fedrec-studies; install it: pip install 'fedrec[studies]'"
            )
        return None

    def _find_own_added(self) -> dict[str, EntryPoint]:
        """The commands of other packages within this group, under their last names."""
        found = {
            name.removeprefix(self.prefix): point
            for name, point in find_added_commands().items()
            if name.startswith(self.prefix)
        }
        return {name: point for name, point in found.items() if "." not in name}


class DeployGroup(PluggedGroup):
    """The commands of `fedrec deploy`."""

    prefix = "deploy."


@cache
def find_added_commands() -> dict[str, EntryPoint]:
    """All entry points of other packages, by name."""
    from importlib.metadata import entry_points

    return {point.name: point for point in entry_points(group=GROUP)}


def load_command(point: EntryPoint, name: str) -> Any:
    """Import the command; an error in one line where its package cannot be used."""
    package = f" of the package {point.dist.name}" if point.dist is not None else ""
    try:
        loaded = point.load()
        if not isinstance(loaded, typer.Typer):
            app = App(rich_markup_mode=None)
            app.command(name)(loaded)
            loaded = app
        command = typer.main.get_command(loaded)
    # Another package's module may do anything when it is imported, even exit.
    except (Exception, SystemExit) as error:
        raise FedrecError(f"the command '{point.name}'{package} cannot be used: {in_words(error)}") from error
    command.name = name
    return command
