"""PFedRec: item tables are averaged, but each client scores with a head and a table that it made its own.

Zhang et al., "Dual Personalization on Federated Recommendation" (IJCAI 2023), algorithm 1. The score is
sigmoid(w_u . q_i + b_u): the head (w_u, b_u) takes the place of a user vector and never leaves. With another backbone
the head is everything but the item table.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar, Literal

import numpy as np
from torch import Tensor

from fedrec.errors import FedrecError
from fedrec.federation.clients import Chunk
from fedrec.federation.contract import (
    Disclosure,
    Down,
    Footprint,
    Mean,
    MethodInfo,
    Plan,
    Reduction,
    State,
    Tensors,
    Ups,
    World,
)
from fedrec.federation.ranges import Positive, Share
from fedrec.federation.settings_files import settings_beside
from fedrec.methods.personal.noised_descent import NoisedDescent
from fedrec.methods.personal.replay import NEVER, STARTS, init_starts, replayed_scores, with_note
from fedrec.methods.rates import with_row_rate
from fedrec.training.local_training import IN_TURN, LocalMethod, LocalTrainer
from fedrec.training.participation import plan_part

# within another backbone: Adam at one rate for all, as in FedCA's comparison
COMPARED = {"optimiser": "adam", "lr": 0.01, "lr_item": 0.01, "init_std": 0.1}


@dataclass(frozen=True)
class PFedRec(LocalMethod):
    info: ClassVar[MethodInfo] = MethodInfo(
        name="pfedrec",
        summary="private head, mean of item tables, scores with the table adapted locally",
        paper="Zhang et al., IJCAI 2023",
        backbones={"linear": {}, "scorer": {}, "mf": COMPARED, "ncf": COMPARED, "sasrec": COMPARED},
        **settings_beside(__file__),
        new_users=30,
    )

    backbone: str = "linear"
    init_std: float = 1.0
    lr: float = 0.1
    aggregated_fraction: Share = 1.0
    item_rate_scale: Positive = (
        80.0  # without lr_item, rows move at lr * items * this: undoes the means over batch, clients
    )
    score_with: Literal["local", "received"] = "local"
    """local: with the client's table after training; received: with the mean table."""
    own_tables: Literal["kept", "replayed"] = "kept"
    """Whether clients keep their tables, or train them again whenever they are needed (replayed)."""
    dp: Literal["none", "gradient"] = "none"
    """Noise on every step's gradient of the table, as FedRKG's comparison has it, or none."""
    clip: Positive = 0.1
    """With dp: norm of a gradient."""
    noise: Positive = 0.001  # with dp: standard deviation

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.dp == "gradient" and (self.optimiser != "sgd" or self.early_exit or not self.keeps()):
            raise FedrecError(
                "dp=gradient does not fit pfedrec with these settings: it needs optimiser=sgd, "
                "early_exit=0, score_with=local and own_tables=kept"
            )

    @property
    def disclosure(self) -> Disclosure:
        return Disclosure(private=("user", *self.model.dense_shapes()))

    @cached_property
    def trainer(self) -> LocalTrainer:
        """Every batch: a step on the head, then a new forward pass and a step on the table."""
        return LocalTrainer(self, phases=IN_TURN)

    def for_world(self, world: World) -> PFedRec:
        return with_row_rate(self, self.item_rate_scale, world)

    def keeps(self) -> bool:
        """Whether clients keep their tables."""
        return self.score_with == "local" and self.own_tables == "kept"

    def replays(self) -> bool:
        return self.score_with == "local" and self.own_tables == "replayed"

    # -- start --

    def init_server(self, world: World, attributes: Tensor | None = None) -> Tensors:
        server = {"item": self.trainer.init_items(world)}
        return server | ({STARTS: init_starts(server["item"], self.rounds)} if self.replays() else {})

    def init_clients(self, world: World, chunk: Chunk) -> State:
        own = self.trainer.init_model(world) if self.keeps() else self.trainer.init_dense(world)
        state = self.trainer.init_state(world, chunk, own)
        return with_note(state, state.per_client, state.per_user["user"], chunk, NEVER) if self.replays() else state

    # -- one round --

    def plan(self, world: World, server: Tensors, round: int) -> Plan:
        return plan_part(world, round, self.aggregated_fraction)

    def broadcast(self, server: Tensors, clients: np.ndarray, round: int) -> Down:
        return Down(shared={"item": server["item"]})

    def local(self, state: State, down: Down, chunk: Chunk, round: int) -> tuple[State, dict[str, Reduction]]:
        head, user, own = self._head(state), state.per_user["user"], state.per_client.get("item")
        trainer = self.for_world(chunk.world).trainer
        if self.dp == "gradient":
            return self._noised(trainer, state, down, chunk, round)
        fitted = trainer.fit(chunk, round, user, down.shared["item"], head, own=own)
        new = State(fitted.dense | ({} if own is None else {"item": own}), {"user": fitted.user})
        if self.replays():
            new = with_note(new, head, user, chunk, round)
        return new, {"item": Mean(fitted.table)}

    def _noised(
        self, trainer: LocalTrainer, state: State, down: Down, chunk: Chunk, round: int
    ) -> tuple[State, dict[str, Reduction]]:
        """Every client's own copy of the table, because noise falls on all rows."""
        tables = down.shared["item"].repeat(len(chunk.clients), 1, 1)
        user, head = state.per_user["user"], self._head(state)
        fitted = NoisedDescent(trainer, chunk, round, user, tables, head, self.clip, self.noise).run()
        return State(fitted.dense | {"item": tables}, {"user": fitted.user}), {"item": Mean(tables.clone())}

    def _head(self, state: State) -> Tensors:
        return {name: state.per_client[name] for name in self.model.dense_shapes()}

    def aggregate(self, server: Tensors, ups: Ups, round: int) -> Tensors:
        if self.replays():
            server[STARTS][round] = server["item"]
        return server | {"item": ups["item"]} if "item" in ups else server

    # -- scores --

    def offer(self, server: Tensors, clients: np.ndarray, round: int, items: Tensor) -> Down:
        return Down(shared=server)  # past starts too: a client has its own at hand, only the simulation must look it up

    def score(self, state: State, down: Down, chunk: Chunk, items: Tensor) -> Tensor:
        if self.replays():
            return replayed_scores(self.for_world(chunk.world).trainer, state, down, chunk, items)
        own = dict(state.per_client)
        if self.score_with == "received":
            own["item"] = down.shared["item"].expand(len(chunk.clients), -1, -1)
        return self.trainer.own_scores(state.per_user["user"], own, chunk, items)

    def footprint(self, world: World) -> Footprint:
        return self.trainer.footprint(
            world, dense=8, tables=2 if self.keeps() else 0, scored=2 if self.replays() else 0
        )
