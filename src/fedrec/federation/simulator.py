"""The simulator: a server and thousands of clients in one process, without copies, or in several that share the work.

In several processes every one holds the server and a shard of the clients; a `Group` adds up what the shards send.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from fedrec.errors import DivergedError
from fedrec.federation.advice import remedy_of
from fedrec.federation.blind import MakeBlindSums
from fedrec.federation.client_side import ClientSide, CohortState, Observed
from fedrec.federation.clients import ClientData, Histories
from fedrec.federation.contract import Answer, Method, Tensors
from fedrec.federation.group import ALONE, Group
from fedrec.federation.schema import Like, schema_of
from fedrec.federation.server_side import ServerSide
from fedrec.federation.stages import Stage
from fedrec.federation.update import Update
from fedrec.federation.wire import Ledger, Wire
from fedrec.random import Purpose, fold_array, stream


@dataclass
class RoundLog:
    """What a round looked like from outside."""

    round: int
    clients: int
    seconds: float
    bytes_up: int
    bytes_down: int
    observed: dict[str, float] = field(default_factory=dict)
    lost: int = 0


class Simulator:
    """Holds both sides and runs rounds. Randomness has no state: (server, states, round) is all."""

    def __init__(self, method: Method, data: ClientData, stages: Sequence[Stage] = (), memory: int = 8 << 30,
                 attributes: Tensor | None = None, sealed: bool = False, dropout: float = 0.0,
                 group: Group = ALONE, blind: MakeBlindSums | None = None) -> None:  # fmt: skip
        """`data`: of the clients that live in this process. `dropout`: the share of uploads that are lost on the way.

        `sealed`: nothing may leave that no noise reaches. `blind`: the server sees what secure sums let out.
        """
        self.method, self.data, self.world, self.dropout, self.group = method, data, data.world, dropout, group
        self.server_side = ServerSide(method, data.world, attributes)
        self.client_side = ClientSide(method, data, stages, memory, sealed, blind is not None)
        self.blind = None if blind is None else blind(schema_of(self.server_side, self.like()))

    @property
    def server(self) -> Tensors:
        return self.server_side.tensors

    @server.setter
    def server(self, tensors: Tensors) -> None:
        self.server_side.tensors = tensors

    @property
    def cohorts(self) -> list[CohortState]:
        """Of the clients in this process."""
        return self.client_side.cohorts

    @property
    def wire(self) -> Wire:
        """The door of the clients in this process."""
        return self.client_side.wire

    # -- one round --

    def round(self, number: int, before_answer: Callable[[int], None] | None = None) -> RoundLog:
        """`before_answer` may look at what clients have trained, before they receive anything back."""
        started = time.perf_counter()
        plan = self.server_side.plan(number)
        arriving = self.arriving(plan.uploads(), number)
        train = self.data.hosted(plan.train)
        blind = None if self.blind is None else self.blind.begin(plan.uploads(), number)
        try:
            update, observed = self.client_side.train(
                train, arriving, number, lambda some: self.server_side.broadcast(some, number), len(plan.uploads()),
                blind,
            )  # fmt: skip
        except DivergedError as error:  # the other processes must hear of it
            update, observed = Update(), Observed(diverged=error.what)
        observed = self._require_finite(observed, number)
        merged = self.group.merged(update)
        answer = self.server_side.aggregate(merged, plan, number)
        if before_answer is not None:
            paused = time.perf_counter()
            before_answer(number)
            started += time.perf_counter() - paused
        self._answer(answer, number)
        lost = len(plan.uploads()) - len(arriving) if len(merged.clients) or len(arriving) == 0 else 0
        if blind is not None:
            lost = len(plan.uploads()) if blind.given_up else lost
            for way, clients, sizes in blind.traffic():
                self.wire.ledger.record(way, number, clients, sizes)
        seconds = time.perf_counter() - started
        return self._log(number, len(plan.train), seconds, observed.means(), lost)

    def arriving(self, uploads: np.ndarray, number: int) -> np.ndarray:
        """Those of the planned uploads that are not lost: a client trains and keeps its state, and nobody hears."""
        if not self.dropout:
            return uploads
        draws = fold_array(stream(self.world.seed, Purpose.LOST, number), uploads) >> np.uint64(11)
        return uploads[draws * 2.0**-53 >= self.dropout]

    def _require_finite(self, observed: Observed, number: int) -> Observed:
        """The figures of all processes; a loss that has diverged ends the run."""
        observed = self.group.observed(observed)
        if observed.diverged:
            raise DivergedError(observed.diverged, remedy_of(self.method))
        if not math.isfinite(observed.total.get("loss", 0.0)):
            raise DivergedError(f"the loss is no longer finite in round {number + 1}", remedy_of(self.method))
        return observed

    def _answer(self, answer: Answer | None, number: int) -> None:
        if answer is None:
            return
        clients = self.data.clients if answer.clients is None else self.data.hosted(answer.clients)
        self.client_side.receive(clients, number, answer.make)

    def _log(self, number: int, clients: int, seconds: float, observed: dict[str, float], lost: int) -> RoundLog:
        entry = self.wire.ledger.rounds[number]
        up, down = self.group.totals([entry["up"], entry["down"]])
        return RoundLog(number, clients, seconds, int(up), int(down), observed, lost)

    # -- before a run, and beside it --

    def preview(self) -> tuple[list[str], list[str]]:
        """What clients of every cohort would send: the names, and what of it no noise reaches.

        An example client shows it, which has nobody's data.
        """
        names: set[str] = set()
        unprotected: set[str] = set()
        for _, client, number in self.server_side.first_uploads():
            example = self.like().example(self.method, self.world, client)
            down = self.server_side.broadcast(np.array([client]), number)
            sent, found = example.would_send(client, number, down)
            names |= sent
            unprotected |= found
        return sorted(names), sorted(unprotected)

    def like(self) -> Like:
        side = self.client_side
        return Like(self.data.negatives, self.data.unique, side.wire.stages, side.sealed)

    def schedule(self) -> np.ndarray:
        """How often each client uploads in all rounds, by what the server knows now."""
        return self.server_side.schedule()

    def held(self) -> dict[str, float]:
        """Bytes that a client keeps between rounds, and those among them that it scores with; means over clients."""
        kept, scoring = self.group.totals(self.client_side.held())
        return {"kept_per_client": kept / self.world.clients, "to_score_per_client": scoring / self.world.clients}

    def ledger(self) -> Ledger:
        """Of the clients in all processes."""
        return self.group.ledger(self.wire.ledger)

    # -- inference --

    def scores(self, round: int, items: Tensor | None = None, known: Histories | None = None,
               clients: np.ndarray | None = None) -> Iterator[tuple[np.ndarray, Tensor]]:  # fmt: skip
        """As `ClientSide.scores`, of the users in this process, with what the server offers now."""
        wanted = torch.arange(self.world.items, device=self.world.device) if items is None else items
        return self.client_side.scores(wanted, lambda some: self.server_side.offer(some, round, wanted), known, clients)

    def scores_of(self, user: int, round: int, items: Tensor, known: Histories | None = None) -> Tensor:
        """As `ClientSide.scores_of`, with what the server offers now."""
        return self.client_side.scores_of(user, items, lambda some: self.server_side.offer(some, round, items), known)
