"""Where the seconds of a round go. Functions are wrapped from outside while it is measured; the engine knows nothing.

A wrapped function's seconds are its own, without those of the wrapped functions that it calls.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import numpy as np
import torch
from numpy.lib.stride_tricks import as_strided

from fedrec.federation import ClientData, Simulator
from fedrec.kernels import find
from fedrec.random import Purpose, stream
from fedrec.training import Samples, SequenceSamples, Triples
from fedrec_studies.bench.estimates import trains_on_samples
from fedrec_studies.bench.machine import settle

SAMPLING, TRAINING, PREPARING = "sampling", "training", "preparing"
WIRE, AGGREGATION, ANSWER = "wire", "aggregation", "answer"
PHASES = (SAMPLING, TRAINING, PREPARING, WIRE, AGGREGATION, ANSWER)
SAMPLERS = (Samples, SequenceSamples, Triples)


class Phases:
    """Seconds by phase."""

    def __init__(self, device: torch.device, clock: Callable[[], float] = time.perf_counter) -> None:
        self.seconds: dict[str, float] = dict.fromkeys(PHASES, 0.0)
        self._device, self._clock, self._open, self._since = device, clock, list[str](), 0.0

    @contextmanager
    def watching(self, simulator: Simulator) -> Iterator[Phases]:
        """Count what this simulator does."""
        method, client, server = simulator.method, simulator.client_side, simulator.server_side
        with ExitStack() as stack:
            for kind in SAMPLERS:
                stack.enter_context(self._time_calls(kind, "__init__", SAMPLING))
            for owner, name, phase in (
                (method, "local", TRAINING),
                (server, "broadcast", WIRE),
                (client.wire, "send_down", WIRE),
                (client.wire, "send_up", WIRE),
                (client.wire, "collect", WIRE),
                (simulator.group, "merged", WIRE),
                (server, "aggregate", AGGREGATION),
                (client, "receive", ANSWER),
                (method, "represent", PREPARING),
            ):
                if hasattr(owner, name):  # not every method's clients show more of themselves than what they trained
                    stack.enter_context(self._time_calls(owner, name, phase))
            yield self

    @contextmanager
    def _time_calls(self, owner: Any, name: str, phase: str) -> Iterator[None]:
        """Time the calls of one function of a class or of an object; a frozen object is changed by its dictionary."""
        whole, function = isinstance(owner, type), getattr(owner, name)
        timed = self._with_timer(function, phase)
        if whole:
            setattr(owner, name, timed)
        else:
            vars(owner)[name] = timed
        try:
            yield
        finally:
            if whole:
                setattr(owner, name, function)
            else:
                del vars(owner)[name]

    def _with_timer(self, function: Callable[..., Any], phase: str) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            self._turn()
            self._open.append(phase)
            try:
                return function(*arguments, **options)
            finally:
                self._turn()
                self._open.pop()

        return call

    def _turn(self) -> None:
        """What has passed since the last turn belongs to the innermost function."""
        settle(self._device)
        now = self._clock()
        if self._open:
            self.seconds[self._open[-1]] += now - self._since
        self._since = now


def split_kernel(simulator: Simulator, phases: dict[str, float]) -> bool:
    """Where a kernel draws samples as it trains, its time is split by drawing them again, alone. Whether it was."""
    if phases[SAMPLING] or not trains_on_samples(simulator.method):
        return False
    phases[SAMPLING] = min(seconds_of_draws(simulator.data, 1), phases[TRAINING])
    phases[TRAINING] -= phases[SAMPLING]
    return True


def seconds_of_draws(data: ClientData, round: int) -> float:
    """Drawing all negatives of a round by the compiled sampler, alone: kernels draw them as they train.

    0 where there is no such sampler.
    """
    kernel = find("count_draws", data.world.device) if data.negatives else None
    if kernel is None:
        return 0.0
    import numba

    row, key = np.zeros(data.world.items, np.int64), np.uint64(stream(data.world.seed, Purpose.NEGATIVES, round))
    counts = as_strided(row, (len(data.users), len(row)), (0, 8))  # all users in one row: nobody reads it
    spent = 0.0
    for _ in range(2):  # compile, then measure
        started = time.perf_counter()
        kernel(
            np.arange(len(data.users)),
            data.users,
            data.user_ptr,
            data.pool.indptr,
            data.pool.gap,
            data.world.items,
            data.negatives,
            data.unique == "user",
            key,
            counts,
        )
        spent = time.perf_counter() - started
    return float(spent / numba.get_num_threads())  # kernels draw in all threads
