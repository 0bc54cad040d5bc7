"""One run from plan to run folder: the driver behind `fedrec run` and `fedrec.run`."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

import torch

from fedrec.errors import DivergedError, FedrecError
from fedrec.evaluation import Evaluation
from fedrec.experiment.checks import require_tested, rules_of
from fedrec.experiment.config import RunConfig, require_same, with_columns
from fedrec.experiment.disk import DiskUse, Keep, require_disk
from fedrec.experiment.folder import ReadOnlyFolder, RunFolder, per_user_columns
from fedrec.experiment.interrupt import Interrupt, at_round_ends
from fedrec.experiment.kept import keep, require_unchanged
from fedrec.experiment.limits import require_room_for_uploads
from fedrec.experiment.observers import observer_of
from fedrec.experiment.plan_record import describe_plan
from fedrec.experiment.prepare import Part
from fedrec.experiment.result import Result
from fedrec.experiment.run_plan import Data, RunPlan, plan_run
from fedrec.experiment.run_summary import summary_of
from fedrec.experiment.states import States
from fedrec.federation.advice import divergence_remedy
from fedrec.federation.clients import Histories
from fedrec.federation.contract import Method
from fedrec.federation.group import ALONE, Group
from fedrec.federation.loop import Pause, Progress, Score, run_rounds
from fedrec.federation.simulator import RoundLog
from fedrec.plugins import answer_to_old_hooks

# Seconds. The first one comes early, so that even a short run has something to go on from.
FIRST_CHECKPOINT = 5.0
# A lost half minute is bearable, and more frequent states would cost more than they save.
CHECKPOINT_SECONDS = 30.0
# A large state is written less often, so that writing never takes more than this share of the time.
CHECKPOINT_SHARE = 0.05


class StopRun(Exception):
    """Raised by a listener or a callback: the run ends after this round as if it had been the last one."""


class Listener:
    """What a run reports while it goes on; the command line draws progress from it."""

    def __init_subclass__(cls) -> None:
        answer_to_old_hooks(cls, {"started": "start", "finished": "finish"})

    def start(self, run: Run) -> None: ...

    def round(self, log: RoundLog, score: Score | None, progress: Progress) -> None: ...

    def finish(self, run: Run, chosen: int) -> None:
        """All is written, and the run still stands in memory with its chosen round and its result."""

    def stop(self) -> None: ...


class Run:
    """The work of a plan: train, choose the round, test it, write the folder."""

    def __init__(self, plan: RunPlan, keep: Keep = "model") -> None:
        """`keep`: what stays in its folder once it has ended."""
        self.plan = plan
        self.config, self.method, self.prepared, self.world = plan.config, plan.method, plan.prepared, plan.world
        self.simulator = plan.make_simulator()
        # What is on disk has been held before, and to work out its size again would take longer than to open it.
        if not plan.is_trained:
            require_room_for_uploads(self.simulator)
        self.observer = observer_of(plan.method)
        self.rules = rules_of(plan, self.observer)
        # counted before the first round: only a schedule that no upload has changed may be relied on
        self.scheduled = self.simulator.schedule() if plan.claims_epsilon and plan.stages else None
        self.states = States(plan, self.simulator, self.rules, keep)
        self.progress = Progress()
        self.history: list[dict[str, Any]] = []
        self.result: Result | None = None
        self.disk: DiskUse | None = None
        self._before: Score | None = None  # of a round whose answer is about to change what clients score with
        self._seen: Evaluation | None = None  # the latest one that selection looked at
        self._seen_before: Evaluation | None = None  # that of `_before`

    # -- the work --

    def require_disk(self, place: Path) -> None:
        """Refuse what the disk of this folder cannot hold; otherwise `disk` says what it will take."""
        self.disk = require_disk(self, place, self.states.keep)

    def execute(self, folder: RunFolder | None = None, listener: Listener | None = None) -> Result:
        """Train, choose the round, test it, write everything. Interrupted, it leaves a folder that can be resumed."""
        require_tested(self.plan.protocol)
        listener = listener or Listener()
        chosen = self.train(folder, listener)
        result = self._finish(folder, chosen)
        listener.finish(self, chosen)
        return result

    def train(self, folder: RunFolder | None, listener: Listener) -> int:
        """Train, and make the chosen round the present state; returns which it is."""
        listener.start(self)
        if folder is None:
            # With nothing to save there is nothing to be gained from waiting for the end of a round.
            self._train(None, listener, Interrupt())
        else:
            if self.plan.group.first:
                # Written before the first round, so that an interrupted folder says what it is.
                keep(folder, self.prepared, self.config, self.plan.names_data)
                folder.write_plan(describe_plan(self.plan, self.rules))
            with at_round_ends() as interrupt:
                self._train(folder, listener, interrupt)
            # Before the chosen round takes the place of the present state, which a resume would need.
            self.states.save_end(folder, self.progress)
        return self.states.load_chosen(folder, self.progress)

    def choose(self, listener: Listener | None = None) -> Progress:
        """Train and choose the round on validation, no more: no test item is ranked, nothing is written."""
        listener = listener or Listener()
        listener.start(self)
        self._train(None, listener, Interrupt())
        return self.progress

    def _train(self, folder: RunFolder | None, listener: Listener, interrupt: Interrupt) -> None:
        def after_round(log: RoundLog, score: Score | None) -> None:
            record = _record(log, score)
            if folder is not None:
                record |= self._describe_inside(log.round)
                # Logged as it ends rather than at the end: a killed run keeps the figures of all its rounds.
                folder.log(record)
            self.history.append(record)
            try:
                listener.round(log, score, self.progress)
            except StopRun:
                # Not raised further, for the run ends as if this round had been the last one, test included.
                stop.wanted = True

        def save_state() -> None:
            if folder is not None:
                self.states.save(folder, self.progress)

        stop = _Checkpoints(self.plan.group, self.progress, None if folder is None else save_state, interrupt)
        try:
            run_rounds(
                self.simulator,
                self.progress,
                self.rules,
                self._select,
                lambda: self.states.keep_best(folder, self.progress),
                after_round,
                self._look_before,
                stop,
            )
        except KeyboardInterrupt:
            if self._is_between_rounds():
                save_state()
            raise

    def _is_between_rounds(self) -> bool:
        """Whether simulator and progress agree; in the midst of a round some clients have already moved on."""
        # The ledger knows of a round as soon as it begins, progress only when it has ended.
        return max(self.simulator.wire.ledger.rounds, default=-1) < self.progress.next_round

    def resume(self, folder: RunFolder) -> None:
        """Take over where a run with the same config left off."""
        # Half-written files of a killed process would otherwise stay for ever.
        folder.sweep()
        reached = self.states.resume(folder)
        if reached is not None:
            self.progress = reached
        # Rounds after the checkpoint are repeated, and their lines would stand twice.
        folder.forget_after(0 if reached is None else reached.next_round)
        self.history = folder.records()

    # -- evaluation --

    @cached_property
    def known_at_test(self) -> Histories | None:
        """What users' lists are computed from when test items are ranked; None: what was trained on."""
        return self.prepared.known_at_test(self.simulator.data)

    def _select(self, round: int) -> Score | None:
        part: Part = "test" if self.plan.protocol.select_on == "test" else "valid"
        if part == "valid" and self.prepared.valid is None:
            return None
        started = time.perf_counter()
        self._seen = self.evaluate(part, round, self.plan.protocol.selecting)
        means = self._seen.mean()
        return Score(self.plan.protocol.selection_value(means), means, time.perf_counter() - started)

    def _look_before(self, round: int) -> None:
        """Where clients are about to commit what they receive: how they do without it."""
        due = self.observer.looks_before_answer(round)
        # An observer looks across clients, of which each of several processes holds a shard only.
        if due and self.plan.group.size == 1:
            self.observer.before_answer(self.simulator, round)
        self._before = self._select(round) if due else None
        self._seen_before = None if self._before is None else self._seen

    def _describe_inside(self, round: int) -> dict[str, Any]:
        """What a record of a simulation may tell beside its metrics, in a round that is evaluated."""
        if not self.rules.is_due(round):
            return {}
        found: dict[str, Any] = {} if self._before is None else {"before": self._before.metrics}
        whole = self.plan.group.size == 1  # what looks across clients needs them all here
        inside = dict(self.method.round_parameters(round))
        if whole:
            inside |= self.observer.figures(self.simulator, round)
        if whole and self._seen_before is not None and self._seen is not None:
            inside |= self.observer.effect(self.simulator, self._seen_before, self._seen)
        return found | ({"inside": inside} if inside else {})

    def evaluate(self, part: Part, round: int, metrics: tuple[str, ...] | None = None) -> Evaluation:
        """Rank every user's held-out items of a part with the simulator's present state."""
        evaluator, catalogue = self.prepared.evaluator(part, metrics)
        ranked = None if catalogue is None else torch.from_numpy(catalogue).to(self.world.device)
        known = self.known_at_test if part == "test" else None
        what = ""
        try:
            for users, scores in self.simulator.scores(round, ranked, known):
                evaluator.update(users, scores)
        except DivergedError as error:
            what = error.what
        # All processes must agree to stop; one that went on alone would wait for the others for ever.
        if self.plan.group.any(bool(what)):
            raise DivergedError(
                what or "scores are no longer finite in another process", divergence_remedy(self.method)
            )
        if self.plan.group.size > 1:
            # Sums over users are combined before means are taken, as shards differ in size.
            evaluator.combine(self.plan.group.sum_arrays)
        return evaluator.result()

    # -- the end --

    def _finish(self, folder: RunFolder | None, chosen: int) -> Result:
        started = time.perf_counter()
        # the only time that a test item is ranked: whatever chooses has chosen
        test = self.evaluate("test", chosen)
        # Validation is ranked again with all metrics, where selection computed only its own.
        valid = self.evaluate("valid", chosen).mean() if self.prepared.valid is not None else {}
        # Counted as evaluation, or the seconds of training would depend on how many metrics were asked for.
        self.progress.seconds_evaluate += time.perf_counter() - started
        summary = summary_of(self, chosen, test, valid)
        per_user = per_user_columns(self.prepared, test)
        if folder is not None:
            folder.write_per_user(per_user)
            folder.write_ids(self.prepared)
            # The summary comes last among results, since its presence says that a run is finished.
            folder.write_summary(summary)
            if self.states.keep == "nothing":
                folder.drop_model()
        place = None if folder is None else folder.path
        self.result = Result(summary, test, per_user, tuple(self.history), self.config, self.prepared, place)
        return self.result


class _Checkpoints(Pause):
    """States to go on from, every now and then; and a signal or a listener's wish to stop takes effect."""

    def __init__(self, group: Group, progress: Progress, save: Callable[[], None] | None, interrupt: Interrupt) -> None:
        """`save`: writes the state; None where nothing is written."""
        self.group, self.progress, self.save, self.interrupt = group, progress, save, interrupt
        self.wanted = False  # by a listener, between two rounds of which an accelerator may have begun others
        # A monotonic clock, because that of the system may jump when it is set.
        self._next = time.monotonic() + min(FIRST_CHECKPOINT, CHECKPOINT_SECONDS)

    def is_due(self) -> bool:
        return self._is_late() or self.wanted or self.interrupt.heard is not None

    def _is_late(self) -> bool:
        return self.save is not None and time.monotonic() > self._next

    def __call__(self) -> None:
        group = self.group
        # the first process's clock decides for all: a state is collected from every one of them
        if self.save is not None and group.any(group.first and self._is_late()):
            began = time.monotonic()
            self.save()
            took = time.monotonic() - began
            # Counted from the end of writing, so that a slow disk never leads to writing all the time.
            self._next = began + took + max(CHECKPOINT_SECONDS, took / CHECKPOINT_SHARE)
        # Asked of all processes: a signal may reach only one of them.
        self.interrupt.obey(group.any(self.interrupt.heard is not None))
        if group.any(self.wanted):
            self.progress.stopped_early = True


def execute(
    config: RunConfig,
    out: Path | None = None,
    resume: bool = False,
    listener: Listener | None = None,
    data: Data = None,
    method: Method | None = None,
    group: Group = ALONE,
    keep: Keep = "model",
) -> Result:
    """Run `config` into the folder `out` (None: nothing is written). `method`: instead of the one that it names.

    `keep`: what stays of its states once it has ended.
    """
    if out is None:
        return Run(plan_run(config, data, method, group)).execute(None, listener)
    _require_place(out, config, resume, group)
    # Only the first process writes; several in one file would mix their lines.
    kind = RunFolder if group.first else ReadOnlyFolder
    goes_on = group.any(group.first and resume and RunFolder(out).config.exists())
    folder = kind.open(out) if goes_on else kind(out)
    if goes_on:
        with folder.lock():
            config = with_columns(config, folder.settings())
            # the config as it was begun: earlier versions recorded no columns
            run = Run(replace(plan_run(config, data, method, group), config=config), keep)
            # Compared with what the folder has kept, because files with the same name may hold other rows by now.
            require_unchanged(folder, config, run.prepared)
            # Asked before it goes on, since a full disk would cost the state as well as the rounds to come.
            run.require_disk(out)
            run.resume(folder)
            folder.reopen(config.to_dict())
            return run.execute(folder, listener)
    run = Run(plan_run(config, data, method, group), keep)
    run.require_disk(out)
    if group.first:
        folder = RunFolder.create(out, run.config.to_dict())
    with folder.lock():
        try:
            return run.execute(folder, listener)
        except FedrecError:
            # A mistake that shows in the first round leaves no folder behind that would block the next try.
            folder.discard_unused()
            raise


def _require_place(out: Path, config: RunConfig, resume: bool, group: Group) -> None:
    """The first process looks at the folder; all of them hear what is wrong with it."""
    problem, folder = "", RunFolder(out)
    try:
        if group.first and resume and folder.config.exists():
            begun = RunFolder.open(out).settings()
            require_same(begun, with_columns(config, begun).to_dict(), out)
        elif group.first:
            folder.require_free()
    except FedrecError as error:
        problem = str(error)
    if problem := group.share_text(problem):
        raise FedrecError(problem)


def _record(log: RoundLog, score: Score | None) -> dict[str, Any]:
    record: dict[str, Any] = {
        "round": log.round,
        "clients": log.clients,
        # Microseconds are far below what a clock on a shared machine can tell.
        "seconds": round(log.seconds, 6),
        "bytes_up": log.bytes_up,
        "bytes_down": log.bytes_down,
        # Left out where nothing is lost, so that lines of usual runs stay short and comparable with older ones.
        **({"lost": log.lost} if log.lost else {}),
        **log.observed,
    }
    if score is not None:
        record["valid"] = score.metrics
    return record
