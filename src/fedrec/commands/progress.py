"""What a person, or a program, sees while a run goes on."""

from __future__ import annotations

import json
import time

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from fedrec.console import err, left_out
from fedrec.experiment.listeners import Along
from fedrec.experiment.run import Listener, Run
from fedrec.federation.loop import Progress as RunProgress
from fedrec.federation.loop import Score
from fedrec.federation.simulator import RoundLog
from fedrec.visible import visible_line


class Bar(Listener):
    """A progress bar on stderr: rounds, loss, validation metric, clients per second, time left."""

    def __init__(self, label: str, notes: bool = True) -> None:
        self.label, self.notes = visible_line(label), notes
        self.bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[note]}"),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            console=err,
            transient=True,
        )
        self.metric = ""

    def started(self, run: Run) -> None:
        self.metric = run.protocol.select_metric
        total, done = run.rules.rounds, run.progress.next_round
        self.task = self.bar.add_task(self.label, total=total, completed=done, note="")
        _show_notes(run, self.notes)
        self.bar.start()

    def round(self, log: RoundLog, score: Score | None, progress: RunProgress) -> None:
        parts = [f"loss {log.observed['loss']:.4f}"] if "loss" in log.observed else []
        if progress.best_round >= 0:
            parts.append(f"best {self.metric} {progress.best_value:.4f} (round {progress.best_round + 1})")
        parts.append(f"{log.clients / max(log.seconds, 1e-9):,.0f} clients/s")
        self.bar.update(self.task, completed=log.round + 1, note="  ".join(parts))

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
    """A line now and then where there is no terminal to draw on."""

    def __init__(self, label: str, notes: bool = True) -> None:
        self.label, self.notes, self.rounds, self.spoken = label, notes, 0, time.monotonic()

    def started(self, run: Run) -> None:
        self.rounds = run.rules.rounds
        _show_notes(run, self.notes)

    def round(self, log: RoundLog, score: Score | None, progress: RunProgress) -> None:
        if time.monotonic() - self.spoken > 10:
            self.spoken = time.monotonic()
            best = f", best {progress.best_value:.4f}" if progress.best_round >= 0 else ""
            err.print(f"{self.label}: round {log.round + 1} of {self.rounds}{best}")


def _show_notes(run: Run, wanted: bool) -> None:
    for note in (*run.notes, *map(left_out, run.prepared.filtered)) if wanted else ():
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
