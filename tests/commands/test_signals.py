"""Ctrl-C and SIGTERM sent to real processes: what was trained is saved, and the run goes on from there."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path

import pytest

from commands.test_run_resume import DATA, PATIENT, figures
from conftest import Cli
from fedrec.experiment import checkpoint
from fedrec.experiment.config import RunConfig
from fedrec.experiment.driver import execute
from waiting import wait_for_end, wait_until

pytestmark = pytest.mark.skipif(os.name == "nt", reason="Windows sends no such signals")
ENDLESS = ("run", "fedmf", *DATA, "--set", "dim=4", "--quiet", "--out", "run", "--rounds")
CLI = """
import signal
from fedrec.cli import main

signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore it
main()
"""
SLOW_FROM = 3
SLOW = f"""
import os, time
from fedrec.experiment import driver, interrupt
from fedrec.federation.client_side import ClientSide

interrupt.GRACE, driver.FIRST_CHECKPOINT, driver.CHECKPOINT_SECONDS = {{grace}}, {{every}}, {{every}}
driver.CHECKPOINT_SHARE = float("inf")
train, hear = ClientSide._train, interrupt.Interrupt.hear

def slow(self, members, chunk, where, number, down):
    payload = train(self, members, chunk, where, number, down)  # some clients have moved on
    if number == {SLOW_FROM}:
        open("slow", "w").close()
        while not os.path.exists("go on"):
            time.sleep(0.01)
    return payload

def noted(self, number, frame):
    hear(self, number, frame)
    with open("heard", "a") as file:
        print(number, file=file)

ClientSide._train, interrupt.Interrupt.hear = slow, noted
"""
LIBRARY = f"""
{PATIENT}
import fedrec
fedrec.run("fedmf", {DATA[1]!r}, rounds=100_000, dim=4, out="run")
"""


def start(script: str, folder: Path, *words: str) -> subprocess.Popen[str]:
    threads = {"OMP_NUM_THREADS": "1", "NUMBA_NUM_THREADS": "1"}
    return subprocess.Popen(
        [sys.executable, "-c", script, *words],
        cwd=folder,
        env=os.environ | threads,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


def wait_for_lines(path: Path, process: subprocess.Popen[str], count: int) -> None:
    wait_until(lambda: path.exists() and len(path.read_text().splitlines()) >= count, process)


def send(process: subprocess.Popen[str], folder: Path, signals: Sequence[signal.Signals]) -> None:
    """Each when the one before was heard: two of a kind that wait are one to the system."""
    for heard, number in enumerate(signals):
        if heard:
            wait_for_lines(folder / "heard", process, heard)
        process.send_signal(number)


def rounds_saved(folder: Path) -> int:
    return int(checkpoint.load(folder / "last.safetensors")[1]["progress"]["next_round"])


def rounds_logged(folder: Path) -> int:
    return len((folder / "metrics.jsonl").read_text().splitlines())


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_no_finished_round_is_lost(cli: Cli, tmp_path: Path, number: signal.Signals, code: int) -> None:
    """Long before the first checkpoint is due, at any moment of a round."""
    process = start(PATIENT + CLI, tmp_path, *ENDLESS, "100000")
    wait_for_lines(tmp_path / "run" / "metrics.jsonl", process, 4)
    process.send_signal(number)
    returned, err = wait_for_end(process)
    assert returned == code, err
    assert "Traceback" not in err
    assert rounds_saved(tmp_path / "run") == rounds_logged(tmp_path / "run") >= 4
    rounds = rounds_saved(tmp_path / "run") + 2
    half = (tmp_path / "run" / "metrics.jsonl").read_text()
    assert cli("run", "--resume", "--out", "run", "--quiet", "--rounds", rounds).code == 0
    assert (tmp_path / "run" / "metrics.jsonl").read_text().startswith(half)
    assert cli(*ENDLESS[:-2], "straight", "--rounds", rounds).code == 0
    assert figures(tmp_path / "run") == figures(tmp_path / "straight")
    assert rounds_logged(tmp_path / "run") == rounds


@pytest.mark.parametrize(
    ("grace", "signals", "code"),
    [
        (0.3, [signal.SIGTERM], 143),
        (0.3, [signal.SIGINT], 130),
        (1e6, [signal.SIGINT, signal.SIGINT], 130),
    ],
)
def test_a_long_round_is_dropped(
    cli: Cli, tmp_path: Path, grace: float, signals: list[signal.Signals], code: int
) -> None:
    """One that never ends: after the time of grace, or at the second Ctrl-C; the round before it stands."""
    process = start(SLOW.format(grace=grace, every=0.0) + CLI, tmp_path, *ENDLESS, "6")
    wait_until((tmp_path / "slow").exists, process)
    send(process, tmp_path, signals)
    returned, err = wait_for_end(process)
    assert returned == code, err
    assert rounds_saved(tmp_path / "run") == rounds_logged(tmp_path / "run") == SLOW_FROM
    assert cli("run", "--resume", "--out", "run", "--quiet").code == 0
    assert cli(*ENDLESS[:-2], "straight", "--rounds", "6").code == 0
    assert figures(tmp_path / "run") == figures(tmp_path / "straight")


def test_a_round_that_ends_in_time_is_kept(tmp_path: Path) -> None:
    """SIGTERM twice, as some send it, is no reason to drop it."""
    process = start(SLOW.format(grace=1e6, every=1e9) + CLI, tmp_path, *ENDLESS, "100000")
    wait_until((tmp_path / "slow").exists, process)
    send(process, tmp_path, [signal.SIGTERM, signal.SIGTERM])
    wait_for_lines(tmp_path / "heard", process, 2)
    (tmp_path / "go on").touch()
    assert wait_for_end(process)[0] == 143
    assert rounds_saved(tmp_path / "run") == rounds_logged(tmp_path / "run") == SLOW_FROM + 1


def test_a_python_program_is_ended_by_sigterm_with_its_run_saved(tmp_path: Path) -> None:
    process = start(LIBRARY, tmp_path)
    wait_for_lines(tmp_path / "run" / "metrics.jsonl", process, 3)
    process.send_signal(signal.SIGTERM)
    assert wait_for_end(process)[0] == -signal.SIGTERM
    assert rounds_saved(tmp_path / "run") == rounds_logged(tmp_path / "run") >= 3


def test_the_former_answers_come_back(tmp_path: Path) -> None:
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    config = RunConfig("popularity", data=DATA[1])
    execute(config, tmp_path / "run")
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == before
    thread = threading.Thread(target=execute, args=(config, tmp_path / "thread"))  # which hears no signals
    thread.start()
    thread.join()
    assert json.loads((tmp_path / "thread" / "summary.json").read_text())["rounds_run"] == 1
