"""The server's side of a method: plan, broadcast, aggregate, answer, offer. It sees messages, never a client's data.

A round that expected uploads and got none leaves the server as it was, and nobody is answered.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping

import numpy as np
import torch
from torch import Tensor

from fedrec.errors import DivergedError
from fedrec.federation.advice import divergence_remedy, explain_divergence
from fedrec.federation.clients import Figure
from fedrec.federation.contract import Answer, Cohort, Down, Method, Plan, Tensors, Ups, World, cohorts_of
from fedrec.federation.figures import Reading
from fedrec.federation.update import Update

Watch = Callable[[Mapping[str, Figure]], None]
"""Is given a number for every upload, which is finite where all of the upload's numbers are."""


class ServerSide:
    def __init__(self, method: Method, world: World, attributes: Tensor | None = None) -> None:
        self.method, self.world = method, world
        self.tensors: Tensors = method.init_server(world, attributes)

    def plan(self, round: int) -> Plan:
        return self.method.plan(self.world, self.tensors, round)

    def broadcast(self, clients: np.ndarray, round: int) -> Down:
        return self.method.broadcast(self.tensors, clients, round)

    def offer(self, clients: np.ndarray, round: int, items: Tensor) -> Down:
        return self.method.offer(self.tensors, clients, round, items)

    def aggregate(self, update: Update, plan: Plan, round: int, watch: Watch | None = None) -> Answer | None:
        """Take what arrived; returns who is answered. `watch` looks later whether it was finite; None: now."""
        if len(plan.uploads()) and not len(update.clients):
            return None
        ups = update.ups(self.world.dtype)
        figures = _figures(ups)
        if watch is not None:
            watch(figures)
        else:
            self.require_finite(dict(zip(figures, Reading(list(figures.values())).numbers(), strict=True)), round)
        with explain_divergence(self.method, round):
            self.tensors = self.method.aggregate(self.tensors, ups, round)
        return self.method.answer(self.tensors, plan, ups.clients, round)

    def require_finite(self, figures: Mapping[str, float], round: int) -> None:
        """Of uploads, by name."""
        for name, figure in figures.items():
            if not math.isfinite(figure):
                what = f"the upload '{name}' is no longer finite in round {round + 1}"
                raise DivergedError(what, divergence_remedy(self.method))

    # -- the schedule, as far as the server knows it now --

    def schedule(self) -> np.ndarray:
        """How often each client uploads in all rounds."""
        times = np.zeros(self.world.clients, dtype=np.int64)
        for number in range(self.method.rounds):
            times[self.plan(number).uploads()] += 1
        return times

    def first_uploads(self) -> Iterator[tuple[Cohort, int, int]]:
        """For every cohort one of the first clients that upload, and the round."""
        waiting = [cohort for cohort in cohorts_of(self.method, self.world) if len(cohort.clients)]
        for number in range(self.method.rounds):
            if not waiting:
                return
            sending = self.plan(number).uploads()
            first = [np.intersect1d(cohort.clients, sending)[:1] for cohort in waiting]
            found = list(zip(waiting, first, strict=True))
            yield from ((cohort, int(client[0]), number) for cohort, client in found if len(client))
            waiting = [cohort for cohort, client in found if not len(client)]


def _figures(ups: Ups) -> dict[str, Figure]:
    """Of sums their own sum, of single uploads how far their numbers lie apart: these are too many for a sum in double
    precision, which would copy them."""
    figures: dict[str, Figure] = {name: value.sum(dtype=torch.float64) for name, value in ups.reduced.items()}
    for name, parts in ups.gathered.items():
        figures[name] = sum((_width(value) for _, value in parts if value.numel()), 0.0)
    return figures


def _width(values: Tensor) -> Tensor:
    low, high = values.aminmax()
    return high.double() - low.double()
