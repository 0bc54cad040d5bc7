"""Ctrl-C and SIGTERM sent to real processes: what was trained is saved, and the run goes on from there."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from commands.test_run_resume import DATA, figures
from conftest import Cli
from fedrec.experiment import checkpoint
from fedrec.experiment.config import RunConfig
from fedrec.experiment.run import execute

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
import time
from fedrec.experiment import interrupt, run
from fedrec.federation.client_side import ClientSide

interrupt.GRACE, run.FIRST_CHECKPOINT, run.CHECKPOINT_SECONDS = {{grace}}, {{every}}, {{every}}
run.CHECKPOINT_SHARE = float("inf")
train = ClientSide._train

def slow(self, members, chunk, where, number, down):
    payload = train(self, members, chunk, where, number, down)  # some clients have moved on
    if number == {SLOW_FROM}:
        open("slow", "w").close()
        for _ in range({{naps}}):
            time.sleep(0.01)
    return payload

ClientSide._train = slow
"""
LIBRARY = """
import fedrec
fedrec.run("fedmf", {data!r}, rounds=100_000, dim=4, out="run")
"""


def start(script: str, folder: Path, *words: str) -> subprocess.Popen[str]:
    threads = {"OMP_NUM_THREADS": "1", "NUMBA_NUM_THREADS": "1"}
    return subprocess.Popen(
        [sys.executable, "-c", script, *words], cwd=folder, env=os.environ | threads, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip


def wait_until(reached: Path, process: subprocess.Popen[str], lines: int = 0) -> None:
    until = time.monotonic() + 120
    while not reached.exists() or len(reached.read_text().splitlines()) < lines:
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < until
        time.sleep(0.005)


def ended(process: subprocess.Popen[str], within: float) -> tuple[int, str]:
    began = time.monotonic()
    _, err = process.communicate(timeout=within + 30)
    assert time.monotonic() - began < within, "it did not end in time"
    return process.returncode, err


def rounds_saved(folder: Path) -> int:
    return int(checkpoint.load(folder / "last.safetensors")[1]["progress"]["next_round"])


def rounds_logged(folder: Path) -> int:
    return len((folder / "metrics.jsonl").read_text().splitlines())


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_no_finished_round_is_lost(cli: Cli, tmp_path: Path, number: signal.Signals, code: int) -> None:
    """Long before the first checkpoint is due, at any moment of a round."""
    process = start(CLI, tmp_path, *ENDLESS, "100000")
    wait_until(tmp_path / "run" / "metrics.jsonl", process, lines=4)
    process.send_signal(number)
    returned, err = ended(process, within=15)
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


@pytest.mark.parametrize(("grace", "signals", "code"), [
    (0.3, [signal.SIGTERM], 143),
    (0.3, [signal.SIGINT], 130),
    (60, [signal.SIGINT, signal.SIGINT], 130),
])  # fmt: skip
def test_a_long_round_is_dropped(
    cli: Cli, tmp_path: Path, grace: float, signals: list[signal.Signals], code: int
) -> None:
    """After a few seconds, or at the second Ctrl-C; the round before it stands."""
    process = start(SLOW.format(grace=grace, every=0.0, naps=6_000) + CLI, tmp_path, *ENDLESS, "6")
    wait_until(tmp_path / "slow", process)
    for number in signals:
        process.send_signal(number)
        time.sleep(0.1)
    returned, err = ended(process, within=15)
    assert returned == code, err
    assert rounds_saved(tmp_path / "run") == rounds_logged(tmp_path / "run") == SLOW_FROM
    assert cli("run", "--resume", "--out", "run", "--quiet").code == 0
    assert cli(*ENDLESS[:-2], "straight", "--rounds", "6").code == 0
    assert figures(tmp_path / "run") == figures(tmp_path / "straight")


def test_a_round_that_ends_in_time_is_kept(tmp_path: Path) -> None:
    """SIGTERM twice, as some send it, is no reason to drop it."""
    process = start(SLOW.format(grace=30.0, every=1e9, naps=50) + CLI, tmp_path, *ENDLESS, "100000")
    wait_until(tmp_path / "slow", process)
    for _ in range(2):
        process.send_signal(signal.SIGTERM)
        time.sleep(0.1)
    assert ended(process, within=15)[0] == 143
    assert rounds_saved(tmp_path / "run") == rounds_logged(tmp_path / "run") == SLOW_FROM + 1


def test_a_python_program_is_ended_by_sigterm_with_its_run_saved(tmp_path: Path) -> None:
    process = start(LIBRARY.format(data=DATA[1]), tmp_path)
    wait_until(tmp_path / "run" / "metrics.jsonl", process, lines=3)
    process.send_signal(signal.SIGTERM)
    assert ended(process, within=15)[0] == -signal.SIGTERM
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
