"""`fedrec run` stopped and told to go on: what it advises works, for one seed and for several."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from conftest import Cli
from fedrec.commands import progress
from fedrec.experiment.driver import Listener
from waiting import GENEROUS

DATA = ("--data", "synthetic@users=40+items=80+interactions=700+seed=1")
RUN = ("run", "fedmf", *DATA, "--rounds", "4", "--set", "dim=4", "--quiet")
PATIENT = """
from fedrec.experiment import interrupt
interrupt.GRACE = 1e6  # a round that a busy machine is slow at is finished, too
"""
STOPPED_BY_SIGTERM = f"""
{PATIENT}
import os, signal
from fedrec.cli import main
from fedrec.experiment.driver import Listener

def stop(self, log, score, progress):
    if log.round == 1:
        os.kill(os.getpid(), signal.SIGTERM)

Listener.round = stop
main()
"""


def stop_after(monkeypatch: pytest.MonkeyPatch, label: str, round: int) -> None:
    """Ctrl-C at the end of a round of one of the runs."""

    class Stop(Listener):
        def round(self, log: Any, score: Any, progress: Any) -> None:
            if log.round == round:
                raise KeyboardInterrupt

    monkeypatch.setattr(progress, "listener", lambda name, *_: Stop() if name.endswith(label) else Listener())


def advised(text: str) -> list[str]:
    """The command that an interrupted run says continues it."""
    found = re.search(r"^interrupted; to continue: fedrec (run .+)$", text, re.MULTILINE)
    assert found, text
    return shlex.split(found[1])


def runs_below(folder: Path) -> list[str]:
    """Without the cache, where a report keeps what it compares with."""
    found = (path.parent.relative_to(folder) for path in folder.rglob("config.toml"))
    return sorted(str(path) for path in found if path.parts[:1] != ("cache",))


def figures(folder: Path) -> dict[str, float]:
    return dict(json.loads((folder / "summary.json").read_text())["test"])


@pytest.mark.parametrize("out", [(), ("--out", "my runs")])
def test_interrupted_seeds_go_on_as_advised(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, out: tuple[str, ...]
) -> None:
    words = (*RUN, "--seeds", "0,1,2")
    with monkeypatch.context() as patched:
        stop_after(patched, "seed 1", 1)
        stopped = cli(*words, *out)
    assert stopped.code == 130
    command = advised(stopped.err)
    place = tmp_path / command[command.index("--out") + 1]
    assert runs_below(place) == ["seed0", "seed1"]
    done, half = ((place / name / "metrics.jsonl").read_text() for name in ("seed0", "seed1"))
    assert len(half.splitlines()) == 2
    resumed = cli(*command)
    assert (resumed.code, resumed.err) == (0, "")
    assert "3 seeds, test" in resumed.out
    assert cli(*words, "--out", "straight").code == 0
    assert runs_below(place) == ["seed0", "seed1", "seed2"]
    assert len(runs_below(tmp_path)) == 6
    assert (place / "seed0" / "metrics.jsonl").read_text() == done, "a finished seed was trained again"
    assert (place / "seed1" / "metrics.jsonl").read_text().startswith(half), "the interrupted seed began anew"
    for name in ("seed0", "seed1", "seed2"):
        assert figures(place / name) == figures(tmp_path / "straight" / name)


def test_several_seeds_without_out_share_a_free_folder(cli: Cli, tmp_path: Path) -> None:
    for _ in range(2):
        assert cli("run", "popularity", *DATA, "--seeds", "0,1", "--quiet").code == 0
    first, second = sorted(path.name for path in (tmp_path / "runs").iterdir())
    assert first.startswith("popularity-synthetic")
    assert first.endswith("-honest")
    assert second == first + ".2"
    assert all(runs_below(tmp_path / "runs" / name) == ["seed0", "seed1"] for name in (first, second))
    assert cli("compare", f"runs/{first}", "--no-references").code == 0


def test_seeds_go_on_without_saying_again_what_they_are(cli: Cli, tmp_path: Path) -> None:
    assert cli(*RUN, "--seeds", "1,2", "--out", "many", "--keep-last").code == 0
    longer = cli("run", "--resume", "--out", "many", "--seeds", "0,1", "--rounds", 5, "--quiet")
    assert (longer.code, longer.err) == (0, "")
    rounds = [len((tmp_path / "many" / f"seed{s}" / "metrics.jsonl").read_text().splitlines()) for s in range(3)]
    assert rounds == [5, 5, 4]


def test_a_run_and_runs_of_seeds_do_not_share_a_folder(cli: Cli, tmp_path: Path) -> None:
    words = ("run", "popularity", *DATA, "--quiet")
    assert cli(*words, "--out", "one").code == 0
    assert cli(*words, "--seeds", "0", "--out", "many").code == 0
    before = runs_below(tmp_path)
    for more in ((), ("--resume",)):
        single = cli(*words, "--seeds", "0,1", "--out", "one", *more)
        assert single.code == 2
        assert single.err == (
            "error: one holds a single run; resume it without --seeds, or choose another --out for several seeds\n"
        )
        several = cli(*words, "--out", "many", *more)
        assert several.code == 2
        assert several.err.startswith("error: many holds runs of several seeds; add --seeds 0,1,... and --resume")
    assert runs_below(tmp_path) == before


@pytest.mark.parametrize("out", ["", ".", "./"])
def test_the_current_folder_is_no_run_folder(cli: Cli, tmp_path: Path, out: str) -> None:
    """As where a shell variable is not set."""
    for more in ((), ("--seeds", "0,1"), ("--resume",)):
        outcome = cli(*RUN, "--out", out, *more)
        assert outcome.code == 2
        assert outcome.err == (
            "error: --out is empty or the current folder; choose a folder for the run, e.g. --out runs/mine\n"
        )
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("seeds", [(), ("--seeds", "0,1")])
def test_a_run_may_be_resumed_from_within(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seeds: tuple[str, ...]
) -> None:
    assert cli(*RUN, *seeds, "--out", "run").code == 0
    before = runs_below(tmp_path)
    monkeypatch.chdir(tmp_path / "run")
    assert cli("run", "--resume", "--out", ".", "--quiet", *seeds).code == 0
    assert runs_below(tmp_path) == before


def test_resuming_nothing_is_noted(cli: Cli) -> None:
    note = "note: nothing to resume in typo; starting from the first round\n"
    words = ("run", "popularity", *DATA, "--quiet", "--resume", "--out", "typo")
    assert cli(*words, "--protocol", "honst").err.startswith("error: ")  # a mistake stays one line
    begun = cli(*words)
    assert (begun.code, begun.err) == (0, note)
    assert cli(*words).err == ""
    seeds = ("run", "popularity", *DATA, "--quiet", "--resume", "--out", "many", "--seeds")
    assert cli(*seeds, "0,1").err == note.replace("typo", "many")
    assert cli(*seeds, "0,1,2").err == ""


def test_the_rounds_of_a_budget_cannot_change(cli: Cli) -> None:
    budget = ("--privacy", "clip=1", "--epsilon", 4, "--delta", 1e-5)
    assert cli(*RUN, *budget, "--out", "run").code == 0
    outcome = cli("run", "--resume", "--rounds", 6, "--out", "run")
    assert outcome.code == 2
    assert outcome.err == (
        "error: the noise of run was chosen for 4 rounds (--epsilon), so their number cannot change; resume without "
        "--rounds, or use another --out\n"
    )


def test_sigterm_is_a_ctrl_c_with_another_exit_code(cli: Cli, tmp_path: Path) -> None:
    command = [sys.executable, "-c", STOPPED_BY_SIGTERM, *RUN, "--out", "run"]
    threads = {"OMP_NUM_THREADS": "1", "NUMBA_NUM_THREADS": "1"}
    stopped = subprocess.run(
        command, capture_output=True, text=True, cwd=tmp_path, timeout=GENEROUS, env=os.environ | threads
    )
    assert stopped.returncode == 128 + signal.SIGTERM == 143, stopped
    assert advised(stopped.stderr) == [*map(str, RUN), "--out", "run", "--resume"]
    assert "Traceback" not in stopped.stderr
    half = (tmp_path / "run" / "metrics.jsonl").read_text()
    assert len(half.splitlines()) == 2
    assert cli(*advised(stopped.stderr)).code == 0
    assert (tmp_path / "run" / "metrics.jsonl").read_text().startswith(half), "nothing was saved"
    assert cli(*RUN, "--out", "straight").code == 0
    assert figures(tmp_path / "run") == figures(tmp_path / "straight")


def test_the_former_answer_to_sigterm_comes_back(cli: Cli) -> None:
    before = signal.getsignal(signal.SIGTERM)
    assert cli("run", "popularity", *DATA, "--quiet", "--out", "run").code == 0
    assert signal.getsignal(signal.SIGTERM) is before
