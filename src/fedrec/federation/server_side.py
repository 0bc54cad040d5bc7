"""The server's side of a method: plan, broadcast, aggregate, answer, offer. It sees messages, never a client's data.

A round that expected uploads and got none leaves the server as it was, and nobody is answered.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

from fedrec.errors import DivergedError
from fedrec.federation.advice import decomposable, remedy_of
from fedrec.federation.contract import Answer, Cohort, Down, Method, Plan, Tensors, World, cohorts_of
from fedrec.federation.update import Update


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

    def aggregate(self, update: Update, plan: Plan, round: int) -> Answer | None:
        """Take what arrived; returns who is answered."""
        if len(plan.uploads()) and not len(update.clients):
            return None
        ups = update.ups(self.world.dtype)
        for name in _broken(ups.reduced):
            what = f"the upload '{name}' is no longer finite in round {round + 1}"
            raise DivergedError(what, remedy_of(self.method))
        with decomposable(self.method, round):
            self.tensors = self.method.aggregate(self.tensors, ups, round)
        return self.method.answer(self.tensors, plan, ups.clients, round)

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


def _broken(uploads: Tensors) -> list[str]:
    """Those that are not finite; a device is asked once about all of them."""
    sums = [value.sum().double() for value in uploads.values()]
    finite = torch.stack(sums).isfinite().tolist() if sums else []
    return [name for name, good in zip(uploads, finite, strict=True) if not good]
