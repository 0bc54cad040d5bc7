"""The clients' side: a group of hosted clients with their data, state and secret. It sees messages, never the server.

The group may be all clients of a simulation, a shard of them in one process of several, a company, or one device.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from fedrec.errors import FedrecError, list_few
from fedrec.federation.accumulator import Accumulator
from fedrec.federation.advice import explain_divergence, noise_remedy
from fedrec.federation.clients import (
    Chunk,
    ClientData,
    DeferredWork,
    Histories,
    concatenate_ranges,
    pointers,
    sort_if_needed,
)
from fedrec.federation.contract import Cohort, Down, Method, Reduction, State, Tensors, cohorts_of
from fedrec.federation.figures import ChunkFigures
from fedrec.federation.stages import Stage
from fedrec.federation.update import Update
from fedrec.federation.wire import Wire
from fedrec.kernels.device import to_device

if TYPE_CHECKING:
    from fedrec.federation.blind import BlindSum

MakeDown = Callable[[np.ndarray], Down]
"""What went down, for some of its clients."""


@dataclass
class CohortState:
    """The state of the hosted clients of one cohort. `user_ptr[k]` is where the users of its k-th client start.

    What training has left for later is done when the state is looked at.
    """

    cohort: Cohort
    unfinished: State  # with work on it left, or not
    user_ptr: np.ndarray
    # Kept by run, so that a later training of the very same run can drop the work instead of doing it.
    left: dict[range, list[DeferredWork]] = field(default_factory=dict)

    @property
    def state(self) -> State:
        self._finish(list(self.left))
        return self.unfinished

    @state.setter
    def state(self, state: State) -> None:
        self.left.clear()
        self.unfinished = state

    def to_train(self, run: range | None) -> State:
        """For a run of clients: what these have left need not be done any more, because they write all of it anew."""
        if run is None:
            return self.state
        # Dropped before the others are finished: their result would be overwritten at once by this training.
        self.left.pop(run, None)
        self._finish([other for other in self.left if other.start < run.stop and run.start < other.stop])
        return self.unfinished

    def _finish(self, runs: list[range]) -> None:
        for run in runs:
            for work in self.left[run]:
                work()
            # Deleted only afterwards, so that an interrupt leaves work that can be done again; doing it twice does no
            # harm.
            del self.left[run]

    def positions(self, clients: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Which of `clients`, ascending, live here, and where."""
        if len(self.cohort.clients) == 0:
            return clients[:0], clients[:0]
        # Full participation is the usual case, and comparing two arrays is cheaper than searching in one.
        if np.array_equal(clients, self.cohort.clients):
            return clients, np.arange(len(clients))
        at = np.searchsorted(self.cohort.clients, clients)
        # A number beyond the last one would index out of range; clamped, it simply fails the comparison below.
        at = np.minimum(at, len(self.cohort.clients) - 1)
        here = self.cohort.clients[at] == clients
        return clients[here], at[here]

    def users(self, where: np.ndarray) -> np.ndarray:
        return concatenate_ranges(self.user_ptr[where], self.user_ptr[where + 1])


class ClientSide:
    def __init__(
        self,
        method: Method,
        data: ClientData,
        stages: Sequence[Stage] = (),
        memory: int = 8 << 30,
        sealed: bool = False,
        apart: bool = False,
    ) -> None:
        """`sealed`: nothing may leave that no noise reaches. `apart`: each upload by itself, in a secure sum."""
        self.method, self.data, self.world, self.memory, self.sealed = method, data, data.world, memory, sealed
        # A quarter, because the chunk that is trained may fill half of the memory at the same time.
        self.wire = Wire(self.world, stages, memory // 4, method.disclosure.own_noise, data.secret, apart)
        self.cohorts = [self._init_cohort(cohort) for cohort in cohorts_of(method, self.world)]

    def _init_cohort(self, cohort: Cohort) -> CohortState:
        hosted = Cohort(cohort.name, self.data.select_hosted(cohort.clients))
        state = self.method.init_clients(self.world, self.data.chunk(hosted.clients, hosted.name))
        users = np.diff(self.data.client_ptr)[self.data.positions(hosted.clients)]
        self._require_rows("user", state.per_user, int(users.sum()))
        self._require_rows("client", state.per_client, len(hosted.clients))
        return CohortState(hosted, state, pointers(users))

    def _require_rows(self, owner: str, tensors: Tensors, rows: int) -> None:
        """Kernels count on it: they would read and write beyond the end of what is shorter."""
        # A compiled kernel checks no bounds, so a short tensor would corrupt memory instead of raising an error.
        for name, value in tensors.items():
            if not value.dim() or len(value) != rows:
                raise FedrecError(
                    f"{type(self.method).__name__}.init_clients made per_{owner}['{name}'] as {list(value.shape)}; its "
                    f"first axis must be the {rows:,} {owner}s of the chunk"
                )

    # -- what clients do --

    def train(
        self,
        clients: np.ndarray,
        sending: np.ndarray,
        round: int,
        down: MakeDown,
        fewest: float | None = None,
        blind: BlindSum | None = None,
        will_be_read: bool = False,
    ) -> tuple[Update, ChunkFigures]:
        """Local training of some hosted clients; the uploads of those who send, reduced, and what was seen of it.

        `fewest`: of how many uploads of all groups together a sum is at least; their noise on sums depends on it.
        `blind`: each upload enters this sum by itself, and nothing but what comes out of it is seen.
        `will_be_read`: somebody will read the state before their next training, so nothing is put off.
        """
        self.wire.ledger.record_training(round, len(clients))
        accumulator, seen = Accumulator(), []
        for group, send in _by_sending(clients, sending):
            for members, chunk, where in self._chunks(group, leaving=not will_be_read):
                delivered = down(chunk.clients)
                payload = self._train(members, chunk, where, round, delivered)
                if send:
                    # Checked before the upload is counted or folded, because what has passed the wire cannot be taken
                    # back.
                    self._require_covered(payload, chunk, round, accumulator)
                    self._send(payload, chunk, round, delivered, accumulator, fewest, blind)
                # What was seen is kept apart from the update, for it must never reach server code.
                seen.append(chunk.observed)
        if blind is not None:
            return blind.result(), seen
        return self.wire.collect(accumulator, round, fewest), seen

    def _train(
        self, members: CohortState, chunk: Chunk, where: np.ndarray, round: int, down: Down
    ) -> dict[str, Reduction]:
        self.wire.send_down(down, chunk.clients, round)
        with explain_divergence(self.method, round):
            state, payload = self.method.local(self._take(members, where, to_train=True), down, chunk, round)
        # Scattered clients train on a copy of their state, on which work left for later would be lost.
        run = _run_of(where)
        if chunk.later and run is not None:
            members.left[run] = chunk.later
        self._write_back(members, where, state)
        return payload

    def _send(
        self,
        payload: dict[str, Reduction],
        chunk: Chunk,
        round: int,
        down: Down,
        accumulator: Accumulator,
        fewest: float | None,
        blind: BlindSum | None,
    ) -> None:
        if blind is None:
            self.wire.send_up(payload, down, chunk.clients, chunk.cohort, round, accumulator)
            return
        for update in self.wire.send_apart(payload, down, chunk.clients, chunk.cohort, round, fewest):
            blind.take(update)

    def receive(self, clients: np.ndarray, round: int, down: MakeDown) -> None:
        """What hosted clients do with the answer of a round."""
        for members, chunk, where in self._chunks(clients):
            answer = down(chunk.clients)
            self.wire.send_down(answer, chunk.clients, round)
            with explain_divergence(self.method, round):
                state = self.method.receive(self._take(members, where), answer, chunk, round)
            self._write_back(members, where, state)

    def scores(
        self, items: Tensor, offer: MakeDown, known: Histories | None = None, clients: np.ndarray | None = None
    ) -> Iterator[tuple[np.ndarray, Tensor]]:
        """User indices of the data set and their logits, chunk by chunk; all hosted clients, trained or not, or some.

        `known` are the histories to answer from, where they are longer than what was trained on.
        Downloads for evaluation are not counted: a client that only serves its user keeps what it last received.
        """
        # Scoring holds logits of all items for each user, so the number of users bounds a chunk, not that of samples.
        cost = np.diff(self.data.client_ptr) * self.method.footprint(self.world).score
        for members, chunk, where in self._chunks(self.data.clients if clients is None else clients, cost):
            with torch.no_grad():
                # Only this copy knows the longer histories, so that no training chunk can ever see validation items.
                asked = replace(chunk, known=known)
                yield chunk.users, self.method.score(self._take(members, where), offer(chunk.clients), asked, items)

    def scores_of(self, user: int, items: Tensor, offer: MakeDown, known: Histories | None = None) -> Tensor:
        """[1, items] logits of one user, without those of the others of its client; as `scores` gives them."""
        place = int(self.data.place_of[user])
        data = self.data.isolate_user(place)
        members, at = next(
            (members, int(at[0])) for members in self.cohorts for _, at in [members.positions(data.clients)] if len(at)
        )
        # A user's row among its cohort's: where its client starts, plus how far into the client it is.
        row = int(members.user_ptr[at]) + place - int(self.data.client_ptr[self.data.positions(data.clients)[0]])
        state = State(
            {name: value[at : at + 1] for name, value in members.state.per_client.items()},
            {name: value[row : row + 1] for name, value in members.state.per_user.items()},
        )
        asked = replace(
            data.chunk(data.clients, members.cohort.name),
            known=None if known is None else known.take(np.array([place])),
        )
        with torch.no_grad():
            return self.method.score(state, offer(data.clients), asked, items)

    def preview_payload(self, client: int, round: int, down: Down) -> dict[str, Reduction]:
        """What a client would send; nothing is sent or kept."""
        # A copy of the state is trained, because `local` may update in place and a preview must leave no trace.
        return next(self._rehearse(client, round, down))[1]

    def preview_names(self, client: int, round: int, down: Down) -> tuple[set[str], set[str]]:
        """The names of what a client would send, and what of it no noise reaches."""
        chunk, payload = next(self._rehearse(client, round, down))
        return set(payload), set(self._require_covered(payload, chunk, round, Accumulator()))

    def _rehearse(self, client: int, round: int, down: Down) -> Iterator[tuple[Chunk, dict[str, Reduction]]]:
        for members, chunk, where in self._chunks(np.array([client])):
            taken = self._take(members, where)
            state = State(
                *({name: value.clone() for name, value in part.items()} for part in (taken.per_client, taken.per_user))
            )
            yield chunk, self.method.local(state, down, chunk, round)[1]

    def _require_covered(
        self, payload: dict[str, Reduction], chunk: Chunk, round: int, accumulator: Accumulator
    ) -> dict[str, int]:
        """What no noise reaches; where nothing of that kind may leave, an error."""
        found = self.wire.bytes_without_noise(payload, len(chunk.clients), chunk.cohort, accumulator)
        if self.sealed and found:
            raise FedrecError(
                f"--epsilon: {self.method.info.name} sends {list_few(found)} without noise (round {round + 1}), so no "
                f"epsilon holds; {noise_remedy(self.method)}"
            )
        return found

    def state_bytes(self) -> tuple[int, int]:
        """Bytes that all hosted clients keep between rounds, and those among them that they score with."""
        kept = scoring = 0
        idle = self.method.footprint(self.world).training_only
        for members in self.cohorts:
            for name, value in (members.unfinished.per_client | members.unfinished.per_user).items():
                size = value.numel() * value.element_size()
                # What serves only training could be dropped on a device that merely answers, so it is told apart.
                kept += size
                scoring += size * (name not in idle)
        return kept, scoring

    def count_deferred_bytes(self) -> int:
        """Bytes of hosted clients' states that are to be written when somebody looks at them."""
        return sum(work.nbytes for members in self.cohorts for left in members.left.values() for work in left)

    # -- keep and restore --

    def tensors(self) -> Tensors:
        """All state of the hosted clients, by name: `client.all.item`, `user.all.user`, ..."""
        found: Tensors = {}
        for members in self.cohorts:
            found |= {f"client.{members.cohort.name}.{name}": value for name, value in members.state.per_client.items()}
            found |= {f"user.{members.cohort.name}.{name}": value for name, value in members.state.per_user.items()}
        return found

    def restore(self, tensors: Mapping[str, Tensor]) -> None:
        """Put tensors of `tensors()` back in place."""
        # In place: kernels and deferred work hold views of these very tensors.
        for name, value in self.tensors().items():
            value.copy_(tensors[name])

    # -- chunks: as many clients side by side as fit the memory --

    def _chunks(
        self, clients: np.ndarray, cost: np.ndarray | None = None, leaving: bool = False
    ) -> Iterator[tuple[CohortState, Chunk, np.ndarray]]:
        """`cost`: bytes of every client, by position in the group. `leaving`: training may put
        work off, where clients train on their state itself and not on a copy."""
        # Half, because the wire may hold dense uploads of a quarter beside it.
        budget = self.memory // 2
        if cost is None:
            needed = self.method.footprint(self.world)
            cost = self.data.positives * needed.sample * (1 + self.data.negatives) + needed.client
            # A chunk that fits the processor's cache trains faster than a larger one; an accelerator wants it large
            # instead.
            if needed.cache is not None and self.world.device.type == "cpu":
                budget = min(budget, needed.cache)
        for members in self.cohorts:
            # Ascending places are what `_index` needs to recognise a run, which is then a view rather than a gather.
            here, where = members.positions(sort_if_needed(clients))
            # Cut by position and not by number of clients, since clients of one federation differ in size by orders of
            # magnitude.
            for part in _pieces(cost[self.data.positions(here)], budget):
                later: list[DeferredWork] | None = [] if leaving and _run_of(where[part]) is not None else None
                yield members, self.data.chunk(here[part], members.cohort.name, self.wire.foldable, later), where[part]

    def _take(self, members: CohortState, where: np.ndarray, to_train: bool = False) -> State:
        clients, users = self._index(where), self._index(members.users(where))
        state = members.to_train(_run_of(where)) if to_train else members.state
        return State(
            {name: value[clients] for name, value in state.per_client.items()},
            {name: value[users] for name, value in state.per_user.items()},
        )

    def _write_back(self, members: CohortState, where: np.ndarray, state: State) -> None:
        clients, users = self._index(where), self._index(members.users(where))
        for kept, new, index in (
            (members.unfinished.per_client, state.per_client, clients),
            (members.unfinished.per_user, state.per_user, users),
        ):
            for name, value in new.items():
                # A method that trained in place returns the very view it was given, and copying it onto itself would
                # cost a pass.
                if not isinstance(index, slice) or value.data_ptr() != kept[name][index].data_ptr():
                    kept[name][index] = value

    def _index(self, where: np.ndarray) -> slice | Tensor:
        """A slice where possible: a view costs nothing and is updated in place."""
        run = _run_of(where)
        return to_device(where, self.world.device) if run is None else slice(run.start, run.stop)


def _run_of(where: np.ndarray) -> range | None:
    """Ascending places as a run, where none is left out."""
    # Ascending places without gaps, so both ends tell; no need to look at those in between.
    whole = len(where) > 0 and where[-1] - where[0] + 1 == len(where)
    return range(int(where[0]), int(where[-1]) + 1) if whole else None


def _by_sending(clients: np.ndarray, sending: np.ndarray) -> Iterator[tuple[np.ndarray, bool]]:
    """Those who send, then those who do not."""
    # By identity first, since comparing two long arrays each round would cost more than the split saves.
    if sending is clients or not len(sending):
        yield clients, len(sending) > 0
        return
    sends = np.isin(clients, sending)
    yield clients[sends], True
    yield clients[~sends], False


def _pieces(cost: np.ndarray, budget: int) -> Iterator[slice]:
    """Runs of clients whose cost stays within the budget (at least one client each)."""
    total = np.concatenate([[0], np.cumsum(cost)])
    start = 0
    while start < len(cost):
        # Sums of costs searched by bisection: a loop over millions of clients would take longer than their training.
        stop = int(np.searchsorted(total, total[start] + budget, side="right")) - 1
        # At least one client, even above the budget, for a client cannot be split; it may still fit in fact.
        stop = max(start + 1, min(stop, len(cost)))
        yield slice(start, stop)
        start = stop
