"""The simulator: a server and thousands of clients in one process, without copies, or in several that share the work.

In several processes every one holds the server and a shard of the clients; a `Group` adds up what the shards send.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from fedrec.errors import DivergedError
from fedrec.federation.advice import divergence_remedy
from fedrec.federation.blind import MakeBlindSums
from fedrec.federation.client_side import ClientSide, CohortState
from fedrec.federation.clients import ClientData, Figure, Histories
from fedrec.federation.contract import Answer, Method, Tensors
from fedrec.federation.figures import ChunkFigures, Clock, Observed, Reading, figures_of
from fedrec.federation.group import ALONE, Group
from fedrec.federation.noise import SumGaussian
from fedrec.federation.schema import ClientSetup, schema_of
from fedrec.federation.server_side import ServerSide
from fedrec.federation.stages import Stage
from fedrec.federation.update import Update
from fedrec.federation.wire import Ledger, Wire
from fedrec.random import Purpose, fold_array, stream

# By so many standard deviations more uploads may be lost than expected before a round is given up: with fewer the noise
# on its sum would be too little.
DEVIATIONS = 3


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


class RunningRound:
    """A round that was asked for. To read what became of it is to wait for its end."""

    def __init__(self, simulator: Simulator, number: int, clients: int) -> None:
        self.simulator, self.number, self.clients = simulator, number, clients
        self.clock = Clock(simulator.world.device)
        self.seen: ChunkFigures = ()
        self.lost = 0
        self._uploads: Mapping[str, Figure] = {}
        self._reading: Reading | None = None
        self._observed: Observed | None = None

    def watch(self, uploads: Mapping[str, Figure]) -> None:
        """Figures of uploads, which must be finite like the loss."""
        self._uploads = uploads

    def end(self, lost: int) -> None:
        self.lost = lost
        # Read before the clock stops, or an accelerator's round would end before its work.
        self._read()
        self.clock.stop()

    @property
    def is_readable(self) -> bool:
        """Whether its figures can be read without a wait."""
        return not self.simulator.reads_later or self.clock.is_stopped

    def require_finite(self, diverged: str = "") -> Observed:
        """The figures of all processes; training that has diverged ends the run. `diverged`: what went wrong here."""
        if self._observed is None:
            numbers = self._read().numbers()
            count = len(numbers) - len(self._uploads)
            found = Observed.from_chunks(self.seen, numbers[:count])
            found.diverged = diverged
            found = self.simulator.group.sum_observed(found)
            self._check(found, dict(zip(self._uploads, numbers[count:], strict=True)))
            self._observed = found
        return self._observed

    def _read(self) -> Reading:
        if self._reading is None:
            self._reading = Reading([*figures_of(self.seen), *self._uploads.values()])
        return self._reading

    def _check(self, observed: Observed, uploads: dict[str, float]) -> None:
        remedy = divergence_remedy(self.simulator.method)
        if observed.diverged:
            raise DivergedError(observed.diverged, remedy)
        if not math.isfinite(observed.total.get("loss", 0.0)):
            raise DivergedError(f"the loss is no longer finite in round {self.number + 1}", remedy)
        self.simulator.server_side.require_finite(uploads, self.number)

    def log(self) -> RoundLog:
        """What it looked like, if it was finite."""
        observed, entry = self.require_finite(), self.simulator.wire.ledger.rounds[self.number]
        up, down = self.simulator.group.sum_numbers([entry["up"], entry["down"]])
        return RoundLog(
            self.number, self.clients, self.clock.seconds(), int(up), int(down), observed.means(), self.lost
        )


class Simulator:
    """Holds both sides and runs rounds. Randomness has no state: (server, states, round) is all."""

    def __init__(
        self,
        method: Method,
        data: ClientData,
        stages: Sequence[Stage] = (),
        memory: int = 8 << 30,
        attributes: Tensor | None = None,
        sealed: bool = False,
        lost_uploads: float = 0.0,
        group: Group = ALONE,
        blind: MakeBlindSums | None = None,
    ) -> None:
        """`data`: of the clients that live in this process. `lost_uploads`: the share that never arrives.

        `sealed`: nothing may leave that no noise reaches. `blind`: the server sees what secure sums let out.
        """
        self.method, self.data, self.world, self.group = method, data, data.world, group
        self.lost_uploads = lost_uploads
        self.server_side = ServerSide(method, data.world, attributes)
        self.client_side = ClientSide(method, data, stages, memory, sealed, blind is not None)
        # A secure sum needs the shapes of all messages in advance, since masked ones cannot tell them.
        self.blind = None if blind is None else blind(schema_of(self.server_side, self.client_setup()))

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
        return self.begin(number, before_answer).log()

    def begin(
        self, number: int, before_answer: Callable[[int], None] | None = None, will_be_read: bool = False
    ) -> RunningRound:
        """A round whose figures nobody has read: an accelerator may still be at it, and the next one may begin.

        `will_be_read`: somebody will read clients' states before their next round, so nothing is put off.
        """
        plan = self.server_side.plan(number)
        begun = RunningRound(self, number, len(plan.train))
        arriving = self.draw_arrivals(plan.uploads(), number)
        train = self.data.select_hosted(plan.train)
        planned = len(plan.uploads())
        # Settled before anybody trains, because the noise of each client depends on how many are counted on.
        fewest = self.count_fewest(planned)
        too_few = self.noises_sums and len(arriving) < fewest
        blind = None
        if self.blind is not None:
            blind = self.blind.begin(plan.uploads(), number, fewest if self.noises_sums else 0)
        diverged = ""
        try:
            update, begun.seen = self.client_side.train(
                train,
                arriving,
                number,
                lambda some: self.server_side.broadcast(some, number),
                fewest,
                blind,
                will_be_read,
            )
        # The other processes must hear of it, or they would wait for this one's part.
        except DivergedError as error:
            update, diverged = Update(), error.what
        if diverged or not self.reads_later:
            begun.require_finite(diverged)
        # A sum of too few would carry too little noise, so nothing of it may be seen.
        merged = self.group.merge_updates(Update() if too_few else update)
        try:
            answer = self.server_side.aggregate(merged, plan, number, begun.watch if self.reads_later else None)
        except DivergedError:
            begun.require_finite()  # the loss may say it better
            raise
        if before_answer is not None:
            begun.require_finite()
            paused = time.perf_counter()
            before_answer(number)
            # What looks on from outside is no part of the training time.
            begun.clock.leave_out(time.perf_counter() - paused)
        self._answer(answer, number)
        lost = planned - len(arriving) if len(merged.clients) or len(arriving) == 0 else 0
        lost = planned if too_few else lost
        if blind is not None:
            lost = planned if blind.is_given_up else lost
            for way, clients, sizes in blind.traffic():
                self.wire.ledger.record(way, number, clients, sizes)
        begun.end(lost)
        return begun

    @property
    def reads_later(self) -> bool:
        """Whether rounds go on before their figures are read; several processes agree on them first."""
        # Several processes agree on figures before they go on, which is a wait in any case.
        return self.world.device.type != "cpu" and self.group.size == 1

    @property
    def noises_sums(self) -> bool:
        """Whether clients add shares of noise that count together only."""
        return any(isinstance(stage, SumGaussian) for stage in self.wire.stages)

    def count_fewest(self, planned: int) -> int:
        """How many uploads of a round must arrive for its sum to have all of its noise; with fewer it is given up.

        With as many lost as expected and three standard deviations more it still is a sum.
        """
        gone = self.lost_uploads * planned
        return max(1, math.floor(planned - gone - DEVIATIONS * math.sqrt(gone * (1 - self.lost_uploads))))

    def draw_arrivals(self, uploads: np.ndarray, number: int) -> np.ndarray:
        """Those of the planned uploads that are not lost: a client trains and keeps its state, and nobody hears."""
        if not self.lost_uploads:
            return uploads
        # The top 53 bits, because a double holds no more, and a rounded-up one could be 1.
        draws = fold_array(stream(self.world.seed, Purpose.LOST, number), uploads) >> np.uint64(11)
        return uploads[draws * 2.0**-53 >= self.lost_uploads]

    def _answer(self, answer: Answer | None, number: int) -> None:
        if answer is None:
            return
        clients = self.data.clients if answer.clients is None else self.data.select_hosted(answer.clients)
        self.client_side.receive(clients, number, answer.make)

    # -- before a run, and beside it --

    def client_setup(self) -> ClientSetup:
        side = self.client_side
        return ClientSetup(self.data.negatives, self.data.unique, side.wire.stages, side.sealed)

    def schedule(self) -> np.ndarray:
        """How often each client uploads in all rounds, by what the server knows now."""
        return self.server_side.schedule()

    def state_bytes_per_client(self) -> dict[str, float]:
        """Bytes that a client keeps between rounds, and those among them that it scores with; means over clients."""
        kept, scoring = self.group.sum_numbers(self.client_side.state_bytes())
        return {"kept_per_client": kept / self.world.clients, "to_score_per_client": scoring / self.world.clients}

    def ledger(self) -> Ledger:
        """Of the clients in all processes."""
        return self.group.merge_ledgers(self.wire.ledger)

    # -- inference --

    def scores(
        self, round: int, items: Tensor | None = None, known: Histories | None = None, clients: np.ndarray | None = None
    ) -> Iterator[tuple[np.ndarray, Tensor]]:
        """As `ClientSide.scores`, of the users in this process, with what the server offers now."""
        wanted = torch.arange(self.world.items, device=self.world.device) if items is None else items
        return self.client_side.scores(wanted, lambda some: self.server_side.offer(some, round, wanted), known, clients)

    def scores_of(self, user: int, round: int, items: Tensor, known: Histories | None = None) -> Tensor:
        """As `ClientSide.scores_of`, with what the server offers now."""
        return self.client_side.scores_of(user, items, lambda some: self.server_side.offer(some, round, items), known)
