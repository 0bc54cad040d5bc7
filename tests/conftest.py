"""What tests of every room share: the command line in this process."""

from __future__ import annotations

import os
import sys
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import pytest
from hypothesis import HealthCheck, settings

# Threads that spin while they wait cost tiny tensors 10 ms a call when other processes (test workers) want the cores.
# It must stand before torch is loaded.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")
# Without an accelerator Triton's kernels are interpreted. It is read when Triton is first imported, by whatever test.
if not Path("/dev/nvidia0").exists():
    os.environ["TRITON_INTERPRET"] = "1"

# A property may take as long as it likes, and so may finding examples for it: machines are slow or busy.
settings.register_profile("patient", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("patient")

KERNELS = Path(__file__).parents[1] / "src/fedrec/kernels"


def pytest_configure() -> None:
    forget_outdated_kernels()


def forget_outdated_kernels() -> None:
    """numba looks for changes in a kernel's own file alone: what was compiled before another changed is forgotten."""
    changed = max((path.stat().st_mtime for path in KERNELS.glob("*.py")), default=0.0)
    for index in KERNELS.glob("__pycache__/*.nbi"):
        with suppress(FileNotFoundError):  # another worker was first
            if index.stat().st_mtime < changed:
                index.unlink()


class Outcome(NamedTuple):
    code: int
    out: str
    err: str


Cli = Callable[..., Outcome]


@pytest.fixture
def cli(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Cli:
    """`cli("run", "fedmf", ...)` in an empty folder, with an empty cache, no data folder and no network."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("FEDREC_DATA", raising=False)
    monkeypatch.setenv("FEDREC_CACHE", str(tmp_path / "cache"))
    # urlopen keeps for the whole process the proxies that were set when it was first called
    monkeypatch.setattr(urllib.request, "_opener", None)
    for name in ("http_proxy", "https_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    monkeypatch.setenv("PIP_NO_INDEX", "1")

    def call(*words: object) -> Outcome:
        from fedrec.cli import main

        monkeypatch.setattr(sys, "argv", ["fedrec", *(os.fspath(w) if isinstance(w, Path) else str(w) for w in words)])
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            main()
        printed = capsys.readouterr()
        assert isinstance(ended.value.code, int)
        return Outcome(ended.value.code, printed.out, printed.err)

    return call


@pytest.fixture(autouse=True)
def _registered_here() -> Iterator[None]:
    """Methods and metrics that a test registers are gone after it."""
    from fedrec import methods
    from fedrec.evaluation import own_metrics

    before = [(known, dict(known)) for known in (methods._REGISTERED_HERE, own_metrics._REGISTERED)]
    yield
    for known, old in before:
        known.clear()
        known.update(old)
