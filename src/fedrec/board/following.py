"""A run while it goes on: its log read as it grows, kept in little memory however long the run is."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from fedrec.experiment.folder import ROUND
from fedrec.schema import is_number, json_line

POINTS = 400  # of a curve that are kept: more than a chart has pixels to show
BLOCK = 1 << 20  # bytes of a log that are read at once
RECENT = 8  # rounds by which the pace is judged: the first ones also compile and load


@dataclass
class Thinned:
    """A curve of which every second point is dropped, and every second one from then on, once it is long."""

    rounds: list[int] = field(default_factory=list)
    values: list[float] = field(default_factory=list)
    _every: int = 1
    _count: int = 0
    _last: tuple[int, float] | None = None

    def add(self, round: int, value: float) -> None:
        self._last = round, value
        if self._count % self._every == 0:
            self.rounds.append(round)
            self.values.append(value)
        self._count += 1
        # Thinned by halves, so that the memory is bounded and the curve keeps its whole length.
        if len(self.rounds) >= 2 * POINTS:
            self.rounds, self.values = self.rounds[::2], self.values[::2]
            self._every *= 2

    def points(self) -> tuple[list[int], list[float]]:
        """Return the curve, its newest point always among it."""
        if self._last is None or (self.rounds and self.rounds[-1] == self._last[0]):
            return self.rounds, self.values
        return [*self.rounds, self._last[0]], [*self.values, self._last[1]]


@dataclass
class FollowedRun:
    """The figures of a run so far. `read_on` takes in what its log has gained."""

    path: Path
    metric: str = "ndcg@10"
    rounds: int = 0
    clients: int = 0
    lost: int = 0
    bytes_up: int = 0
    bytes_down: int = 0
    seconds: float = 0.0
    best: float | None = None
    best_round: int | None = None
    nodes: int | None = None
    """How many nodes of a federation answered in the last round."""
    quality: Thinned = field(default_factory=Thinned)
    loss: Thinned = field(default_factory=Thinned)
    uplink: Thinned = field(default_factory=Thinned)
    _recent: list[float] = field(default_factory=list)
    _offset: int = 0
    _inode: int = 0
    _rest: bytes = b""

    def read_on(self) -> bool:
        """Take in new lines; whether there were any. A log that was cut back, by a resumed run, is read again."""
        try:
            told = os.stat(self.path)
        except OSError:
            return False
        size, inode = told.st_size, told.st_ino
        # A shorter log or another file means that the run was resumed or begun again.
        if size < self._offset or inode != self._inode:
            vars(self).update(vars(FollowedRun(self.path, self.metric, _inode=inode)))
        before = self._offset
        with self.path.open("rb") as file:
            file.seek(self._offset)
            while block := file.read(BLOCK):
                self._offset += len(block)
                # The last piece has no line end yet and is kept until the rest of it arrives.
                *lines, self._rest = (self._rest + block).split(b"\n")
                for line in lines:
                    record = json_line(line.decode(errors="replace"), ROUND)
                    if record is not None:
                        self._take(record)
        return self._offset != before

    def _take(self, record: dict[str, Any]) -> None:
        self.rounds = int(record["round"]) + 1
        for name in ("lost", "bytes_up", "bytes_down"):
            if is_number(record.get(name)):
                setattr(self, name, getattr(self, name) + int(record[name]))
        if is_number(record.get("clients")):
            self.clients = int(record["clients"])
        if is_number(record.get("nodes")):
            self.nodes = int(record["nodes"])
        if is_number(record.get("seconds")):
            self.seconds += record["seconds"]
            self._recent = [*self._recent, record["seconds"]][-RECENT:]
        if is_number(record.get("loss")):
            self.loss.add(self.rounds, record["loss"])
        if is_number(record.get("bytes_up")):
            self.uplink.add(self.rounds, record["bytes_up"])
        self._judge(record.get("valid"))

    def _judge(self, valid: Any) -> None:
        value = valid.get(self.metric) if isinstance(valid, dict) else None
        if value is None or not is_number(value):
            return
        self.quality.add(self.rounds, value)
        if self.best is None or value > self.best:
            self.best, self.best_round = value, self.rounds

    def seconds_left(self, planned: int | None) -> float | None:
        """Estimate how long the rounds that are left will train; None as long as too few are known to judge by."""
        if planned is None or self.rounds < 2 or not self._recent:
            return None
        # The first round also compiles and loads; counted in, it would make every estimate too long.
        known = self._recent[1:] if self.rounds <= RECENT else self._recent
        # The median, because one slow round should not double what is left.
        return float(np.median(known)) * max(0, planned - self.rounds)


def spent_budget(privacy: Any, uploads: int) -> tuple[float, float] | None:
    """Read the epsilon after so many uploads, and at the end, off the curve that a run wrote down."""
    points: Sequence[Any] = privacy.get("spent", ()) if isinstance(privacy, dict) else ()
    if len(points) < 2:
        return None
    counts = [point["uploads"] for point in points]
    values = [point["epsilon"] for point in points]
    return float(np.interp(uploads, counts, values)), float(values[-1])
