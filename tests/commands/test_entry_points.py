"""Commands of other packages: found by entry points, loaded when called, explained when they are missing or broken."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from importlib.metadata import EntryPoint

import pytest

from conftest import Cli
from fedrec.commands import entry_points
from fedrec.commands.entry_points import GROUP, STUDIES

Install = Callable[..., None]


def greet_command(name: str = "you") -> None:
    """Say hello."""
    print(f"hello {name}")


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> Iterator[Install]:
    """Replace the installed commands by these, each NAME=TARGET."""

    def install(**targets: str) -> None:
        points = {name: EntryPoint(name, target, GROUP) for name, target in targets.items()}
        monkeypatch.setattr(entry_points, "find_added_commands", lambda: points)

    return install


HERE = "commands.test_entry_points:greet_command"


def test_a_command_of_another_package_is_listed_and_called(cli: Cli, installed: Install) -> None:
    installed(greet=HERE)
    assert "Say hello." in cli("--help").out
    assert cli("greet", "--name", "Ada").out == "hello Ada\n"


def test_a_dot_leads_into_a_group(cli: Cli, installed: Install) -> None:
    installed(**{"deploy.greet": HERE})
    assert cli("deploy", "greet").out == "hello you\n"
    assert cli("greet").code == 2


def test_a_command_of_our_own_cannot_be_replaced(cli: Cli, installed: Install) -> None:
    installed(methods=HERE)
    assert "fedmf" in cli("methods").out


def test_a_broken_package_is_one_line(cli: Cli, installed: Install) -> None:
    installed(greet="commands.no_such_module:greet_command")
    done = cli("greet")
    assert done.code == 2
    assert done.err.startswith("error: the command 'greet' cannot be used: ModuleNotFoundError")
    assert cli("methods").code == 0
    assert cli("--help").code == 0


@pytest.mark.parametrize("name", STUDIES)
def test_without_the_studies_their_commands_say_what_to_install(cli: Cli, installed: Install, name: str) -> None:
    installed()
    done = cli(*name.split("."))
    assert done.code == 2
    assert "pip install 'fedrec[studies]'" in done.err
    assert len(done.err.splitlines()) == 1
