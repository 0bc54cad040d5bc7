"""A folder of runs in every state, as the board meets them."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

import fedrec
from fedrec.experiment.config import make_config
from fedrec.experiment.finished_run import find_runs
from fedrec.experiment.search_space import Choices
from fedrec.experiment.tuning import Study, Trial
from fedrec.report.pages.report import write_report

DATA = "synthetic@users=40+items=80+interactions=700+seed=1"


@pytest.fixture(scope="session")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Two seeds of fedmf, ease, popularity, and two runs of three silos."""
    root = tmp_path_factory.mktemp("board")
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("FEDREC_DATA", raising=False)
        patch.setenv("FEDREC_CACHE", str(root / "cache"))
        for seed in (0, 1):
            fedrec.run("fedmf", DATA, out=root / "runs" / "fedmf" / f"seed{seed}", seed=seed, rounds=6, dim=4)
        for name in ("ease", "popularity"):
            fedrec.run(name, DATA, out=root / "runs" / name)
        for name in ("fedmf", "local"):
            fedrec.run(name, DATA, out=root / "runs" / f"{name}-silos", rounds=3, dim=4, silos="3")
        write_report(find_runs([root / "runs" / "ease"]), root / "runs" / "ease" / "report.html")
        yield root / "runs"


@pytest.fixture
def folder(finished: Path, tmp_path: Path) -> Path:
    """The same, with a run that was interrupted, a damaged one, a study, and a folder of something else."""
    root = tmp_path / "runs"
    shutil.copytree(finished, root)
    for name in ("stopped", "damaged"):
        shutil.copytree(root / "ease", root / name)
    (root / "stopped" / "summary.json").unlink()
    (root / "damaged" / "summary.json").write_text('{"method": "ea', encoding="utf-8")
    (root / "holiday").mkdir()
    (root / "holiday" / "photo.jpg").write_bytes(b"x")
    write_study(root / "study")
    return root


def write_study(path: Path) -> None:
    """A study of four trials, one of which could not be trained."""
    config = make_config({"method": "fedmf", "data": DATA, "rounds": 5})
    study = Study(path, config, {"lr": Choices((0.1, 0.5, 1.0, 50.0)), "dim": Choices((4, 8))})
    study.begin()
    values = ((0.1, 4, 0.2), (0.5, 8, 0.3), (1.0, 8, 0.25), (50.0, 4, None))
    study.record(
        [
            Trial(place, {"lr": lr, "dim": dim}, value, 3, 5, 1.5, note="" if value else "diverged")
            for place, (lr, dim, value) in enumerate(values)
        ]
    )


def append_round(run: Path, number: int, **more: object) -> None:
    """One more line in the log of a run."""
    record = {"round": number, "clients": 40, "seconds": 0.5, "bytes_up": 100, "bytes_down": 200, "loss": 0.5, **more}
    with (run / "metrics.jsonl").open("a", encoding="utf-8") as file:
        file.write(json.dumps(record) + "\n")
