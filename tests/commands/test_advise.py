"""`fedrec advise` on the command line."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

from conftest import Cli

WORLD = ("--data", "synthetic@users=40+items=90+interactions=600", "--protocol", "honest,ks=10")
SHORT = ("--minutes", "0.02")  # every candidate once, whatever the machine


def test_a_table_two_sentences_and_a_command_that_works(cli: Cli, tmp_path: Path) -> None:
    outcome = cli("advise", *WORLD, *SHORT, "--out", "advice")
    assert outcome.code == 0, outcome.err
    assert "Take " in outcome.out
    command = next(line for line in outcome.out.splitlines() if line.startswith("next: fedrec "))
    done = cli(*shlex.split(command)[2:], "--rounds", 1, "--out", "run", "-q")
    assert done.code == 0, done.err
    page = (tmp_path / "advice" / "advice.html").read_text()
    assert "What was tried" in page
    assert "fedgram, no order" in page


def test_progress_is_shown_and_can_be_left_out(cli: Cli) -> None:
    assert "popularity: 0." in cli("advise", *WORLD, *SHORT, "--out", "a").err
    quiet = cli("advise", *WORLD, *SHORT, "--out", "b", "-q", "--json")
    assert quiet.err == ""
    answer = json.loads(quiet.out)
    assert answer["method"] == answer["config"]["method"]
    assert {"server_sees", "sum_tells", "value", "upload", "seconds"} <= answer["attempts"][0].keys()


def test_bad_wishes_are_refused_before_any_work(cli: Cli) -> None:
    for words, why in (
        ((), "say for which data"),
        ((*WORLD, "--max-upload", "much"), "write a size such as 5MB"),
        ((*WORLD, "--delta", "1e-5"), "--delta goes with --epsilon"),
        ((*WORLD, "--minutes", "0"), "must be above 0"),
    ):
        outcome = cli("advise", *words)
        assert (outcome.code, why in outcome.err) == (2, True), outcome.err
