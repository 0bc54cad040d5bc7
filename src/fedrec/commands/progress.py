"""What a person, or a program, sees while a run goes on."""

from __future__ import annotations

import json
import time
from statistics import mean

from rich.progress import BarColumn, Progress, TextColumn

from fedrec.commands.console import describe_left_out, err
from fedrec.errors import visible_line
from fedrec.experiment.driver import Listener, Run
from fedrec.experiment.listeners import Along
from fedrec.federation.loop import Progress as RunProgress
from fedrec.federation.loop import Rules, Score
from fedrec.federation.simulator import RoundLog

LONGEST_LABEL = 20
FIRST_LINE, LONGEST_WAIT = 10.0, 60.0  # seconds between two lines where there is no terminal


def standing(metric: str, progress: RunProgress) -> str:
    """The best figure on validation so far, or nothing."""
    return f"{metric} {progress.best_value:.4f}" if progress.best_round >= 0 else ""


def time_left(seconds: float) -> str:
    """As 0:12 left or 1:02:03 left."""
    hours, rest = divmod(int(seconds), 3600)
    return f"{hours}:{rest // 60:02}:{rest % 60:02} left" if hours else f"{rest // 60}:{rest % 60:02} left"


class Pace:
    """How long the rounds that are left may take, by those so far.

    The first round and the first evaluation also load, compile and prepare: they can take many times as long as the
    others, and tell nothing about them.
    """

    def __init__(self, rules: Rules) -> None:
        self.rules = rules
        self._begun: tuple[int, float] | None = None  # the first round, and when it was over
        self._evaluations: list[float] = []
        self._since = 0.0  # seconds of those after the first round

    def estimate_left(self, round: int, score: Score | None, now: float) -> str:
        """At the end of a round, on any clock; nothing as long as there is too little to judge by."""
        if self.rules.is_due(round):
            self._evaluations.append(0.0 if score is None else score.seconds)
        # The first round gives no pace, because it also loads and compiles.
        if self._begun is None:
            self._begun = round, now
            return ""
        # Evaluations are counted apart: they come less often than rounds and take longer.
        self._since += 0.0 if score is None else score.seconds
        number, then = self._begun
        training = (now - then - self._since) / (round - number) * (self.rules.rounds - 1 - round)
        due = self._due_after(round)
        # The first evaluation is a slow one, but where a single one is left it makes no difference.
        known = self._evaluations[1:] or ((self._evaluations or [0.0]) if due <= 1 else [])
        return time_left(training + due * mean(known)) if known else ""

    def _due_after(self, round: int) -> int:
        """How many evaluations are to come."""
        every, rounds = self.rules.eval_every, self.rules.rounds
        return rounds // every - (round + 1) // every + (rounds % every > 0 and round + 1 < rounds)


class Bar(Listener):
    """A progress bar on stderr that fits 80 columns: round, best validation metric, time left."""

    def __init__(self, label: str, notes: bool = True) -> None:
        text = visible_line(label)
        self.label = text if len(text) <= LONGEST_LABEL else f"{text[: LONGEST_LABEL - 1]}…"
        self.notes, self.metric = notes, ""
        self.bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=None),
            TextColumn("round {task.completed:.0f} of {task.total:.0f}"),
            TextColumn("{task.fields[note]}"),
            console=err,
            transient=True,
            expand=True,
        )

    def start(self, run: Run) -> None:
        self.metric = run.plan.protocol.select_metric
        self.pace = Pace(run.rules)
        self.task = self.bar.add_task(self.label, total=run.rules.rounds, completed=run.progress.next_round, note="")
        # Notes come before the bar, which redraws its own line.
        _show_notes(run, self.notes)
        self.bar.start()

    def round(self, log: RoundLog, score: Score | None, progress: RunProgress) -> None:
        parts = [standing(self.metric, progress), self.pace.estimate_left(log.round, score, time.monotonic())]
        self.bar.update(self.task, completed=log.round + 1, note="  ".join(filter(None, parts)))

    def stop(self) -> None:
        self.bar.stop()


class Lines(Listener):
    """One JSON object per evaluated round on stdout, for programs."""

    def round(self, log: RoundLog, score: Score | None, progress: RunProgress) -> None:
        if score is not None:
            record = {"round": log.round, "seconds": log.seconds, **log.observed, "valid": score.metrics}
            # Flushed, because whoever reads from a pipe wants to see rounds as they end.
            print(json.dumps(record), flush=True)


class Noted(Along):
    """Passes everything on to another listener, and prints a note once all checks have passed."""

    def __init__(self, inner: Listener, note: str) -> None:
        super().__init__(inner)
        self.note = note

    def start(self, run: Run) -> None:
        err.print(f"note: {self.note}", style="dim")
        super().start(run)


class Plain(Listener):
    """A line now and then where there is no terminal to draw on: what the bar shows."""

    def __init__(self, label: str, notes: bool = True) -> None:
        self.label, self.notes, self.metric = label, notes, ""
        self.spoken = time.monotonic()
        self.wait = FIRST_LINE

    def start(self, run: Run) -> None:
        self.metric, self.pace = run.plan.protocol.select_metric, Pace(run.rules)
        self.spoken = time.monotonic()
        _show_notes(run, self.notes)

    def round(self, log: RoundLog, score: Score | None, progress: RunProgress) -> None:
        now = time.monotonic()
        left = self.pace.estimate_left(log.round, score, now)
        # Waits grow, so that a log of a long run has dozens of lines and not thousands.
        if now - self.spoken > self.wait:
            self.spoken, self.wait = now, min(2 * self.wait, LONGEST_WAIT)
            parts = [f"round {log.round + 1} of {self.pace.rules.rounds}", standing(self.metric, progress), left]
            err.print(f"{self.label}: {', '.join(filter(None, parts))}")


def _show_notes(run: Run, wanted: bool) -> None:
    disk = () if run.disk is None else (str(run.disk),)
    for note in (*run.plan.notes, *map(describe_left_out, run.prepared.filters), *disk) if wanted else ():
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
