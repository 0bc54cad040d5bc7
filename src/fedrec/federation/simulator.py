"""The cohort simulator: thousands of clients as one tensor program, in chunks that fit a memory budget."""

from __future__ import annotations

import math
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from torch import Tensor

from fedrec.errors import DivergedError, FedrecError, some
from fedrec.federation.accumulator import Accumulator
from fedrec.federation.advice import covering, remedy_of
from fedrec.federation.clients import Chunk, ClientData, Histories, concatenated_ranges
from fedrec.federation.contract import Answer, Cohort, Method, Reduction, State, Tensors, Ups, cohorts_of
from fedrec.federation.stages import Stage
from fedrec.federation.wire import Wire


@dataclass
class RoundLog:
    """What a round looked like from outside."""

    round: int
    clients: int
    seconds: float
    bytes_up: int
    bytes_down: int
    observed: dict[str, float] = field(default_factory=dict)


@dataclass
class CohortState:
    """The state of one cohort's clients. `user_ptr[k]` is where the users of its k-th client start."""

    cohort: Cohort
    state: State
    user_ptr: np.ndarray

    def positions(self, clients: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Which of `clients` live here, and where."""
        if len(self.cohort.clients) == 0:
            return clients[:0], clients[:0]
        at = np.searchsorted(self.cohort.clients, clients)
        at = np.minimum(at, len(self.cohort.clients) - 1)
        here = self.cohort.clients[at] == clients
        return clients[here], at[here]


class Simulator:
    """Holds the server and all clients, and runs rounds. Randomness has no state: (server, states, round) is all."""

    def __init__(self, method: Method, data: ClientData, stages: Sequence[Stage] = (), memory: int = 8 << 30,
                 attributes: Tensor | None = None, sealed: bool = False) -> None:  # fmt: skip
        """`sealed`: nothing may leave that no noise reaches."""
        self.method, self.data, self.world, self.memory, self.sealed = method, data, data.world, memory, sealed
        self.wire = Wire(self.world, stages, memory // 4, method.disclosure.own_noise)
        self.server: Tensors = method.init_server(self.world, attributes)
        self.cohorts = [self._settle(cohort) for cohort in cohorts_of(method, self.world)]

    def _settle(self, cohort: Cohort) -> CohortState:
        state = self.method.init_clients(self.world, self.data.chunk(cohort.clients, cohort.name))
        users = np.diff(self.data.client_ptr)[cohort.clients]
        return CohortState(cohort, state, np.concatenate([[0], np.cumsum(users)]))

    # -- one round --

    def round(self, number: int, before_answer: Callable[[int], None] | None = None) -> RoundLog:
        """`before_answer` may look at what clients have trained, before they receive anything back."""
        try:
            return self._round(number, before_answer)
        except torch.linalg.LinAlgError:  # type: ignore[attr-defined]
            what = f"a matrix cannot be decomposed in round {number + 1}"
            raise DivergedError(what, remedy_of(self.method)) from None

    def _round(self, number: int, before_answer: Callable[[int], None] | None) -> RoundLog:
        started = time.perf_counter()
        plan = self.method.plan(self.world, self.server, number)
        self.wire.ledger.trained(number, len(plan.train))
        accumulator = Accumulator()
        observed: dict[str, float] = defaultdict(float)
        sending = np.ones(len(plan.train), bool) if plan.upload is None else np.isin(plan.train, plan.upload)
        for clients, send in ((plan.train[sending], True), (plan.train[~sending], False)):
            for members, chunk, where in self._chunks(clients):
                self._train(members, chunk, where, number, accumulator if send else None)
                for name, (total, count) in chunk.observed.items():
                    observed[name] += total
                    observed["#" + name] += count
        ups = self.wire.collect(accumulator, number)
        self._require_finite(ups, observed, number)
        self.server = self.method.aggregate(self.server, ups, number)
        if before_answer is not None:
            paused = time.perf_counter()
            before_answer(number)
            started += time.perf_counter() - paused
        self._answer(self.method.answer(self.server, plan, ups.clients, number), number)
        return self._log(number, len(plan.train), time.perf_counter() - started, observed)

    def _require_finite(self, ups: Ups, observed: Mapping[str, float], number: int) -> None:
        """Refuse what has diverged, by the loss and by what reached the server in sums and means."""
        lost = ["the loss"] if not math.isfinite(observed.get("loss", 0.0)) else []
        lost += [f"the upload '{name}'" for name, value in ups.reduced.items() if not bool(value.sum().isfinite())]
        if lost:
            raise DivergedError(f"{lost[0]} is no longer finite in round {number + 1}", remedy_of(self.method))

    def preview(self) -> tuple[list[str], list[str]]:
        """What the first client of every cohort that uploads would send: the names, and what of it no noise reaches.

        Nothing is sent or kept.
        """
        names: set[str] = set()
        unprotected: set[str] = set()
        for clients, number in self._first_uploads():
            for members, chunk, where in self._chunks(clients):
                taken = self._take(members, where)
                state = State(*({name: value.clone() for name, value in part.items()}
                                for part in (taken.per_client, taken.per_user)))  # fmt: skip
                down = self.method.broadcast(self.server, chunk.clients, number)
                _, payload = self.method.local(state, down, chunk, number)
                names |= payload.keys()
                unprotected |= self._require_covered(payload, chunk, number, Accumulator()).keys()
        return sorted(names), sorted(unprotected)

    def _first_uploads(self) -> Iterator[tuple[np.ndarray, int]]:
        """For every cohort the first client that uploads, and the round."""
        waiting = [members for members in self.cohorts if len(members.cohort.clients)]
        for number in range(self.method.rounds):
            if not waiting:
                return
            sending = np.sort(self.method.plan(self.world, self.server, number).uploads())
            first = [members.positions(sending)[0][:1] for members in waiting]
            yield from ((client, number) for client in first if len(client))
            waiting = [members for members, client in zip(waiting, first, strict=True) if not len(client)]

    def schedule(self) -> np.ndarray:
        """How often each client uploads in all rounds, by what the server knows now."""
        times = np.zeros(self.world.clients, dtype=np.int64)
        for number in range(self.method.rounds):
            times[self.method.plan(self.world, self.server, number).uploads()] += 1
        return times

    def _require_covered(self, payload: dict[str, Reduction], chunk: Chunk, number: int,
                         accumulator: Accumulator) -> dict[str, int]:  # fmt: skip
        """What no noise reaches; where nothing of that kind may leave, an error."""
        found = self.wire.unprotected(payload, len(chunk.clients), chunk.cohort, accumulator)
        if self.sealed and found:
            raise FedrecError(
                f"--epsilon: {self.method.info.name} sends {some(found)} without noise (round {number + 1}), so no "
                f"epsilon holds; {covering(self.method)}"
            )
        return found

    def _train(
        self, members: CohortState, chunk: Chunk, where: np.ndarray, number: int, accumulator: Accumulator | None
    ) -> None:
        down = self.method.broadcast(self.server, chunk.clients, number)
        self.wire.send_down(down, chunk.clients, number)
        state, payload = self.method.local(self._take(members, where), down, chunk, number)
        self._put(members, where, state)
        if accumulator is not None:
            self._require_covered(payload, chunk, number, accumulator)
            self.wire.send_up(payload, down, chunk.clients, chunk.cohort, number, accumulator)

    def _answer(self, answer: Answer | None, number: int) -> None:
        if answer is None:
            return
        clients = np.arange(self.world.clients) if answer.clients is None else answer.clients
        for members, chunk, where in self._chunks(clients):
            down = answer.make(chunk.clients)
            self.wire.send_down(down, chunk.clients, number)
            self._put(members, where, self.method.receive(self._take(members, where), down, chunk, number))

    def held(self) -> dict[str, float]:
        """Bytes that a client keeps between rounds, and those among them that it scores with; means over clients."""
        kept = scoring = 0
        idle = self.method.footprint(self.world).training_only
        for members in self.cohorts:
            for name, value in (members.state.per_client | members.state.per_user).items():
                size = value.numel() * value.element_size()
                kept += size
                scoring += size * (name not in idle)
        return {"kept_per_client": kept / self.world.clients, "to_score_per_client": scoring / self.world.clients}

    def _log(self, number: int, clients: int, seconds: float, observed: Mapping[str, float]) -> RoundLog:
        entry = self.wire.ledger.rounds[number]
        names = [name for name in observed if not name.startswith("#")]
        means = {name: observed[name] / max(observed["#" + name], 1) for name in names}
        return RoundLog(number, clients, seconds, entry["up"], entry["down"], means)

    # -- inference --

    def scores(self, round: int, items: Tensor | None = None,
               known: Histories | None = None) -> Iterator[tuple[np.ndarray, Tensor]]:  # fmt: skip
        """User indices of the data set and their logits, chunk by chunk; all clients, trained or not.

        `known` are the histories to answer from, where they are longer than what was trained on.
        Downloads for evaluation are not counted: a client that only serves its user keeps what it last received.
        """
        wanted = torch.arange(self.world.items, device=self.world.device) if items is None else items
        per_user = self.method.footprint(self.world).score
        everyone = np.arange(self.world.clients)
        for members, chunk, where in self._chunks(everyone, np.diff(self.data.client_ptr) * per_user):
            down = self.method.offer(self.server, chunk.clients, round, wanted)
            asked = replace(chunk, known=known)
            with torch.no_grad():
                yield chunk.users, self.method.score(self._take(members, where), down, asked, wanted)

    # -- chunks --

    def _chunks(
        self, clients: np.ndarray, cost: np.ndarray | None = None
    ) -> Iterator[tuple[CohortState, Chunk, np.ndarray]]:
        budget = self.memory // 2
        if cost is None:
            needed = self.method.footprint(self.world)
            cost = self.data.positives * needed.sample * (1 + self.data.negatives) + needed.client
            if needed.cache is not None and self.world.device.type == "cpu":
                budget = min(budget, needed.cache)
        for members in self.cohorts:
            here, where = members.positions(np.sort(clients))  # `_index` counts on ascending places
            for part in _pieces(cost[here], budget):
                chunk = self.data.chunk(here[part], members.cohort.name, self.wire.foldable)
                yield members, chunk, where[part]

    def _take(self, members: CohortState, where: np.ndarray) -> State:
        clients, users = self._index(where), self._index(self._users(members, where))
        return State(
            {name: value[clients] for name, value in members.state.per_client.items()},
            {name: value[users] for name, value in members.state.per_user.items()},
        )

    def _put(self, members: CohortState, where: np.ndarray, state: State) -> None:
        clients, users = self._index(where), self._index(self._users(members, where))
        for kept, new, index in (
            (members.state.per_client, state.per_client, clients),
            (members.state.per_user, state.per_user, users),
        ):
            for name, value in new.items():
                if value.data_ptr() != kept[name][index].data_ptr() or not isinstance(index, slice):
                    kept[name][index] = value

    def _users(self, members: CohortState, where: np.ndarray) -> np.ndarray:
        return concatenated_ranges(members.user_ptr[where], members.user_ptr[where + 1])

    def _index(self, where: np.ndarray) -> slice | Tensor:
        """A slice where possible: a view costs nothing and is updated in place."""
        if len(where) and where[-1] - where[0] + 1 == len(where):
            return slice(int(where[0]), int(where[-1]) + 1)
        return torch.from_numpy(where).to(self.world.device)


def _pieces(cost: np.ndarray, budget: int) -> Iterator[slice]:
    """Runs of clients whose cost stays within the budget (at least one client each)."""
    total = np.concatenate([[0], np.cumsum(cost)])
    start = 0
    while start < len(cost):
        stop = int(np.searchsorted(total, total[start] + budget, side="right")) - 1
        stop = max(start + 1, min(stop, len(cost)))
        yield slice(start, stop)
        start = stop
