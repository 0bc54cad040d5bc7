"""Methods of other packages: one that cannot be used is named in a warning, and everything else works."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from fedrec import methods as registry
from fedrec.errors import FedrecError, FedrecWarning
from waiting import GENEROUS

DATA = ("--data", "synthetic@users=40+items=80+interactions=700+seed=1")
BROKEN = {
    "no module": ("absent_module:Method", None, "No module named 'absent_module'"),
    "no attribute": ("odd_module:Absent", "", "has no attribute 'Absent'"),
    "an error": ("odd_module:M", "raise ValueError('too\\nold \\x1b[31m')", "ValueError: too old \x1b[31m"),
    "an exit": ("odd_module:M", "import sys; sys.exit('bye')", "SystemExit: bye"),
    "no method": ("odd_module:M", "M = 3", "it is not a method: a class derived from fedrec's Method"),
    "no name": (
        "odd_module:M",
        "from fedrec.methods.average.fedmf import FedMF\n"
        "from fedrec.federation.contract import MethodInfo\nclass M(FedMF): info = MethodInfo('')",
        "has no name",
    ),
    "a taken name": (
        "odd_module:M",
        "from fedrec.methods.average.fedmf import FedMF\nclass M(FedMF): pass",
        "the name 'fedmf' belongs to another method",
    ),
}


def fedrec(place: Path, *words: str) -> subprocess.CompletedProcess[str]:
    paths = os.pathsep.join(filter(None, [str(place), os.environ.get("PYTHONPATH", "")]))
    env = {**os.environ, "PYTHONPATH": paths, "FEDREC_CACHE": str(place / "cache"), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "fedrec.cli", *words]
    return subprocess.run(command, env=env, cwd=place, capture_output=True, text=True, timeout=GENEROUS)


def installed(place: Path, target: str, source: str | None) -> None:
    """What pip leaves of a package `odd` with the entry point `theirs`."""
    info = place / "odd-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: odd\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[fedrec.methods]\ntheirs = {target}\n")
    if source is not None:
        (place / "odd_module.py").write_text(source)


@pytest.fixture
def fresh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder of packages, and methods that are looked for again."""
    monkeypatch.syspath_prepend(str(tmp_path))
    caches = (registry._register, registry._warn)
    for cache in caches:
        cache.cache_clear()
    yield tmp_path
    sys.modules.pop("odd_module", None)
    for cache in caches:
        cache.cache_clear()


@pytest.mark.parametrize("kind", BROKEN)
def test_a_broken_method_is_left_out_with_a_warning(fresh: Path, kind: str) -> None:
    target, source, reason = BROKEN[kind]
    installed(fresh, target, source)
    with pytest.warns(FedrecWarning) as warned:
        known = registry.methods()
    assert list(known) == [method.info.name for method in registry.BUILT_IN]
    (warning,) = warned
    assert str(warning.message).startswith("the method 'theirs' of the package odd cannot be used: ")
    assert reason in str(warning.message)
    with pytest.raises(FedrecError, match="the method 'theirs' of the package odd cannot be used: ") as error:
        registry.method_class("Theirs")
    assert reason in str(error.value)


def test_every_command_works_and_says_so_in_one_line(tmp_path: Path) -> None:
    target, source, _ = BROKEN["an error"]
    installed(tmp_path, target, source)
    line = r"the method 'theirs' of the package odd cannot be used: ValueError: too old \x1b[31m" + "\n"
    for words in (
        ("run", "fedmf", *DATA, "--rounds", "1", "--set", "dim=2", "--quiet", "--out", "run"),
        ("methods",),
        ("compare", "run", "--no-references"),
        ("recommend", "run", "--user", "3"),
    ):
        done = fedrec(tmp_path, *words)
        assert (done.returncode, done.stderr.splitlines(True)[0]) == (0, f"warning: {line}"), words
    asked = fedrec(tmp_path, "run", "theirs", *DATA)
    assert (asked.returncode, asked.stderr) == (2, f"error: {line}")
