"""A sweep: every combination of listed values, judged on validation items. What was tried before is not tried again."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from fedrec.errors import FedrecError
from fedrec.experiment.driver import Listener
from fedrec.experiment.params import parse_settings
from fedrec.experiment.search_space import Choices, Space, dimension
from fedrec.experiment.tuning import Study, Trial, require_choosable, run_trials
from fedrec.federation.contract import Method


class Sweep(Study):
    """The folder of a sweep: that of a study, to which other values can be added."""

    def require_space(self, there: Mapping[str, str], wanted: Mapping[str, str]) -> None:
        if set(there) != set(wanted):
            raise FedrecError(f"{self.path} contains a sweep of {', '.join(there)}; use another --out")


def split_settings(settings: Sequence[str]) -> tuple[dict[str, str], dict[str, str]]:
    """What is swept (`lr=0.1,0.5`), and what is the same in all runs (`dim=16`)."""
    given = parse_settings(settings)
    swept = {name: text for name, text in given.items() if "," in text}
    if not swept:
        raise FedrecError("nothing to sweep: list at least two values of a parameter, e.g. --set lr=0.1,0.5")
    return swept, {name: text for name, text in given.items() if name not in swept}


def grid_of(method: Method, swept: Mapping[str, str]) -> dict[str, Choices]:
    """The listed values, each checked as a value of its parameter."""
    found = {}
    for name, text in swept.items():
        values = dimension(method, name, text)
        if not isinstance(values, Choices):
            raise FedrecError(f"--set {name}={text}: list values separated by commas; ranges are for fedrec tune")
        found[name] = values
    return found


def combinations(space: Space) -> list[dict[str, Any]]:
    values = [choices.values for choices in space.values() if isinstance(choices, Choices)]
    return [dict(zip(space, row, strict=True)) for row in itertools.product(*values)]


def sweep(study: Sweep, on_trial: Callable[[Trial], None], listener: Callable[[int], Listener]) -> list[Trial]:
    """Run what has not been run yet; returns every combination in its order."""
    require_choosable(study.config)
    study.begin()
    wanted = combinations(study.space)

    def propose(done: Sequence[Trial]) -> tuple[int, dict[str, Any]] | None:
        tried = [trial.params for trial in done]
        return next(((place, params) for place, params in enumerate(wanted) if params not in tried), None)

    with study.lock():
        done = run_trials(study, study.read_trials(), propose, lambda done: on_trial(done[-1]), listener)
    return [trial for params in wanted for trial in done if trial.params == params]
