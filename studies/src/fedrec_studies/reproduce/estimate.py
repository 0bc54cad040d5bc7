"""How long a run will take, from those that were measured: seconds per round of the nearest ones."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from statistics import median

from fedrec.experiment import method_of
from fedrec_studies.reproduce.cells import Cell
from fedrec_studies.reproduce.measured import MeasuredRun

WHOLE = "full"  # the variant of a method with all its parts
# shorter runs spend most of their time in compilation and would make long ones look slower than they are
SETTLED = 10


@dataclass(frozen=True)
class Estimate:
    seconds: float
    device: str
    """On which the runs behind it were measured."""
    rough: bool = False
    """No run of this kind was measured: others of the method, with another backbone or without noise, stand in."""

    def describe(self) -> str:
        return f"{hours(self.seconds)} on {self.device}" + (" (by its other runs)" if self.rough else "")


@dataclass(frozen=True)
class Kind:
    """What decides how a run is computed: noise on gradients has no kernel, a variant may lack the longest part."""

    method: str
    backbone: str
    noised: bool
    variant: str


class Clock:
    """Times of runs to come, by those of `runs` that say how long they took."""

    def __init__(self, runs: Iterable[MeasuredRun]) -> None:
        known = list(runs)
        self.sizes = {run.dataset: run.interactions for run in known if run.interactions}
        self.by_method: dict[str, list[tuple[Kind, MeasuredRun]]] = {}
        for run in known:
            if run.seconds > 0:
                kind = Kind(run.command.split()[2], run.backbone, "--set dp=" in run.command, _variant(run.command))
                self.by_method.setdefault(kind.method, []).append((kind, run))

    def estimate(self, cell: Cell) -> Estimate | None:
        """By runs of the same kind on the same data, else on other data in proportion to interactions, else of the same
        method in the same way; None where nothing is known. Runs of more than a few rounds count first, then those on
        the cell's own device."""
        method = method_of(cell.config)
        noised, variant = "dp" in cell.config.params, str(cell.config.params.get("variant", WHOLE))
        kind = Kind(cell.config.method, getattr(method, "backbone", ""), noised, variant)
        found = self.by_method.get(kind.method, ())
        same = [run for other, run in found if other == kind]
        for runs, rough in ((same, False), ([run for _, run in found], True)):
            for scale, some in self._nearest(runs, cell.dataset):
                some = [run for run in some if run.rounds >= SETTLED] or some
                some = [run for run in some if run.device == cell.config.device] or some
                pace = median(scale(run) * run.seconds / max(run.rounds, 1) for run in some)
                return Estimate(pace * (cell.config.rounds or int(method.rounds)), some[0].device, rough)
        return None

    def _nearest(
        self, runs: Sequence[MeasuredRun], dataset: str
    ) -> Iterator[tuple[Callable[[MeasuredRun], float], Sequence[MeasuredRun]]]:
        """Runs and what their pace is multiplied by: those on this data, then all, where its size is known."""
        here = [run for run in runs if run.dataset == dataset]
        if here:
            yield lambda run: 1.0, here
        size = self.sizes.get(dataset)
        if runs and size:
            yield lambda run: size / max(run.interactions, 1), runs


def _variant(command: str) -> str:
    return command.partition("--set variant=")[2].split(" ")[0] or WHOLE


def hours(seconds: float) -> str:
    """Write a duration for people: `40 s`, `12 min`, `3.4 h`."""
    if seconds < 90:
        return f"{max(1, round(seconds))} s"
    return f"{round(seconds / 60)} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
