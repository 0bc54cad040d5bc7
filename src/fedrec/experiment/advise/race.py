"""Candidates against each other within a budget: a little work for each, then the most for those that promise most.

Training goes on where it was left, so a slow starter that still rises is not beaten by what ends in one round. Nothing
but validation is looked at.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from fedrec.errors import FedrecError
from fedrec.experiment.advise.attempts import Attempt, Logbook
from fedrec.experiment.advise.shortlist import Candidate, Wishes
from fedrec.experiment.config import RunConfig, plain
from fedrec.experiment.driver import Listener, Run, StopRun
from fedrec.experiment.limits import needs_of
from fedrec.experiment.listeners import Along
from fedrec.experiment.machine import free_memory, size_text
from fedrec.experiment.prepare import Prepared
from fedrec.experiment.run_plan import RunPlan, plan_run
from fedrec.federation.loop import Progress, Score
from fedrec.federation.simulator import RoundLog

Clock = Callable[[], float]
"""Work since some moment: seconds, or anything that only grows."""
# Of the budget, for all candidates together: a first look must leave most of it to those that deserve it.
FIRST_SHARE = 0.3
# Of its rounds: before them a sequence model, which starts slowly, cannot be judged.
EARLY = 0.25
# Times its tensors, for sums in double precision, what a solver copies, and the best state kept beside.
OVERHEAD = 5
# Without any figure after so many times its share, an attempt is too slow for this machine.
TOO_LONG = 3
# Parts of the budget afterwards, so that a wrong forecast costs one of them and not all.
TURNS = 8


class Race:
    """`heard`: told of every attempt as it is now, by its name. `follow`: its listener, given its label."""

    def __init__(
        self,
        base: RunConfig,
        data: Prepared,
        runners: list[Candidate],
        logbook: Logbook,
        wishes: Wishes,
        clock: Clock,
        heard: Callable[[str, Attempt], None],
        follow: Callable[[str], Listener],
    ) -> None:
        self.base, self.data, self.logbook, self.clock = base, data, logbook, clock
        self.runners = {candidate.label: candidate for candidate in runners}
        self.heard, self.follow = heard, follow
        self.budget, self.max_upload = 60 * wishes.minutes, wishes.max_upload
        self.attempts = logbook.begin()
        self._open: dict[int, Run] = {}  # those that can go on, by the number of their attempt

    @property
    def budget_ahead(self) -> float:
        """What is left of the budget, attempts of an earlier call included."""
        return self.budget - sum(attempt.seconds for attempt in self.attempts)

    def run(self) -> list[Attempt]:
        """Go on until the budget is spent or nothing promises to be better."""
        self._look_at_all()
        # Half of the budget at most goes to attempts that cannot be judged, or slow starters would eat what leaders
        # need.
        while self.budget_ahead > self.budget / 2 and (number := self._best_early()) is not None:
            self._go_on(number, self.budget / TURNS)
        while self.budget_ahead > 0 and (number := self._most_promising()) is not None:
            self._go_on(number, min(self.budget_ahead, self.budget / TURNS))
        while self.budget_ahead > 0 and (number := self._variation()) is not None:
            self._go_on(number, self.budget_ahead)
        while self.budget_ahead > 0 and (number := self._best_early()) is not None:
            self._go_on(number, min(self.budget_ahead, self.budget / TURNS))
        return self.attempts

    def list_untried(self) -> list[str]:
        """Candidates for which there was no time."""
        tried = {attempt.label for attempt in self.attempts}
        return [label for label in self.runners if label not in tried]

    def leaders(self) -> list[Attempt]:
        """Attempts within the wishes, the best first."""
        able = [one for one in self.attempts if one.value is not None and not self._is_too_large(one)]
        return sorted(able, key=lambda one: -(one.value or 0.0))

    # -- who is next --

    def _look_at_all(self) -> None:
        for candidate in self.runners.values():
            known = any(attempt.is_of(candidate.label, candidate.set) for attempt in self.attempts)
            # What always runs is the floor that others are compared with, so it runs even without time.
            if not known and (candidate.always or self.budget_ahead > 0):
                number = self._enter(candidate, candidate.set)
                self._go_on(number, self.budget * FIRST_SHARE / len(self.runners))

    def _list_unfinished(self) -> list[int]:
        return [n for n, one in enumerate(self.attempts) if one.is_unfinished and not self._is_too_large(one)]

    def _best_early(self) -> int | None:
        """Of the attempts that cannot be judged yet the best."""
        early = [n for n in self._list_unfinished() if self.attempts[n].rounds_run < EARLY * self.attempts[n].rounds]
        return max(early, key=lambda n: self.attempts[n].value or 0.0, default=None)

    def _most_promising(self) -> int | None:
        """The unfinished attempt with the best forecast, if that is better than what others have reached."""
        numbers = self._list_unfinished()
        # By forecast rather than by value: a rising curve may overtake the leader, a flat one will not.
        best = max(numbers, key=lambda n: self.attempts[n].forecast(self.budget_ahead), default=None)
        leader = next(iter(self.leaders()), None)
        if best is None or leader is None or self.attempts[best] is leader:
            return best
        return best if self.attempts[best].forecast(self.budget_ahead) > (leader.value or 0.0) else None

    def _variation(self) -> int | None:
        """The best attempt's settings with one of them changed, where there is time to train that."""
        for leader in self.leaders()[:1]:
            candidate = self.runners.get(leader.label)
            for settings in candidate.neighbours(leader.settings) if candidate else ():
                known = any(attempt.is_of(leader.label, settings) for attempt in self.attempts)
                # A neighbour takes about as long as the leader did, so with less time it would only be cut off.
                if candidate is not None and not known and leader.seconds <= self.budget_ahead:
                    return self._enter(candidate, settings)
        return None

    def _is_too_large(self, attempt: Attempt) -> bool:
        return self.max_upload is not None and (attempt.upload or 0.0) > self.max_upload

    # -- work --

    def _enter(self, candidate: Candidate, settings: Mapping[str, Any]) -> int:
        self.attempts = [*self.attempts, Attempt(candidate.label, {k: plain(v) for k, v in settings.items()})]
        return len(self.attempts) - 1

    def _go_on(self, number: int, work: float) -> None:
        """Give an attempt some work, and write down how far it came."""
        before = self.attempts[number]
        fresh = number not in self._open
        # The state of an interrupted attempt was only in memory, so it begins again and its clock with it.
        spent = 0.0 if fresh else before.seconds
        watch = Watch(self.follow(before.label), self.clock, spent, {} if fresh else before.curve, work)
        try:
            run = self._open.pop(number, None) or self._plan(before)
            # The watch ended it the last time, which must not count as an end by its own rules.
            run.progress.stopped_early = False
            run.choose(watch)
            attempt = self._judge(before, run, watch)
        # Too large for this machine, or diverged: the others must go on.
        except FedrecError as error:
            attempt = replace(before, value=None, note=str(error))
        finally:
            watch.stop()
        attempt = replace(attempt, seconds=round(watch.seconds, 3))
        if attempt.is_unfinished and not self._is_too_large(attempt):
            self._open[number] = run
        self.attempts = [attempt if n == number else one for n, one in enumerate(self.attempts)]
        # Written down after every piece of work, so that a call that is stopped loses one turn at most.
        self.logbook.record(self.attempts)
        self.heard(attempt.name_beside(self.runners[attempt.label]), attempt)

    def _plan(self, attempt: Attempt) -> Run:
        """A run from its first round, where this machine has the memory for it now."""
        plan = plan_run(self.runners[attempt.label].config(self.base, attempt.settings), self.data)
        _require_memory(plan)
        return Run(plan)

    def _judge(self, before: Attempt, run: Run, watch: Watch) -> Attempt:
        progress = run.progress
        # under a budget of privacy no round is chosen, so the last one counts
        chosen = progress.best_round >= 0
        if not chosen and watch.value is None:
            raise FedrecError(f"too slow for this budget: no figure after {progress.next_round} rounds")
        return replace(
            before,
            value=progress.best_value if chosen else watch.value,
            best_round=progress.best_round if chosen else progress.next_round - 1,
            rounds_run=progress.next_round,
            rounds=run.rules.rounds,
            upload=_upload_of(run),
            catalogue=run.evaluate("valid", progress.next_round - 1, ("coverage",)).mean().get(_coverage(run)),
            curve=watch.curve,
            valid=progress.best_metrics if chosen else watch.metrics,
            note=progress.diverged,
        )


def _require_memory(plan: RunPlan) -> None:
    """Refuse what this machine cannot hold now: one attempt that is too large would end all the others with it."""
    free = free_memory()
    needs = OVERHEAD * needs_of(plan.method, plan.clients, plan.attributes).total
    # On an accelerator the memory of the host says nothing.
    if free is not None and plan.world.device.type == "cpu" and needs > free:
        raise FedrecError(f"needs some {size_text(needs)} of memory, and {size_text(free)} are free now")


class Watch(Along):
    """Ends a piece of work when it is done; before something was measured only where that takes far too long."""

    def __init__(self, inner: Listener, clock: Clock, spent: float, curve: Mapping[str, float], work: float) -> None:
        super().__init__(inner)
        self.clock, self.spent, self.work = clock, spent, work
        self.curve = dict(curve)
        self.value: float | None = None
        self.metrics: dict[str, float] = {}
        self._begun = clock()

    @property
    def seconds(self) -> float:
        return self.spent + self.clock() - self._begun

    def round(self, log: RoundLog, score: Score | None, progress: Progress) -> None:
        super().round(log, score, progress)
        if score is None:
            if self.seconds - self.spent >= TOO_LONG * self.work:
                raise StopRun
            return
        self.value, self.metrics = score.value, score.metrics
        # The best so far, because a forecast from a curve that dips would be too low.
        best = max([score.value, *itertools.islice(reversed(self.curve.values()), 1)])
        self.curve[f"{self.seconds:.3f}"] = best
        if self.seconds - self.spent >= self.work:
            raise StopRun


def _upload_of(run: Run) -> float:
    """Bytes that a client sends in all rounds: those so far, and as many in each of the others as in the last."""
    ledger, clients, done = run.simulator.ledger(), run.world.clients, run.progress.next_round
    so_far = float(ledger.up.sum()) / clients
    last = ledger.rounds.get(done - 1, {}).get("up", 0) / clients
    return so_far + last * max(0, run.rules.rounds - done)


def _coverage(run: Run) -> str:
    """At the length of list that selects the round."""
    return f"coverage@{run.plan.protocol.select_metric.split('+')[0].split('@')[1]}"
