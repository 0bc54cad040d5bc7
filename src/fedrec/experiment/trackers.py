"""Trackers of experiments by name: TensorBoard, MLflow, Weights & Biases, and those of other packages.

Each is a `Tracker`: it hears the settings when a run begins, the figures of every round, and the test metrics. Another
package adds its own with an entry point in the group `fedrec.listeners`: a function of the run folder that returns a
tracker, a listener, or a function of a round's figures.
"""

from __future__ import annotations

import os
import re
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from fedrec.errors import FedrecError, FedrecWarning, unknown
from fedrec.experiment.driver import Listener, Run, StopRun
from fedrec.experiment.listeners import Along, Tracker, listener_for
from fedrec.federation.loop import Progress, Score
from fedrec.federation.simulator import RoundLog
from fedrec.plugins import in_words

GROUP = "fedrec.listeners"
EXPERIMENT = "fedrec"
# MLflow refuses longer values.
LONGEST_PARAMETER = 6000


class TensorBoard:
    """A tracker that writes event files for `tensorboard --logdir FOLDER`."""

    def __init__(self, folder: str | Path) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError:
            raise FedrecError('TensorBoard is not installed: pip install "fedrec[tensorboard]"') from None
        self.folder, self._make = Path(folder), SummaryWriter

    def begin(self, settings: Mapping[str, Any]) -> None:
        self._writer: Any = self._make(str(self.folder))
        self._writer.add_text("settings", "\n".join(f"    {name} = {value}" for name, value in settings.items()))

    def log(self, values: Mapping[str, float], round: int) -> None:
        for name, value in values.items():
            self._writer.add_scalar(name, value, round)

    def end(self, results: Mapping[str, float]) -> None:
        for name, value in results.items():
            self._writer.add_scalar(name, value, 0)
        self._writer.close()


class MLflow:
    """A tracker that writes to the MLflow server or database of MLFLOW_TRACKING_URI, by default `mlflow.db` here.

    A run that is resumed goes on with the record of its folder. MLflow refuses `@` in names: it becomes `_at_`.
    """

    def __init__(self, folder: str | Path) -> None:
        try:
            import sqlalchemy  # noqa: F401  # the smaller of MLflow's two packages comes without
            from mlflow import MlflowClient
        except ImportError:
            raise FedrecError('MLflow is not installed: pip install "fedrec[mlflow]"') from None
        self.folder, self._make = Path(folder).resolve(), MlflowClient

    def begin(self, settings: Mapping[str, Any]) -> None:
        self._client: Any = self._make()
        name = os.environ.get("MLFLOW_EXPERIMENT_NAME", EXPERIMENT)
        there = self._client.get_experiment_by_name(name)
        experiment = there.experiment_id if there else self._client.create_experiment(name)
        self._run = self._find_run(experiment) or self._create_run(experiment, settings)
        self._client.update_run(self._run, status="RUNNING")

    def _find_run(self, experiment: str) -> str | None:
        """The run of this folder, where it was interrupted."""
        # Quotes would end the string in the query.
        place = str(self.folder).replace("'", "")
        found = self._client.search_runs([experiment], f"tags.\"fedrec.folder\" = '{place}'")
        # A finished run with the same folder is an older one, which must stay as it is.
        return next((run.info.run_id for run in found if run.info.status != "FINISHED"), None)

    def _create_run(self, experiment: str, settings: Mapping[str, Any]) -> str:
        tags = {"fedrec.folder": str(self.folder).replace("'", "")}
        made: str = self._client.create_run(experiment, run_name=self.folder.name, tags=tags).info.run_id
        params = {**settings, **settings.get("params", {})}
        for name, value in params.items():
            if name != "params":
                self._client.log_param(made, name, str(value)[:LONGEST_PARAMETER])
        return made

    def log(self, values: Mapping[str, float], round: int) -> None:
        for name, value in values.items():
            self._client.log_metric(self._run, _plain(name), value, step=round)

    def end(self, results: Mapping[str, float]) -> None:
        for name, value in results.items():
            self._client.log_metric(self._run, _plain(name), value)
        # Without results the run was interrupted, so the next call may go on with it.
        self._client.set_terminated(self._run, "FINISHED" if results else "KILLED")


class WandB:
    """A tracker for Weights & Biases, whose own settings (WANDB_PROJECT, WANDB_MODE, ...) say where to."""

    def __init__(self, folder: str | Path) -> None:
        try:
            import wandb
        except ImportError:
            raise FedrecError('Weights & Biases is not installed: pip install "fedrec[wandb]"') from None
        self.folder, self._wandb = Path(folder).resolve(), wandb

    def begin(self, settings: Mapping[str, Any]) -> None:
        project = os.environ.get("WANDB_PROJECT", EXPERIMENT)
        # Resuming is left to its own settings, which say where and whether.
        self._run: Any = self._wandb.init(project=project, name=self.folder.name, config=dict(settings), resume="allow")

    def log(self, values: Mapping[str, float], round: int) -> None:
        self._run.log(dict(values), step=round)

    def end(self, results: Mapping[str, float]) -> None:
        self._run.summary.update(dict(results))
        self._run.finish(exit_code=0 if results else 255)


def _plain(name: str) -> str:
    return re.sub(r"[^\w\-. /]", "_", name.replace("@", "_at_"))


OWN: dict[str, Callable[[Path], Any]] = {
    "tensorboard": lambda folder: TensorBoard(folder / "events"),
    "mlflow": MLflow,
    "wandb": WandB,
}


def make_listener(name: str, folder: Path) -> Listener:
    """Make the listener of a name for a run in this folder; FedrecError where there is none, or it cannot be used."""
    return Harmless(listener_for(_find_maker(name)(folder)), name)


def _find_maker(name: str) -> Callable[[Path], Any]:
    from importlib.metadata import entry_points

    if name in OWN:
        return OWN[name]
    points = {point.name: point for point in entry_points(group=GROUP)}
    if name not in points:
        raise unknown("tracker", name, [*OWN, *points])
    try:
        maker: Callable[[Path], Any] = points[name].load()
    # Whatever its module does when it is imported must not end the run.
    except (Exception, SystemExit) as error:
        raise FedrecError(f"the listener '{name}' cannot be used: {in_words(error)}") from error
    return maker


class Harmless(Along):
    """A listener whose failure ends its own record and not the run: a server of figures may be away for an hour."""

    def __init__(self, inner: Listener, name: str) -> None:
        super().__init__(inner)
        self.name = name
        self.failed = False

    def start(self, run: Run) -> None:
        self._try(lambda: self.inner.start(run))

    def round(self, log: RoundLog, score: Score | None, progress: Progress) -> None:
        self._try(lambda: self.inner.round(log, score, progress))

    def finish(self, run: Run, chosen: int) -> None:
        self._try(lambda: self.inner.finish(run, chosen))

    def stop(self) -> None:
        self._try(self.inner.stop)

    def _try(self, call: Callable[[], None]) -> None:
        if self.failed:
            return
        try:
            call()
        # A wish to stop the run is no failure of the listener.
        except StopRun:
            raise
        except Exception as error:
            # Warned of once: a server that is away would otherwise fail in every round.
            self.failed = True
            warnings.warn(
                f"{self.name} records nothing more of this run, which goes on: {in_words(error)}",
                FedrecWarning,
                stacklevel=2,
            )


__all__ = ["OWN", "MLflow", "TensorBoard", "Tracker", "WandB", "make_listener"]
