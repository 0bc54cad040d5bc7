"""Listeners that hear along with another one."""

from __future__ import annotations

from fedrec.experiment.finished import Chosen
from fedrec.experiment.run import Listener, Run
from fedrec.federation.loop import Progress, Score
from fedrec.federation.simulator import RoundLog


class Along(Listener):
    """Passes everything on to the listener within."""

    def __init__(self, inner: Listener) -> None:
        self.inner = inner

    def started(self, run: Run) -> None:
        self.inner.started(run)

    def round(self, log: RoundLog, score: Score | None, progress: Progress) -> None:
        self.inner.round(log, score, progress)

    def finished(self, run: Run, chosen: int) -> None:
        self.inner.finished(run, chosen)

    def stop(self) -> None:
        self.inner.stop()


class Keeping(Along):
    """Holds on to the finished run."""

    chosen: Chosen

    def finished(self, run: Run, chosen: int) -> None:
        super().finished(run, chosen)
        self.chosen = Chosen(run, chosen)
