"""A study: trials of one method on validation items, one after another, each written down when it ends.

What is tried next depends on the trials before it and on the seed alone, so a study that was interrupted goes on as if
it had not been. The test items are never ranked.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from fedrec import __version__
from fedrec.data.atomic import atomic_file, require_unlinked
from fedrec.errors import DivergedError, FedrecError
from fedrec.evaluation import protocol
from fedrec.experiment.config import RunConfig, require_same
from fedrec.experiment.driver import Listener, Run
from fedrec.experiment.folder import RunFolder
from fedrec.experiment.prepare import Prepared
from fedrec.experiment.run_plan import plan_run
from fedrec.experiment.search_space import Between, Space, describe_space, starting_point
from fedrec.federation.contract import Method
from fedrec.schema import COUNT, NUMBER, TEXT, damage_error, json_line, optional, read_json, table_of

# A result does not depend on these, so a study may go on with others.
MACHINE = ("device", "memory")
# The sampler models good and bad trials, and of fewer than these it would learn chance.
AT_RANDOM = 4
# In a space of few values most proposals repeat; after so many tries everything may count as tried.
TRIES = 20
TRIAL = {
    "number": COUNT,
    "params": {},
    "value": optional(NUMBER),
    "best_round": COUNT,
    "rounds_run": COUNT,
    "seconds": NUMBER,
    "valid": table_of(NUMBER, "metrics with numbers"),
    "note": TEXT,
}
STUDY = {"config": {}, "space": table_of(TEXT, "parameters with strings"), "version": TEXT}


@dataclass(frozen=True)
class Trial:
    """One setting and what it came to. `value` is None where it could not be trained, and `note` says why."""

    number: int
    params: dict[str, Any]
    value: float | None
    best_round: int = 0
    rounds_run: int = 0
    seconds: float = 0.0
    valid: dict[str, float] = field(default_factory=dict)
    note: str = ""


@dataclass(frozen=True)
class Budget:
    """When a study ends. `minutes` are those of all its trials together; one that has begun is ended."""

    trials: int
    minutes: float | None = None

    def over(self, done: Sequence[Trial]) -> bool:
        spent = sum(trial.seconds for trial in done)
        # Seconds of the trials and not of the clock: a study that is resumed tomorrow still has the rest of its budget.
        return len(done) >= self.trials or (self.minutes is not None and spent >= 60 * self.minutes)


class Study:
    """The folder of a study: `study.json` says what is searched, `trials.jsonl` what was tried, `best.toml` is a config
    for `fedrec run --config`."""

    def __init__(self, path: Path, config: RunConfig, space: Space) -> None:
        self.path, self.config, self.space = path, config, space
        self.about, self.log, self.best = path / "study.json", path / "trials.jsonl", path / "best.toml"

    def begin(self) -> list[Trial]:
        """The trials that are there already; an error where the folder holds something else."""
        # A link in the path could lead the study's files somewhere else.
        require_unlinked(self.path, self.path.parent)
        wanted: dict[str, Any] = {
            "config": self.config.to_dict(),
            "space": describe_space(self.space),
            "version": __version__,
        }
        # Something else lies there, which a study must not write into.
        if not self.about.exists() and self.path.exists() and any(self.path.iterdir()):
            raise FedrecError(f"{self.path} is not a study; choose another --out")
        if not self.about.exists() or not self.log.exists():  # nothing was tried: perhaps the data could not be read
            with atomic_file(self.about) as temporary:
                temporary.write_text(json.dumps(wanted, indent=1) + "\n", encoding="utf-8")
            return []
        there = self.began()
        # The machine may change between calls, so these are taken from the present one on both sides.
        free = {name: wanted["config"][name] for name in MACHINE}
        require_same({**there["config"], **free}, wanted["config"], self.path, longer=False)
        self.require_space(there["space"], wanted["space"])
        return self.read_trials()

    def require_space(self, there: Mapping[str, str], wanted: Mapping[str, str]) -> None:
        """Refuse to go on with a study of something else."""
        if there != wanted:
            raise FedrecError(
                f"{self.path} was started with another --space; continue with the same, or use another --out"
            )

    def began(self) -> dict[str, Any]:
        """The config and the space with which it was begun; empty where it was not."""
        try:
            return dict(read_json(self.about, "study", STUDY)) if self.about.exists() else {}
        except (ValueError, OSError) as error:
            raise damage_error(self.about, error) from None

    def read_trials(self) -> list[Trial]:
        """Trials that have ended."""
        if not self.log.exists():
            return []
        lines = self.log.read_text(encoding="utf-8").splitlines()
        found = [json_line(line, TRIAL) for line in lines]
        # A kill can cut only the last line short; damage elsewhere is the user's to decide on, for a rewrite would lose
        # it.
        if None in found[:-1]:
            raise FedrecError(
                f"line {found.index(None) + 1} of {self.log} is no trial; mend or remove that line: "
                "those after it would be lost"
            )
        return [Trial(**values) for values in found if values is not None]

    def record(self, done: Sequence[Trial]) -> None:
        """All trials so far and the best setting among them."""
        # All lines are written anew, so that a kill leaves either the old file or the new one.
        with atomic_file(self.log) as temporary:
            temporary.write_text("".join(json.dumps(asdict(trial)) + "\n" for trial in done), encoding="utf-8")
        if (best := best_of(done)) is not None:
            with atomic_file(self.best) as temporary:
                temporary.write_text(self._toml(best, len(done)), encoding="utf-8")

    def _toml(self, best: Trial, trials: int) -> str:
        import tomli_w

        config = chosen_config(self.config, best).to_dict()
        metric = protocol(self.config.protocol).select_metric
        about = (
            f"# By fedrec {__version__}: trial {best.number + 1} of {trials}, {metric} {best.value:.4f} on the "
            f"validation items,\n# round {best.best_round + 1} of {best.rounds_run}. Test items were not ranked.\n"
        )
        return about + tomli_w.dumps({name: value for name, value in config.items() if name not in MACHINE})

    @contextmanager
    def lock(self) -> Iterator[None]:
        """A lock: two studies that write to one folder would lose each other's trials."""
        with RunFolder(self.path).lock():
            yield


def best_of(done: Sequence[Trial]) -> Trial | None:
    """The highest value, the first among equals; None where none could be trained."""
    # `max` keeps the first among equals, so a later trial must be better to replace it.
    return max((trial for trial in done if trial.value is not None), key=lambda trial: trial.value or 0.0, default=None)


def chosen_config(config: RunConfig, trial: Trial) -> RunConfig:
    """The config of a trial."""
    return replace(config, params={**config.params, **trial.params})


def require_choosable(config: RunConfig) -> None:
    """Refuse what would choose by the test items, or cannot choose."""
    # Choosing settings by test items would report a maximum as an estimate.
    if protocol(config.protocol).select_on != "validation":
        raise FedrecError(
            f"protocol {config.protocol} chooses rounds by the test items; tune under one that does not, e.g. honest"
        )
    if config.train is not None and config.valid is None:
        raise FedrecError("there is no validation part to tune on; give one with --valid")


def search(
    study: Study,
    method: Method,
    budget: Budget,
    on_trial: Callable[[Trial, Trial], None],
    listener: Callable[[int], Listener],
    start: Mapping[str, Any] | None = None,
    kept: Sequence[Trial] = (),
) -> list[Trial]:
    """Go on with a study until its budget is spent; `on_trial` hears of each trial and the best so far.

    The first trial is what the method has by itself, except for what `start` says. `kept`: trials of the same study
    that are not in its folder, because another machine made them; they are its beginning.
    """
    require_choosable(study.config)
    # Before any work, so that a missing package is said at once.
    sampler = _optuna()
    study.begin()
    # The method's own settings are the first trial, so that a search does not end below them.
    first = starting_point(method, study.space) | dict(start or {})

    def propose_next(done: Sequence[Trial]) -> tuple[int, dict[str, Any]] | None:
        if budget.over(done):
            return None
        params = propose(sampler, study.space, first, done, study.config.seed)
        return None if params is None else (len(done), params)

    with study.lock():
        # Read again under the lock: another process may have added trials since.
        here = study.read_trials()
        done = _join_beginnings(here, kept, study.path)
        if len(done) > len(here):
            study.record(done)
        return run_trials(
            study, done, propose_next, lambda done: on_trial(done[-1], best_of(done) or done[-1]), listener
        )


def run_trials(
    study: Study,
    done: list[Trial],
    propose_next: Callable[[Sequence[Trial]], tuple[int, dict[str, Any]] | None],
    on_trial: Callable[[Sequence[Trial]], None],
    listener: Callable[[int], Listener],
) -> list[Trial]:
    """Try one setting after another until nothing is proposed; each is written down when it ends.

    `propose_next`: a number for people and the setting, given all trials so far. `on_trial`: hears of all of them, the
    newest last. The data is prepared once.
    """
    data: Prepared | None = None
    while (proposal := propose_next(done)) is not None:
        number, params = proposal
        trial, data = try_setting(study.config, params, len(done), listener(number), data)
        done = [*done, trial]
        # Before anybody hears of it, so that what was announced is never tried again.
        study.record(done)
        on_trial(done)
    return done


def _join_beginnings(here: Sequence[Trial], kept: Sequence[Trial], path: Path) -> list[Trial]:
    """The longer of two beginnings of one study."""
    shorter, longer = sorted((kept, here), key=len)
    # Values are compared as well as settings, since the same beginning on other data is another study.
    if any((a.params, a.value) != (b.params, b.value) for a, b in zip(shorter, longer, strict=False)):
        raise FedrecError(f"{path} has other trials than those kept elsewhere; move it away to go on with those")
    return list(longer)


def try_setting(
    config: RunConfig, params: Mapping[str, Any], number: int, listener: Listener, data: Prepared | None
) -> tuple[Trial, Prepared | None]:
    """One trial: train, choose the round on validation. A setting that cannot be trained is one without a value."""
    started, trial = time.perf_counter(), Trial(number, dict(params), None)
    try:
        run = Run(plan_run(chosen_config(config, trial), data))
        data = run.prepared
        if run.prepared.valid is None:
            raise _NothingToChooseBy("this data has no validation part to tune on")
        progress = run.choose(listener)
        trial = replace(
            trial,
            value=progress.best_value,
            best_round=progress.best_round,
            rounds_run=progress.next_round,
            valid=progress.best_metrics,
            note=progress.diverged,
        )
    except _NothingToChooseBy:
        # No other setting could do better, so the study ends instead of recording failures.
        raise
    except FedrecError as error:
        if number == 0 and not isinstance(error, DivergedError):
            # What the method has by itself does not work here, and neither will what is near.
            raise
        trial = replace(trial, note=str(error))
    finally:
        listener.stop()
    # With its time, even where it failed: the budget was spent all the same.
    return replace(trial, seconds=round(time.perf_counter() - started, 2)), data


class _NothingToChooseBy(FedrecError):
    """No trial of the study can have a value."""


def propose(
    optuna: Any, space: Space, start: Mapping[str, Any], done: Sequence[Trial], seed: int
) -> dict[str, Any] | None:
    """What to try next: what the method has by itself, then what the trials so far suggest; None: all was tried."""
    for again in range(TRIES):
        # The sampler's seed depends on how many trials there are, so a resumed study proposes what it would have
        # proposed.
        values = _ask_sampler(optuna, space, done, [seed, len(done), again])
        if not done:
            values |= start
        if all(values != trial.params for trial in done):
            return values
    return None


def _ask_sampler(optuna: Any, space: Space, done: Sequence[Trial], seed: list[int]) -> dict[str, Any]:
    # Hashed together rather than added, since different numbers may have the same sum.
    number = int(np.random.SeedSequence(seed).generate_state(1)[0])
    sampler = optuna.samplers.TPESampler(seed=number, n_startup_trials=AT_RANDOM)
    # A fresh study each time: its only state is what trials.jsonl says, which makes resuming exact.
    study = optuna.create_study(direction="maximize", sampler=sampler)
    kinds = {name: _distribution(optuna, values) for name, values in space.items()}
    study.add_trials([_as_sampled(optuna, space, kinds, trial) for trial in done])
    asked = study.ask(kinds).params
    return {name: space[name].neat(asked[name]) for name in space}


def _as_sampled(optuna: Any, space: Space, kinds: Mapping[str, Any], trial: Trial) -> Any:
    """A trial as the sampler knows it: by the parameters searched now. One of an earlier search may have others."""
    params = {name: trial.params[name] for name, values in space.items() if values.holds(trial.params.get(name))}
    known = {name: kinds[name] for name in params}
    # A failed trial counts as worthless, so that the sampler keeps away from its neighbourhood.
    return optuna.trial.create_trial(params=params, distributions=known, value=trial.value or 0.0)


def _distribution(optuna: Any, values: Any) -> Any:
    if not isinstance(values, Between):
        return optuna.distributions.CategoricalDistribution(values.values)
    kind = optuna.distributions.IntDistribution if values.whole else optuna.distributions.FloatDistribution
    # By its logarithm where a range spans decades, or nine tenths of all tries would fall into the last one.
    return kind(values.low, values.high, log=values.log)


def _optuna() -> Any:
    try:
        import optuna
    except ImportError:
        raise FedrecError('fedrec tune needs optuna: pip install "fedrec[tune]"') from None
    # Otherwise it reports every study that it creates into our progress display.
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    return optuna
