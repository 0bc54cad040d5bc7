"""An option that takes one value is given once: a second one is refused, not taken in place of the first."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest
import typer

from conftest import Cli, Outcome
from fedrec.cli import UsageProblem, app
from fedrec.errors import FedrecError


def below(command: Any, words: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Every command and group, with the words that call it."""
    yield words, command
    for name, inner in getattr(command, "commands", {}).items():
        yield from below(inner, (*words, name))


COMMANDS = dict(below(typer.main.get_command(app)))
OPTIONS = [
    pytest.param(words, option, id=" ".join([*words, option.opts[0]]))
    for words, command in COMMANDS.items()
    for option in command.params
    if option.param_type_name == "option" and not hasattr(command, "commands")
]


def refuses(outcome: Outcome, says: str) -> None:
    assert (outcome.code, outcome.out) == (2, ""), outcome
    assert outcome.err.startswith("error: ")
    assert outcome.err.count("\n") == 1, outcome.err
    assert says in outcome.err, outcome.err


def test_groups_have_nothing_that_takes_one_value() -> None:
    groups = [command for command in COMMANDS.values() if hasattr(command, "commands")]
    assert len(groups) > 3
    assert {option.opts[0] for group in groups for option in group.params if not option.is_flag} == {"--use"}
    assert all(option.multiple for group in groups for option in group.params if not option.is_flag)


@pytest.mark.parametrize(("words", "option"), OPTIONS)
def test_every_option_of_every_command(words: tuple[str, ...], option: Any) -> None:
    """Read, never run: a command that took the option twice would begin to work."""
    command, names = COMMANDS[words], [*option.opts, *option.secondary_opts]
    for second in {names[0], names[-1]}:  # --quiet and -q are one, and so are --users and --no-users
        for value in ("1", "2"):
            pairs = [(names[0], "1"), (second, value)]
            line = [word for name, text in pairs for word in (name, *[text] * (0 if option.is_flag else option.nargs))]
            if option.multiple:
                with suppress(UsageProblem):  # arguments are missing
                    command.make_context(" ".join(words), line)
                continue
            with pytest.raises(FedrecError, match=rf"{names[0]}\S* is given more than once; .+"):
                command.make_context(" ".join(words), line)


@pytest.mark.parametrize(
    ("line", "says"),
    [
        (
            "audit uploads --data a.csv --data b.csv",
            "--data is given more than once; it takes one dataset or file: join",
        ),
        ("run fedmf --seed 1 --rounds 2 --seed 2", "--seed is given more than once; for several seeds use --seeds 1,2"),
        ("run fedmf --seed 1 --seed=1", "--seed is given more than once; for several seeds use --seeds 1,2"),
        ("run fedmf --seeds 1 --seeds 2", "--seeds is given more than once; separate them by commas: --seeds 1,2"),
        ("run fedmf --rounds 3 --rounds 3", "--rounds is given more than once; keep one"),
        ("run fedmf -q --quiet", "--quiet is given more than once; keep one"),
        ("tune fedmf --seed 1 --seed 2", "--seed is given more than once; keep one"),  # it has no --seeds
        ("sweep fedmf --set lr=0.1,1 --out a --out b", "--out is given more than once; keep one"),
        ("recommend run -k 1 -k2 --user 4", "-k is given more than once; keep one"),
        ("recommend run --user 4 --user 5", "--user is given more than once; for several users use --users FILE"),
        ("data import a.csv --name a --user 1 --user 2", "--user is given more than once; keep one"),  # a column
        ("compare r --references --no-references", "--references/--no-references is given more than once; keep one"),
        ("compare r --metrics ndcg@10 --metrics hr@10", "separate them by commas: --metrics recall@10,ndcg@10"),
        ("report r --no-users --no-users", "--users/--no-users is given more than once; keep one"),
        ("reproduce fedrap --rows a --rows b", "separate them by semicolons"),
        ("run fedmf --privacy clip=1 --privacy quantise=8", "join its stages by commas: --privacy clip=1,gaussian=0.1"),
    ],
)
def test_what_to_use_instead(cli: Cli, line: str, says: str) -> None:
    refuses(cli(*line.split()), says)


def test_help_is_help_whatever_stands_beside_it(cli: Cli) -> None:
    outcome = cli("run", "fedmf", "--seed", 1, "--seed", 2, "--help")
    assert (outcome.code, outcome.err) == (0, "")
    assert "Usage: fedrec run" in outcome.out
