"""Several processes give the numbers of one. One pair of them runs every federated method."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

TESTS = Path(__file__).parents[1]


def together(
    module: str, *words: str, processes: int = 2, folder: Path | None = None
) -> subprocess.CompletedProcess[str]:
    """Some processes of a module, started as torchrun does."""
    where = os.pathsep.join(filter(None, [str(TESTS), os.environ.get("PYTHONPATH", "")]))
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(processes)]
    return subprocess.run(
        [*command, "-m", module, *words], cwd=folder, text=True, capture_output=True, timeout=600,
        env=os.environ | {"PYTHONPATH": where, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip


def test_every_federated_method_in_two_processes() -> None:
    done = together("federation.processes")
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.count("worlds equal") == 2, done.stdout
