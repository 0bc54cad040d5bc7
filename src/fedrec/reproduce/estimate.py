"""How long a run will take, from those that were measured: seconds per round of the nearest one."""

from __future__ import annotations

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
    """By the same method, backbone and noise on gradients on the same data, else on other data in proportion to
    interactions; None where nothing is known. Runs on the cell's own device count first."""
    mine = [run for run in runs if run.seconds > 0 and _kind_of(run) == _kind(cell)]
    sizes = {run.dataset: run.interactions for run in runs if run.interactions}
    for here in (True, False):
        some = [run for run in mine if run.dataset == cell.dataset or not here]
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


def _kind(cell: Cell) -> tuple[str, str, bool]:
    """What decides how it is computed: noise on gradients has no kernel."""
    return cell.config.method, getattr(method_of(cell.config), "backbone", ""), "dp" in cell.config.params


def _kind_of(run: MeasuredRun) -> tuple[str, str, bool]:
    return run.command.split()[2], run.backbone, "--set dp=" in run.command
