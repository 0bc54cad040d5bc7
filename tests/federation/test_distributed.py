"""Several processes give the numbers of one. One pair of them runs every federated method."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import tomli_w

from fedrec.errors import FedrecError
from fedrec.experiment.config import RunConfig
from fedrec.experiment.driver import Run, execute
from fedrec.experiment.run_plan import plan_run
from fedrec.federation.group import SingleProcess
from waiting import GENEROUS

TESTS = Path(__file__).parents[1]


def together(
    module: str, *words: str, processes: int = 2, folder: Path | None = None
) -> subprocess.CompletedProcess[str]:
    """Some processes of a module, started as torchrun does."""
    where = os.pathsep.join(filter(None, [str(TESTS), os.environ.get("PYTHONPATH", "")]))
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(processes)]
    return subprocess.run(
        [*command, "-m", module, *words],
        cwd=folder,
        text=True,
        capture_output=True,
        timeout=GENEROUS,
        env=os.environ | {"PYTHONPATH": where, "OMP_NUM_THREADS": "1"},
    )


def test_every_federated_method_in_two_processes() -> None:
    done = together("federation.processes")
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.count("worlds equal") == 2, done.stdout


DATA = "synthetic@users=80+items=120+interactions=2000"
CONFIGS = {
    "fedmf": RunConfig("fedmf", DATA, params={"dim": 4}, lost_uploads=0.2),
    "fedcia": RunConfig("fedcia", DATA, params={"dim": 4}, silos="5"),
}


@pytest.mark.parametrize("name", CONFIGS)
def test_a_run_in_two_processes_goes_on_in_one(name: str, tmp_path: Path) -> None:
    """One folder, the numbers of one process, and a resume on another number of processes."""
    short, long = (replace(CONFIGS[name], rounds=rounds) for rounds in (2, 4))
    (tmp_path / "short.toml").write_text(tomli_w.dumps(short.to_dict()))
    done = together("fedrec", "run", "--config", "short.toml", "--out", "two", "--quiet", folder=tmp_path)
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.count("run folder: two") == 1  # the first process prints for all
    assert (tmp_path / "two" / "report.html").is_file()
    middle = ("run", "--resume", "--rounds", "3", "--out", "two", "--quiet")
    assert (done := together("fedrec", *middle, folder=tmp_path)).returncode == 0, done.stderr[-3000:]
    execute(long, tmp_path / "two", resume=True)
    execute(long, tmp_path / "one")
    found, wanted = (json.loads((tmp_path / place / "summary.json").read_text()) for place in ("two", "one"))
    for key in ("test", "valid", "bytes", "best_round", "clients"):
        assert found[key] == pytest.approx(wanted[key], rel=1e-5, abs=1e-6), key


def test_what_is_centralised_trains_in_one_process() -> None:
    class Two(SingleProcess):
        size = 2

    with pytest.raises(FedrecError, match="start it without torchrun"):
        Run(plan_run(RunConfig("ease", DATA), group=Two()))
