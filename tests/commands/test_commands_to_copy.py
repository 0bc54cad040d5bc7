"""Every command that is printed for people to copy works as it stands: with --use where it was given, names quoted."""

from __future__ import annotations

import html
import json
import re
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from conftest import Cli, Outcome
from fedrec import methods
from fedrec.commands import summary
from fedrec.federation.simulator import Simulator

SOURCE = """
from dataclasses import dataclass
from typing import ClassVar

from fedrec.federation.contract import MethodInfo
from fedrec.methods import FedMF


@dataclass(frozen=True)
class Mine(FedMF):
    info: ClassVar[MethodInfo] = MethodInfo("mine", summary="a file of my own", backbones={"mf": {}})
"""
DATA = ("--data", "synthetic@users=40+items=90+interactions=600", "--protocol", "honest,ks=10")
SHORT = ("--rounds", 2, "--set", "dim=4", "-q")


@pytest.fixture
def own(cli: Cli, tmp_path: Path) -> tuple[str, str]:
    """`--use` and a file whose name a shell would take apart."""
    (tmp_path / "my file.py").write_text(SOURCE)
    return ("--use", "my file.py")


def copied(text: str, before: str) -> list[str]:
    """The words after `fedrec` of the command that follows `before`, to the end of the line."""
    found = re.search(rf"{re.escape(before)}(fedrec .+?)(?:</pre>)?$", text, re.MULTILINE)
    assert found, text
    return shlex.split(found[1])[1:]


def works(outcome: Outcome) -> Outcome:
    assert outcome.code == 0, outcome.err
    return outcome


def as_a_new_process(cli: Cli, *words: str) -> Outcome:
    """What an earlier command was given with --use is forgotten."""
    methods._REGISTERED_HERE.clear()
    return works(cli(*words))


def rounds(folder: Path) -> int:
    return int(json.loads((folder / "summary.json").read_text())["rounds_run"])


def stopped_at(number: int) -> Callable[..., Any]:
    """Ctrl-C at the beginning of this round."""
    begin = Simulator.begin

    def stop(self: Simulator, round: int, *rest: Any) -> Any:
        if round == number:
            raise KeyboardInterrupt
        return begin(self, round, *rest)

    return stop


def test_tune_and_sweep(cli: Cli, own: tuple[str, str], tmp_path: Path) -> None:
    tuned = works(cli(*own, "tune", "mine", *DATA, *SHORT, "--space", "lr=0.1,0.5", "--trials", 1, "--out", "a study"))
    as_a_new_process(cli, *copied(tuned.out, "run it with: "), "--quiet", "--out", "tuned")
    assert rounds(tmp_path / "tuned") == 2
    swept = works(cli(*own, "sweep", "mine", *DATA, *SHORT, "--set", "lr=0.1,0.5", "--out", "a sweep"))
    as_a_new_process(cli, *copied(swept.out, "run the best with: "), "--quiet", "--out", "swept")


@pytest.mark.parametrize("folder", [("--out", "my run"), ()])
def test_more_rounds(
    cli: Cli, own: tuple[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, folder: tuple[str, ...]
) -> None:
    monkeypatch.setattr(summary, "last_chosen", lambda told: True)
    done = works(cli(*own, "run", "mine", *DATA, *SHORT, "--keep-last", *folder))
    place = tmp_path / done.out.splitlines()[-1].removeprefix("run folder: ")
    assert rounds(place) == 2
    longer = as_a_new_process(cli, *copied(done.out, "more rounds may help: "), "--quiet")
    assert longer.err == "", "it was not trained again"
    assert rounds(place) == 4


@pytest.mark.parametrize("more", [(), ("--out", "my run"), ("--resume", "--out=my run"), ("--seeds", "0,1")])
def test_an_interrupted_run(
    cli: Cli, own: tuple[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, more: tuple[str, ...]
) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(Simulator, "begin", stopped_at(1))
        ended = cli(*own, "run", "mine", *DATA, *SHORT, *more)
    assert ended.code == 130
    finished = as_a_new_process(cli, *copied(ended.err, "interrupted; to continue: "))
    place = tmp_path / finished.out.rstrip().rpartition("run folder: ")[2].splitlines()[0]
    assert rounds(place) == 2
    ended_here = [path for path in tmp_path.rglob("summary.json") if "cache" not in path.parts]
    assert len(ended_here) == (2 if "--seeds" in more else 1)


def test_an_unfinished_run_and_what_was_not_kept(
    cli: Cli, own: tuple[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(Simulator, "begin", stopped_at(1))
        cli(*own, "run", "mine", *DATA, *SHORT, "--out", "half a run")
    refused = cli(*own, "recommend", "half a run", "--user", "u1")
    assert refused.code == 2
    as_a_new_process(cli, *copied(refused.err, "continue it with "), "--quiet")
    assert rounds(tmp_path / "half a run") == 2
    works(cli(*own, "run", "mine", *DATA, *SHORT, "--out", "results alone", "--no-model"))
    refused = cli(*own, "recommend", "results alone", "--user", "u1")
    as_a_new_process(cli, *copied(refused.err, "train it again with "), "--quiet")
    assert rounds(tmp_path / "FOLDER") == 2


def test_a_fit(cli: Cli, own: tuple[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    works(cli(*own, "run", "mine", *DATA, *SHORT, "--out", "my run"))
    user = (tmp_path / "my run" / "users.csv").read_text().splitlines()[1].split(",")[0]
    told = works(cli(*own, "recommend", "my run", "--user", user))
    fit = copied(told.err, "on all interactions, use ")
    assert copied(works(cli(*own, "export", "my run", "--to", "npz")).err, "train on everything, use ") == fit
    with monkeypatch.context() as patched:
        patched.setattr(Simulator, "begin", stopped_at(1))
        ended = cli(*fit, "--rounds", 3)
    assert ended.code == 130
    refused = cli(*own, "recommend", "my run-fit", "--user", user)
    missing = copied(refused.err, "continue it with ")
    assert missing == [*own, "fit", "RUN", "--resume", "--out", "my run-fit"]
    as_a_new_process(cli, *copied(ended.err, "interrupted; to continue: "))
    assert (tmp_path / "my run-fit" / "fit.json").is_file()


def test_the_pages(cli: Cli, own: tuple[str, str], tmp_path: Path) -> None:
    """Of a run of one's own method, with a flag that takes no value, on a split of one's own."""
    works(cli("data", "split", DATA[1], "--out", "my parts"))
    parts = [word for name in ("train", "valid", "test") for word in (f"--{name}", f"my parts/{name}.csv")]
    works(cli(*own, "run", "mine", *parts, *DATA[2:], *SHORT, "--secure-sums", "--seed", 3, "--out", "my run"))
    page = html.unescape((tmp_path / "my run" / "report.html").read_text())
    as_a_new_process(cli, *copied(page, "<pre>"), "--out", "again", "--quiet")
    here, there = (json.loads((tmp_path / name / "summary.json").read_text()) for name in ("my run", "again"))
    assert (here["test"], here["seed"]) == (there["test"], 3)
    works(cli(*own, "report", "my run", "--figure", "activity", "--out", "figure.html"))
    page = html.unescape((tmp_path / "figure.html").read_text())
    assert f"fedrec {shlex.join(own)} report 'my run' --figure activity" in page


def test_the_page_of_a_method_that_is_not_known_here(cli: Cli, own: tuple[str, str], tmp_path: Path) -> None:
    works(cli(*own, "run", "mine", *DATA, *SHORT, "--out", "run"))
    as_a_new_process(cli, "report", "run", "--out", "page.html")
    assert "fedrec --use FILE.py run mine " in html.unescape((tmp_path / "page.html").read_text())


def test_a_file_that_is_not_understood(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "my log.csv").write_text("who,what\n" + "".join(f"{n},{n}\n" for n in range(5)))
    refused = cli("run", "popularity", "--data", "my log.csv")
    flags = re.search(r"choose with: (.+?) \(perhaps who, what\)$", refused.err, re.MULTILINE)
    assert flags, refused.err
    chosen = flags[1].replace("--user COLUMN", "--user who").replace("--item COLUMN", "--item what")
    outcome = cli("run", "popularity", "--data", "my log.csv", *shlex.split(chosen), "--out", "run", "-q")
    assert "no column" not in outcome.err


def test_files_of_one_command_are_not_those_of_the_next(cli: Cli, own: tuple[str, str]) -> None:
    from fedrec.experiment.command_line import command_line

    for words, shown in ((own, "fedrec --use 'my file.py' run 'a b'"), ((), "fedrec run 'a b'")):
        works(cli(*words, "metrics"))
        assert command_line("run", "a b") == shown
