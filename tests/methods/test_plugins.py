"""Methods of other packages: one that cannot be used is named in a warning, and everything else works."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

DATA = ("--data", "synthetic@users=40+items=80+interactions=700+seed=1")
BROKEN = {
    "no module": ("absent_module:Method", None, "No module named 'absent_module'"),
    "no attribute": ("odd_module:Absent", "", "has no attribute 'Absent'"),
    "an error": ("odd_module:M", "raise ValueError('too\\nold \\x1b[31m')", r"ValueError: too old \x1b[31m"),
    "an exit": ("odd_module:M", "import sys; sys.exit('bye')", "SystemExit: bye"),
    "no method": ("odd_module:M", "M = 3", "it is not a method: a class derived from fedrec's Method"),
    "no name": ("odd_module:M", "from fedrec.methods.fedmf import FedMF\nclass M(FedMF): name = ''", "has no name"),
    "a taken name": ("odd_module:M", "from fedrec.methods.fedmf import FedMF\nclass M(FedMF): pass",
                     "the name 'fedmf' is that of another method"),
}  # fmt: skip


def fedrec(place: Path, *words: str) -> subprocess.CompletedProcess[str]:
    paths = os.pathsep.join(filter(None, [str(place), os.environ.get("PYTHONPATH", "")]))
    env = {**os.environ, "PYTHONPATH": paths, "FEDREC_CACHE": str(place / "cache"), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "fedrec.cli", *words]
    return subprocess.run(command, env=env, cwd=place, capture_output=True, text=True, timeout=120)


def installed(place: Path, target: str, source: str | None) -> None:
    """What pip leaves of a package `odd` with the entry point `theirs`."""
    info = place / "odd-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: odd\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[fedrec.methods]\ntheirs = {target}\n")
    if source is not None:
        (place / "odd_module.py").write_text(source)


@pytest.mark.parametrize("kind", BROKEN)
def test_a_broken_method_is_one_warning(tmp_path: Path, kind: str) -> None:
    target, source, reason = BROKEN[kind]
    installed(tmp_path, target, source)
    listed = fedrec(tmp_path, "methods")
    assert listed.returncode == 0, listed.stderr
    assert "fedmf" in listed.stdout
    (line,) = listed.stderr.splitlines()
    assert line.startswith("warning: the method 'theirs' of the package odd cannot be used: ")
    assert reason in line
    asked = fedrec(tmp_path, "run", "Theirs", *DATA)
    assert asked.returncode == 2
    (error,) = asked.stderr.splitlines()
    assert error.startswith("error: the method 'theirs' of the package odd cannot be used: ")
    assert reason in error


def test_all_other_commands_work(tmp_path: Path) -> None:
    target, source, _ = BROKEN["an error"]
    installed(tmp_path, target, source)
    for words in (("run", "fedmf", *DATA, "--rounds", "1", "--set", "dim=2", "--quiet", "--out", "run"),
                  ("compare", "run", "--no-references"), ("recommend", "run", "--user", "3")):  # fmt: skip
        done = fedrec(tmp_path, *words)
        assert done.returncode == 0, done.stderr
        assert done.stderr.count("warning: ") == len(done.stderr.splitlines()) == 1
