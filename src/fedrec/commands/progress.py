"""What a person, or a program, sees while a run goes on."""

from __future__ import annotations

import json
import time

from rich.progress import BarColumn, Progress, TextColumn

from fedrec.console import err, left_out
from fedrec.experiment.listeners import Along
from fedrec.experiment.run import Listener, Run
from fedrec.federation.loop import Progress as RunProgress
from fedrec.federation.loop import Score
from fedrec.federation.simulator import RoundLog
from fedrec.visible import visible_line

LONGEST_LABEL = 20
FIRST_LINE, LONGEST_WAIT = 10.0, 60.0  # seconds between two lines where there is no terminal


def standing(metric: str, progress: RunProgress) -> str:
    """The best figure on validation so far, or nothing."""
    return f"{metric} {progress.best_value:.4f}" if progress.best_round >= 0 else ""


def time_left(seconds: float, done: int, total: int) -> str:
    """What the rounds so far suggest, as 0:12 or 1:02:03."""
    left = int(seconds / max(done, 1) * (total - done))
    hours, rest = divmod(left, 3600)
    return f"{hours}:{rest // 60:02}:{rest % 60:02} left" if hours else f"{rest // 60}:{rest % 60:02} left"


class Bar(Listener):
    """A progress bar on stderr that fits 80 columns: round, best validation metric, time left."""

    def __init__(self, label: str, notes: bool = True) -> None:
        text = visible_line(label)
        self.label = text if len(text) <= LONGEST_LABEL else f"{text[: LONGEST_LABEL - 1]}…"
        self.notes, self.metric, self.began, self.first = notes, "", 0.0, 0
        self.bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=None),
            TextColumn("round {task.completed:.0f} of {task.total:.0f}"),
            TextColumn("{task.fields[note]}"),
            console=err,
            transient=True,
            expand=True,
        )

    def started(self, run: Run) -> None:
        self.metric = run.protocol.select_metric
        total, self.first = run.rules.rounds, run.progress.next_round
        self.task = self.bar.add_task(self.label, total=total, completed=self.first, note="")
        _show_notes(run, self.notes)
        self.began = time.monotonic()
        self.bar.start()

    def round(self, log: RoundLog, score: Score | None, progress: RunProgress) -> None:
        done, total = log.round + 1 - self.first, int(self.bar.tasks[self.task].total or 0) - self.first
        parts = [standing(self.metric, progress), time_left(time.monotonic() - self.began, done, total)]
        self.bar.update(self.task, completed=log.round + 1, note="  ".join(filter(None, parts)))

    def stop(self) -> None:
        self.bar.stop()


class Lines(Listener):
    """One JSON object per evaluated round on stdout, for programs."""

    def round(self, log: RoundLog, score: Score | None, progress: RunProgress) -> None:
        if score is not None:
            record = {"round": log.round, "seconds": log.seconds, **log.observed, "valid": score.metrics}
            print(json.dumps(record), flush=True)


class Noted(Along):
    """Passes everything on to another listener, and prints a note once all checks have passed."""

    def __init__(self, inner: Listener, note: str) -> None:
        super().__init__(inner)
        self.note = note

    def started(self, run: Run) -> None:
        err.print(f"note: {self.note}", style="dim")
        super().started(run)


class Plain(Listener):
    """A line now and then where there is no terminal to draw on: what the bar shows."""

    def __init__(self, label: str, notes: bool = True) -> None:
        self.label, self.notes, self.metric, self.rounds, self.first = label, notes, "", 0, 0
        self.began = self.spoken = time.monotonic()
        self.wait = FIRST_LINE

    def started(self, run: Run) -> None:
        self.metric, self.rounds, self.first = run.protocol.select_metric, run.rules.rounds, run.progress.next_round
        self.began = self.spoken = time.monotonic()
        _show_notes(run, self.notes)

    def round(self, log: RoundLog, score: Score | None, progress: RunProgress) -> None:
        now = time.monotonic()
        if now - self.spoken > self.wait:
            self.spoken, self.wait = now, min(2 * self.wait, LONGEST_WAIT)
            left = time_left(now - self.began, log.round + 1 - self.first, self.rounds - self.first)
            parts = [f"round {log.round + 1} of {self.rounds}", standing(self.metric, progress), left]
            err.print(f"{self.label}: {', '.join(filter(None, parts))}")


def _show_notes(run: Run, wanted: bool) -> None:
    disk = () if run.disk is None else (str(run.disk),)
    for note in (*run.notes, *map(left_out, run.prepared.filtered), *disk) if wanted else ():
        err.print(f"note: {note}", style="dim")


def listener(label: str, quiet: bool, as_json: bool, notes: bool = True) -> Listener:
    """`notes`: what the run has to say of itself, which one of several alike says for all."""
    if as_json:
        return Lines()
    if quiet:
        return Listener()
    return Bar(label, notes) if err.is_terminal else Plain(label, notes)


def listener_of(label: str) -> Listener:
    """For a run that something else needs, such as the references of a comparison."""
    return listener(label, quiet=False, as_json=False)
