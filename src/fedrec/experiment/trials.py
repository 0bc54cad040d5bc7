"""What a search or a sweep gives back in Python: every trial as a frame, and the settings of the best."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from fedrec.data.frames import make_frame
from fedrec.errors import FedrecError
from fedrec.experiment.config import RunConfig
from fedrec.experiment.search_space import settings_text
from fedrec.experiment.tuning import Trial, best_of, chosen_config


@dataclass(frozen=True, repr=False)
class Trials:
    """Settings of one method, judged by `metric` on validation items; test items were not ranked."""

    trials: tuple[Trial, ...]
    metric: str
    base: RunConfig
    pandas: bool = False

    @property
    def best(self) -> Trial:
        found = best_of(self.trials)
        if found is None:
            raise FedrecError(f"none of {len(self.trials)} settings could be trained ({self.trials[-1].note})")
        return found

    @property
    def params(self) -> Mapping[str, Any]:
        """The best settings, for `fedrec.run(method, data, **trials.params)`."""
        return dict(self.best.params)

    @property
    def settings(self) -> dict[str, Any]:
        """All fields of the best run, for `fedrec.run(method, data, config=trials.settings)`."""
        return chosen_config(self.base, self.best).to_dict()

    @property
    def frame(self) -> Any:
        """A row for every setting."""
        names = list(self.trials[0].params)
        columns = {name: [trial.params.get(name) for trial in self.trials] for name in names}
        columns |= {self.metric: [trial.value for trial in self.trials], "note": [trial.note for trial in self.trials]}
        columns |= {"round": [trial.best_round + 1 for trial in self.trials]}
        return make_frame(columns | {"seconds": [trial.seconds for trial in self.trials]}, self.pandas)

    def __repr__(self) -> str:
        best = self.best
        lines = [
            f"{settings_text(trial.params)}: {trial.note if trial.value is None else f'{trial.value:.4f}'}"
            + (" (best)" if trial is best else "")
            for trial in self.trials
        ]
        return "\n".join([f"{self.metric} on validation items", *lines])
