"""Figures of a round, and how they come to the host: an accelerator is not waited for before somebody reads them."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from fedrec.federation.clients import Figure

ChunkFigures = Sequence[Mapping[str, tuple[Figure, Figure]]]
"""Totals and counts by name, chunk by chunk."""


@dataclass
class Observed:
    """Figures for the progress of a simulation, summed over clients. They are not sent."""

    total: dict[str, float] = field(default_factory=dict)
    count: dict[str, float] = field(default_factory=dict)
    diverged: str = ""  # what went wrong

    def add(self, figures: Mapping[str, tuple[float, float]]) -> None:
        for name, (total, count) in figures.items():
            self.total[name] = self.total.get(name, 0.0) + total
            self.count[name] = self.count.get(name, 0.0) + count

    @staticmethod
    def from_chunks(chunks: ChunkFigures, numbers: Iterable[float]) -> Observed:
        """`numbers`: what `figures_of` these chunks turned out to be."""
        found, number = Observed(), iter(numbers)
        for figures in chunks:
            found.add({name: (next(number), next(number)) for name in figures})
        return found

    def means(self) -> dict[str, float]:
        return {name: total / max(self.count[name], 1) for name, total in self.total.items()}


def figures_of(chunks: ChunkFigures) -> list[Figure]:
    return [figure for figures in chunks for both in figures.values() for figure in both]


class Reading:
    """Numbers on their way to the host. Those of an accelerator go in one copy, into memory that it may write to while
    the host goes on."""

    def __init__(self, figures: Sequence[Figure]) -> None:
        self._figures = [figure if _elsewhere(figure) else float(figure) for figure in figures]
        tensors = [figure.double() for figure in self._figures if isinstance(figure, Tensor)]
        self._there = torch.stack(tensors) if tensors else torch.zeros(0, dtype=torch.float64)
        self._event: torch.cuda.Event | None = None
        if self._there.device.type == "cuda":
            host = torch.empty(self._there.shape, dtype=torch.float64, pin_memory=True)
            self._there = host.copy_(self._there, non_blocking=True)
            self._event = torch.cuda.Event()
            self._event.record()

    def numbers(self) -> list[float]:
        """Waits until they are here."""
        if self._event is not None:
            self._event.synchronize()
        read = iter(self._there.tolist())
        return [next(read) if isinstance(figure, Tensor) else figure for figure in self._figures]


def _elsewhere(figure: Figure) -> bool:
    return isinstance(figure, Tensor) and figure.device.type != "cpu"


class Clock:
    """Seconds of a piece of work. An accelerator marks its beginning and its end when it comes to them, so that work
    which was asked for ahead is timed where it is done."""

    def __init__(self, device: torch.device) -> None:
        self.device, self._paused = device, 0.0
        self._marks = [self._mark()]

    def _mark(self) -> float | torch.cuda.Event:
        if self.device.type != "cuda":
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def leave_out(self, seconds: float) -> None:
        """What else was done in between."""
        self._paused += seconds

    def stop(self) -> None:
        self._marks.append(self._mark())

    @property
    def is_stopped(self) -> bool:
        """Whether the device has come to the end."""
        end = self._marks[-1]
        return isinstance(end, torch.cuda.Event) and end.query()

    def seconds(self) -> float:
        """Waits for the end."""
        start, end = self._marks
        if isinstance(start, torch.cuda.Event) and isinstance(end, torch.cuda.Event):
            end.synchronize()
            return start.elapsed_time(end) / 1000 - self._paused
        assert isinstance(start, float)
        assert isinstance(end, float)
        return end - start - self._paused
