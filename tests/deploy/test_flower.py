"""One small deployment with Flower's real processes."""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from fedrec.deploy.processes import Processes, descendants
from fedrec.experiment.config import make_config
from fedrec.experiment.run import execute

WORLD = "synthetic@users=30+items=80+seed=1"
needs_flower = pytest.mark.skipif(
    importlib.util.find_spec("flwr") is None, reason="Flower is not installed: pip install 'fedrec[flower]'"
)


def command(out: Path, rounds: int) -> list[str]:
    return [sys.executable, "-m", "fedrec", "deploy", "demo", "--data", WORLD, "--nodes", "2", "--rounds", str(rounds),
            "--set", "dim=4", "--seed", "3", "--out", str(out)]  # fmt: skip


def left_over(out: Path) -> list[str]:
    """Processes that speak of this deployment."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                words = (entry / "cmdline").read_bytes() + (entry / "environ").read_bytes()
            except OSError:
                continue
            if str(out).encode() in words:
                found.append((entry / "cmdline").read_text().replace("\0", " "))
    return found


@needs_flower
@pytest.mark.slow
def test_real_processes_give_what_a_simulation_gives(tmp_path: Path) -> None:
    out = tmp_path / "demo"
    done = subprocess.run(command(out, 1), capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    summary = json.loads((out / "summary.json").read_text())
    config = make_config({"method": "fedmf", "data": WORLD, "rounds": 1, "seed": 3, "params": {"dim": 4}})
    wanted = execute(config).summary
    for name, value in summary["test"].items():
        assert value == pytest.approx(wanted["test"][name], rel=1e-5, abs=1e-12), name
    assert not left_over(tmp_path)
    assert (out / "report.html").exists()
    state = out.with_name("demo-nodes") / "node-0"
    user = (state / "places.csv").read_text().splitlines()[1].split(",")[0]
    words = [sys.executable, "-m", "fedrec", "recommend", "--state-dir", str(state), "--user", user, "-k", "3"]
    lists = subprocess.run(words, capture_output=True, text=True, timeout=120)
    assert lists.returncode == 0, lists.stderr
    assert len(lists.stdout.splitlines()) == 4


def test_processes_end_with_their_descendants(tmp_path: Path) -> None:
    """Also those in sessions of their own, and those that do not listen to SIGTERM."""
    script = (
        "import subprocess, sys, time, signal; signal.signal(signal.SIGTERM, signal.SIG_IGN);"
        "subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)'], start_new_session=True);"
        "time.sleep(60)"
    )
    with Processes() as processes:
        process = processes.start([sys.executable, "-c", script], dict(os.environ), tmp_path / "log")
        until = time.monotonic() + 10
        while not descendants(process.pid) and time.monotonic() < until:
            time.sleep(0.05)
        below = descendants(process.pid)
        assert below
    assert not [pid for pid in (process.pid, *below) if Path(f"/proc/{pid}").exists()]


@needs_flower
@pytest.mark.slow
def test_an_interrupted_demo_leaves_no_process(tmp_path: Path) -> None:
    """SIGTERM while the nodes start; and the exit code says so."""
    out = tmp_path / "demo"
    process = subprocess.Popen(command(out, 5), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    for line in process.stderr:
        if "node-1" in line:
            break
    process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=60) == 128 + signal.SIGTERM
    assert not left_over(tmp_path)
