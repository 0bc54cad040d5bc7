"""One small deployment with Flower's real processes."""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from fedrec.deploy import processes
from fedrec.deploy.processes import Processes, descendants
from fedrec.experiment.config import make_config
from fedrec.experiment.driver import execute
from waiting import GENEROUS, wait_until

WORLD = "synthetic@users=30+items=80+seed=1"
needs_flower = pytest.mark.skipif(
    importlib.util.find_spec("flwr") is None, reason="Flower is not installed: pip install 'fedrec[flower]'"
)


def command(out: Path, rounds: int) -> list[str]:
    return [
        sys.executable,
        "-m",
        "fedrec",
        "deploy",
        "demo",
        "--data",
        WORLD,
        "--nodes",
        "2",
        "--rounds",
        str(rounds),
        "--set",
        "dim=4",
        "--seed",
        "3",
        "--deadline",
        str(GENEROUS),
        "--out",
        str(out),
    ]


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
    done = subprocess.run(command(out, 1), capture_output=True, text=True, timeout=GENEROUS)
    assert done.returncode == 0, done.stderr
    summary = json.loads((out / "summary.json").read_text())
    config = make_config({"method": "fedmf", "data": WORLD, "rounds": 1, "seed": 3, "params": {"dim": 4}})
    wanted = execute(config).summary
    for name, value in summary["test"].items():
        assert value == pytest.approx(wanted["test"][name], rel=1e-5, abs=1e-12), name
    assert not left_over(tmp_path)
    assert (out / "report.html").exists()
    beside = out.with_name("demo-nodes")
    state = beside / "node-0"
    link = beside / "superlink"
    secret = [beside, state, link, state / "node.log", link / "superlink.log", *link.glob("state.db*")]
    assert [path for path in secret if path.stat().st_mode & 0o077] == []
    user = (state / "places.csv").read_text().splitlines()[1].split(",")[0]
    words = [sys.executable, "-m", "fedrec", "recommend", "--state-dir", str(state), "--user", user, "-k", "3"]
    lists = subprocess.run(words, capture_output=True, text=True, timeout=GENEROUS)
    assert lists.returncode == 0, lists.stderr
    assert len(lists.stdout.splitlines()) == 4


def test_processes_end_with_their_descendants(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also those in sessions of their own, and those that do not listen to SIGTERM."""
    monkeypatch.setattr(processes, "PATIENCE", 0.5)
    forever = "import threading; threading.Event().wait()"
    script = (
        "import subprocess, sys, signal; signal.signal(signal.SIGTERM, signal.SIG_IGN);"
        f"subprocess.Popen([sys.executable, '-c', '{forever}'], start_new_session=True); {forever}"
    )
    with Processes() as started:
        process = started.start([sys.executable, "-c", script], dict(os.environ), tmp_path / "log")
        wait_until(lambda: bool(descendants(process.pid)), process)
        below = descendants(process.pid)
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
    assert process.wait(GENEROUS) == 128 + signal.SIGTERM
    assert not left_over(tmp_path)
