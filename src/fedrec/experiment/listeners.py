"""Listeners that hear along with another one, and the protocol of trackers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

from fedrec.errors import FedrecError
from fedrec.experiment.driver import Listener, Run
from fedrec.experiment.opening import Chosen
from fedrec.federation.loop import Progress, Score
from fedrec.federation.simulator import RoundLog
from fedrec.schema import is_number


class Along(Listener):
    """Passes everything on to the listener within."""

    def __init__(self, inner: Listener) -> None:
        self.inner = inner

    def start(self, run: Run) -> None:
        self.inner.start(run)

    def round(self, log: RoundLog, score: Score | None, progress: Progress) -> None:
        self.inner.round(log, score, progress)

    def finish(self, run: Run, chosen: int) -> None:
        self.inner.finish(run, chosen)

    def stop(self) -> None:
        self.inner.stop()


class Keeping(Along):
    """Holds on to the finished run."""

    chosen: Chosen

    def finish(self, run: Run, chosen: int) -> None:
        super().finish(run, chosen)
        self.chosen = Chosen(run, chosen)


class Several(Listener):
    """Tells all of them."""

    def __init__(self, listeners: Sequence[Listener]) -> None:
        self.listeners = listeners

    def start(self, run: Run) -> None:
        for one in self.listeners:
            one.start(run)

    def round(self, log: RoundLog, score: Score | None, progress: Progress) -> None:
        for one in self.listeners:
            one.round(log, score, progress)

    def finish(self, run: Run, chosen: int) -> None:
        for one in self.listeners:
            one.finish(run, chosen)

    def stop(self) -> None:
        for one in self.listeners:
            one.stop()


@runtime_checkable
class Tracker(Protocol):
    """What keeps a record of runs elsewhere: TensorBoard, MLflow, Weights & Biases, a list in memory."""

    def begin(self, settings: Mapping[str, Any]) -> None:
        """A run starts, or goes on; `settings` are those of its config."""

    def log(self, values: Mapping[str, float], round: int) -> None:
        """Figures of a round, counted from 1: loss, seconds, bytes, and `valid/ndcg@10`, ... where it was evaluated."""

    def end(self, results: Mapping[str, float]) -> None:
        """`test/ndcg@10`, ... of a finished run; empty where it was interrupted."""


class Tracking(Listener):
    """A tracker as a listener."""

    def __init__(self, tracker: Tracker) -> None:
        self.tracker, self.open = tracker, False

    def start(self, run: Run) -> None:
        self.open = True
        self.tracker.begin(run.config.to_dict())

    def round(self, log: RoundLog, score: Score | None, progress: Progress) -> None:
        values: dict[str, Any] = {"seconds": log.seconds, "bytes_up": log.bytes_up, "bytes_down": log.bytes_down}
        values |= {name: value for name, value in log.observed.items() if is_number(value)}
        values |= {} if score is None else {f"valid/{name}": value for name, value in score.metrics.items()}
        self.tracker.log(values, log.round + 1)

    def finish(self, run: Run, chosen: int) -> None:
        assert run.result is not None, "a finished run has a result"
        self._end({f"test/{name}": value for name, value in run.result.test.items()})

    def stop(self) -> None:
        if self.open:
            self._end({})

    def _end(self, results: Mapping[str, float]) -> None:
        self.open = False
        self.tracker.end(results)


class Calling(Tracking):
    """A plain function, called with the figures of every round."""

    def __init__(self, function: Callable[[dict[str, float]], Any]) -> None:
        self.function = function
        super().__init__(self)

    def begin(self, settings: Mapping[str, Any]) -> None: ...

    def log(self, values: Mapping[str, float], round: int) -> None:
        self.function({"round": round, **values})

    def end(self, results: Mapping[str, float]) -> None: ...


def listener_for(callback: Any) -> Listener:
    """A listener, a tracker or a function of the figures of a round."""
    if isinstance(callback, Listener):
        return callback
    if isinstance(callback, Tracker):
        return Tracking(callback)
    if callable(callback) and not isinstance(callback, type):
        return Calling(callback)
    raise FedrecError(
        f"{callback!r} cannot follow a run: give a function of a round's metrics, a Listener, or an "
        "object with begin, log and end"
    )


def __getattr__(name: str) -> Any:
    """Import TensorBoard from where it is now: it was here, and the manual said so."""
    if name == "TensorBoard":
        from fedrec.experiment import trackers

        return trackers.TensorBoard
    raise AttributeError(f"module '{__name__}' has no attribute '{name}'")
