"""How long a run will take, from those that were measured: seconds per round of the nearest one."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from fedrec.experiment.params import method_of
from fedrec.reproduce.cells import Cell
from fedrec.reproduce.measured import MeasuredRun


@dataclass(frozen=True)
class Estimate:
    seconds: float
    device: str
    """On which the runs behind it were measured."""


def estimated(cell: Cell, runs: Sequence[MeasuredRun]) -> Estimate | None:
    """By the same method and backbone on the same data, else by the method alone, else on other data in proportion to
    interactions; None where nothing is known of the method. Runs on the cell's own device count first."""
    method, backbone = cell.config.method, cell.config.backbone or ""
    mine = [run for run in runs if _words(run)[2] == method]
    sizes = {run.dataset: run.interactions for run in runs}
    for here, alike in ((True, True), (True, False), (False, True), (False, False)):
        some = [
            run
            for run in mine
            if (run.dataset == cell.dataset or not here) and (_backbone(run) == backbone or not alike)
        ]
        some = [run for run in some if run.device == cell.config.device] or some
        if some and (here or sizes.get(cell.dataset)):
            pace = median(_pace(run) * (1 if here else sizes[cell.dataset] / max(run.interactions, 1)) for run in some)
            return Estimate(pace * _rounds(cell), some[0].device)
    return None


def hours(seconds: float) -> str:
    """For people: `40 s`, `12 min`, `3.4 h`."""
    if seconds < 90:
        return f"{max(1, round(seconds))} s"
    return f"{round(seconds / 60)} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def _rounds(cell: Cell) -> int:
    return cell.config.rounds or int(method_of(cell.config).rounds)


def _pace(run: MeasuredRun) -> float:
    return run.seconds / max(run.rounds, 1)


def _words(run: MeasuredRun) -> list[str]:
    return shlex.split(run.command)


def _backbone(run: MeasuredRun) -> str:
    words = _words(run)
    return words[words.index("--backbone") + 1] if "--backbone" in words else ""
