"""The round loop: train, evaluate at intervals, keep the best, stop when it no longer improves."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from fedrec.errors import DivergedError
from fedrec.federation.simulator import RoundLog, RunningRound, Simulator

# Rounds that an accelerator is given before the host waits: with none it would idle while figures are read.
AHEAD = 2


@dataclass(frozen=True)
class Score:
    """One evaluation: the value that selection maximises, and the figures to report."""

    value: float
    metrics: dict[str, float]
    seconds: float


@dataclass
class Progress:
    """Where a run stands; with the simulator's tensors it is all that a resume needs."""

    next_round: int = 0
    best_round: int = -1
    best_value: float = -math.inf
    best_metrics: dict[str, float] = field(default_factory=dict)
    stale: int = 0  # evaluations since the best
    seconds_train: float = 0.0
    seconds_evaluate: float = 0.0
    stopped_early: bool = False
    observed: dict[str, float] = field(default_factory=dict)  # in the last round
    settled: bool = False  # the method itself ended the run
    diverged: str = ""  # why training ended, where a round before was good

    def judge(self, rules: Rules, number: int, score: Score) -> bool:
        """Take the score of a round: whether it is the best so far, and whether it is time to stop."""
        self.seconds_evaluate += score.seconds
        if not rules.selects:
            return False
        if rules.is_better(score.value, self.best_value):
            self.best_round, self.best_value, self.best_metrics = number, score.value, score.metrics
            self.stale = 0
            return True
        self.stale += 1
        over = rules.patience is not None and self.stale >= rules.patience
        # Patience may run out right before a step that changes everything, and then the run must see it through.
        self.stopped_early = over and rules.may_stop(number)
        return False


@dataclass(frozen=True)
class Rules:
    """When to evaluate, what counts as better, when to stop; without `selects` the last round counts."""

    rounds: int
    eval_every: int = 1
    patience: int | None = None
    last_among_equals: bool = False
    selects: bool = True
    may_stop: Callable[[int], bool] = lambda round: True  # whether a run may end early after this round
    settled: Callable[[int, Mapping[str, float], Mapping[str, float]], bool] | None = None

    def is_due(self, round: int) -> bool:
        # The last round is always evaluated, whatever the interval, or its work could never be chosen.
        return (round + 1) % self.eval_every == 0 or round + 1 == self.rounds

    def has_ended(self, progress: Progress) -> bool:
        """Whether a run that stands there has stopped early by these rules; a longer patience goes on."""
        waited = self.patience is not None and progress.stale >= self.patience
        return (waited and self.may_stop(progress.next_round - 1)) or progress.settled

    def is_better(self, value: float, best: float) -> bool:
        return value > best or (self.last_among_equals and value == best)


def run_rounds(
    simulator: Simulator,
    progress: Progress,
    rules: Rules,
    evaluate: Callable[[int], Score | None],
    on_best: Callable[[], None],
    on_round: Callable[[RoundLog, Score | None], None],
    before_answer: Callable[[int], None] | None = None,
    pause: Pause | None = None,
) -> None:
    """Advance `progress` to the end. `evaluate` returns None where nothing can be evaluated: the last round counts.

    On an accelerator the next rounds begin before the figures of one are read: `on_round` may hear of it a little
    later. Before a round is evaluated, and so before it can be the best, it and all before it were found to be finite.
    `pause` happens at a round's end, when simulator and progress agree; an interrupt in between loses at most
    the work since the last checkpoint. Where training diverges after a round that was chosen, the run ends with that
    one: the simulator is then in the middle of a round, and can only restore the chosen state.
    """
    rounds = _Rounds(simulator, progress, rules, evaluate, on_best, on_round, before_answer, pause or Pause())
    while progress.next_round < rules.rounds and not progress.stopped_early:
        try:
            rounds.advance()
        except DivergedError as error:
            # Without a good round before it there is nothing to report, so the error goes on.
            if progress.best_round < 0:
                raise
            progress.diverged, progress.stopped_early = str(error), True


class Pause:
    """Between two rounds, when everything could be saved."""

    def is_due(self) -> bool:
        """Asked in every round: whether the next ones should wait."""
        return False

    def __call__(self) -> None: ...


@dataclass
class _Rounds:
    """Rounds that were begun and not yet taken into account, oldest first."""

    simulator: Simulator
    progress: Progress
    rules: Rules
    evaluate: Callable[[int], Score | None]
    on_best: Callable[[], None]
    on_round: Callable[[RoundLog, Score | None], None]
    before_answer: Callable[[int], None] | None
    pause: Pause
    begun: deque[RunningRound] = field(default_factory=deque)

    def advance(self) -> None:
        """Begin one more round, and take those that are done or that somebody wants to know of."""
        number = self.progress.next_round + len(self.begun)
        due = self.rules.is_due(number)
        try:
            self.begun.append(self.simulator.begin(number, self.before_answer if due else None, due))
        except Exception:
            # What went wrong may have begun in a round that nobody has read yet, and its error says it better.
            self._take(down_to=0)
            raise
        # A rule that settles needs each round's figures before the next one begins.
        if due or self.begun[-1].is_readable or self.rules.settled is not None or self.pause.is_due():
            self._take(down_to=1)
            self._take_last(number, due)
            self.pause()
        # Waits only when enough rounds are under way, so that the accelerator always has work.
        else:
            self._take(down_to=AHEAD)

    def _take(self, down_to: int) -> None:
        while len(self.begun) > down_to:
            self._count(self.begun.popleft().log(), None)

    def _take_last(self, number: int, due: bool) -> None:
        log = self.begun.popleft().log()
        score = self.evaluate(number) if due else None
        if score is not None and self.progress.judge(self.rules, number, score):
            self.on_best()
        self._count(log, score)

    def _count(self, log: RoundLog, score: Score | None) -> None:
        progress, settled = self.progress, self.rules.settled
        progress.seconds_train += log.seconds
        progress.settled = settled is not None and settled(log.round, progress.observed, log.observed)
        progress.stopped_early |= progress.settled
        progress.observed, progress.next_round = log.observed, log.round + 1
        self.on_round(log, score)
