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

from fedrec import method as fm
from fedrec.methods.personal.noised_descent import NoisedDescent
from fedrec.methods.personal.replay import NEVER, STARTS, init_starts, score_by_replay, with_note
from fedrec.methods.rates import with_row_rate

# within another backbone: Adam at one rate for all, as in FedCA's comparison
COMPARED = {"optimiser": "adam", "lr": 0.01, "lr_item": 0.01, "init_std": 0.1}


@dataclass(frozen=True)
class PFedRec(fm.LocalMethod):
    info: ClassVar[fm.MethodInfo] = fm.MethodInfo(
        name="pfedrec",
        summary="private head, mean of item tables, scores with the table adapted locally",
        paper="Zhang et al., IJCAI 2023",
        backbones={"linear": {}, "scorer": {}, "mf": COMPARED, "ncf": COMPARED, "sasrec": COMPARED},
        new_users=30,
    )
    private_network = True

    backbone: str = "linear"
    init_std: float = 1.0
    lr: float = 0.1
    aggregated_fraction: fm.Share = 1.0
    item_rate_scale: fm.Positive = (
        80.0  # without lr_item, rows move at lr * items * this: undoes the means over batch, clients
    )
    score_with: Literal["local", "received"] = "local"
    """local: with the client's table after training; received: with the mean table."""
    own_tables: Literal["kept", "replayed"] = "kept"
    """Whether clients keep their tables, or train them again whenever they are needed (replayed)."""
    dp: Literal["none", "gradient"] = "none"
    """Noise on every step's gradient of the table, as FedRKG's comparison has it, or none."""
    clip: fm.Positive = 0.1
    """With dp: norm of a gradient."""
    noise: fm.Positive = 0.001  # with dp: standard deviation

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.dp == "gradient" and (self.optimiser != "sgd" or self.early_exit or not self.keeps()):
            raise fm.FedrecError(
                "dp=gradient does not fit pfedrec with these settings: it needs optimiser=sgd, "
                "early_exit=0, score_with=local and own_tables=kept"
            )

    @cached_property
    def trainer(self) -> fm.LocalTrainer:
        """Every batch: a step on the head, then a new forward pass and a step on the table."""
        return fm.LocalTrainer(self, phases=fm.IN_TURN)

    def for_world(self, world: fm.World) -> PFedRec:
        return with_row_rate(self, self.item_rate_scale, world)

    def keeps(self) -> bool:
        """Whether clients keep their tables."""
        return self.score_with == "local" and self.own_tables == "kept"

    def replays(self) -> bool:
        return self.score_with == "local" and self.own_tables == "replayed"

    # -- start --

    def init_server(self, world: fm.World, attributes: Tensor | None = None) -> fm.Tensors:
        server = {"item": self.trainer.init_items(world)}
        return server | ({STARTS: init_starts(server["item"], self.rounds)} if self.replays() else {})

    def init_clients(self, world: fm.World, chunk: fm.Chunk) -> fm.State:
        own = self.trainer.init_model(world) if self.keeps() else self.trainer.init_dense(world)
        state = self.trainer.init_state(world, chunk, own)
        return with_note(state, state.per_client, state.per_user["user"], chunk, NEVER) if self.replays() else state

    # -- one round --

    def broadcast(self, server: fm.Tensors, clients: np.ndarray, round: int) -> fm.Down:
        return fm.Down(shared={"item": server["item"]})

    def local(self, state: fm.State, down: fm.Down, chunk: fm.Chunk, round: int) -> tuple[fm.State, fm.Uploads]:
        head, user, own = self._head(state), state.per_user["user"], state.per_client.get("item")
        trainer = self.for_world(chunk.world).trainer
        if self.dp == "gradient":
            return self._train_noised(trainer, state, down, chunk, round)
        fitted = trainer.fit(chunk, round, user, down.shared["item"], head, own=own)
        new = fm.State(fitted.dense | ({} if own is None else {"item": own}), {"user": fitted.user})
        if self.replays():
            new = with_note(new, head, user, chunk, round)
        return new, {"item": fm.Mean(fitted.table)}

    def _train_noised(
        self, trainer: fm.LocalTrainer, state: fm.State, down: fm.Down, chunk: fm.Chunk, round: int
    ) -> tuple[fm.State, fm.Uploads]:
        """Every client's own copy of the table, because noise falls on all rows."""
        tables = down.shared["item"].repeat(len(chunk.clients), 1, 1)
        user, head = state.per_user["user"], self._head(state)
        fitted = NoisedDescent(trainer, chunk, round, user, tables, head, self.clip, self.noise).run()
        return fm.State(fitted.dense | {"item": tables}, {"user": fitted.user}), {"item": fm.Mean(tables.clone())}

    def _head(self, state: fm.State) -> fm.Tensors:
        return {name: state.per_client[name] for name in self.model.dense_shapes()}

    def aggregate(self, server: fm.Tensors, ups: fm.Ups, round: int) -> fm.Tensors:
        if self.replays():
            server[STARTS][round] = server["item"]
        return server | {"item": ups["item"]} if "item" in ups else server

    # -- scores --

    def offer(self, server: fm.Tensors, clients: np.ndarray, round: int, items: Tensor) -> fm.Down:
        return fm.Down(
            shared=server
        )  # past starts too: a client has its own at hand, only the simulation must look it up

    def score(self, state: fm.State, down: fm.Down, chunk: fm.Chunk, items: Tensor) -> Tensor:
        if self.replays():
            return score_by_replay(self.for_world(chunk.world).trainer, state, down, chunk, items)
        own = dict(state.per_client)
        if self.score_with == "received":
            own["item"] = down.shared["item"].expand(len(chunk.clients), -1, -1)
        return self.trainer.own_scores(state.per_user["user"], own, chunk, items)

    def footprint(self, world: fm.World) -> fm.Footprint:
        return self.trainer.footprint(
            world, dense=8, tables=2 if self.keeps() else 0, scored=2 if self.replays() else 0
        )
