"""PFedRec: item tables are averaged, but each client scores with a head and a table that it made its own.

Zhang et al., "Dual Personalization on Federated Recommendation" (IJCAI 2023), algorithm 1. The score is
sigmoid(w_u . q_i + b_u): the head (w_u, b_u) takes the place of a user vector and never leaves. With another backbone
the head is everything but the item table.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import ClassVar, Literal

import numpy as np
import torch
from torch import Tensor

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
    replicate,
)
from fedrec.federation.ranges import Positive, Share
from fedrec.methods.comparison import FEDCA, plan_part
from fedrec.methods.rates import with_row_rate
from fedrec.training.local_training import IN_TURN, LocalMethod, LocalTrainer

STARTS = "starts"  # on the server: the table that every round began with
TRAINED, NEVER = "trained", -1  # a client's last round
BEFORE = "before."  # what it then set out with


# within another backbone: Adam at one rate for all, as in FedCA's comparison
COMPARED = {"optimiser": "adam", "lr": 0.01, "lr_item": 0.01, "init_std": 0.1}


@dataclass(frozen=True)
class PFedRec(LocalMethod):
    info: ClassVar[MethodInfo] = MethodInfo(
        name="pfedrec",
        summary="private head, mean of item tables, scores with the table adapted locally",
        paper="Zhang et al., IJCAI 2023",
        backbones={"linear": {}, "mf": COMPARED, "ncf": COMPARED, "sasrec": COMPARED},
        presets={"fedca": {**FEDCA, "backbone": "mf", "lr_item": 0.01}},
        new_users=30,
    )

    backbone: str = "linear"
    init_std: float = 1.0
    lr: float = 0.1
    aggregated_fraction: Share = 1.0  # of those who train: who uploads
    item_rate_scale: Positive = (
        80.0  # without lr_item, rows move at lr * items * this: undoes the means over batch, clients
    )
    score_with: Literal["local", "received"] = "local"  # local: the table after training, before it is replaced
    # Where one table per client does not fit: a client's own table is trained again whenever it is asked for, from
    # the server's table of its last round and the head it had then.
    own_tables: Literal["kept", "replayed"] = "kept"

    @property
    def disclosure(self) -> Disclosure:
        return Disclosure(private=("user", *self.model.dense_shapes()))

    @cached_property
    def trainer(self) -> LocalTrainer:
        """Every batch: a step on the head, then a new forward pass and a step on the table."""
        return LocalTrainer(self, phases=IN_TURN)

    def replays(self) -> bool:
        return self.score_with == "local" and self.own_tables == "replayed"

    def init_server(self, world: World, attributes: Tensor | None = None) -> Tensors:
        server = {"item": self.trainer.init_items(world)}
        if self.replays():  # what every round started from: kept once, in place of a copy with every client
            server[STARTS] = server["item"].new_zeros(self.rounds, *server["item"].shape)
            server[STARTS][0] = server["item"]
        return server

    def init_clients(self, world: World, chunk: Chunk) -> State:
        kept, user = self.trainer.init_dense(world), self.trainer.init_users(world, chunk.users)
        if self.replays():
            own = replicate(kept, len(chunk.clients))
            trained = torch.full((len(chunk.clients),), NEVER, device=world.device)
            before = {BEFORE + name: value.clone() for name, value in own.items()}
            return State({**own, **before, TRAINED: trained}, {"user": user, BEFORE + "user": user.clone()})
        if self.score_with == "local":
            kept["item"] = self.trainer.init_items(world)
        return State(replicate(kept, len(chunk.clients)), {"user": user})

    def plan(self, world: World, server: Tensors, round: int) -> Plan:
        return plan_part(world, round, self.aggregated_fraction)

    def broadcast(self, server: Tensors, clients: np.ndarray, round: int) -> Down:
        return Down(shared={"item": server["item"]})

    def offer(self, server: Tensors, clients: np.ndarray, round: int, items: Tensor) -> Down:
        return Down(shared=server)  # past starts too: a client has its own at hand, only the simulation must look it up

    def for_world(self, world: World) -> PFedRec:
        return with_row_rate(self, self.item_rate_scale, world)

    def local(self, state: State, down: Down, chunk: Chunk, round: int) -> tuple[State, dict[str, Reduction]]:
        head = {name: state.per_client[name] for name in self.model.dense_shapes()}
        trainer = self.for_world(chunk.world).trainer
        own = state.per_client.get("item")
        fitted = trainer.fit(chunk, round, state.per_user["user"], down.shared["item"], head, own=own)
        kept, users = dict(fitted.dense), {"user": fitted.user}
        if self.replays():
            kept |= {BEFORE + name: value.clone() for name, value in head.items()}
            kept[TRAINED] = torch.full_like(state.per_client[TRAINED], round)
            users[BEFORE + "user"] = state.per_user["user"].clone()
        elif own is not None:
            kept["item"] = own
        return State(kept, users), {"item": Mean(fitted.table)}

    def aggregate(self, server: Tensors, ups: Ups, round: int) -> Tensors:
        if self.replays():
            server[STARTS][round] = server["item"]
        return server | {"item": ups["item"]} if "item" in ups else server

    def score(self, state: State, down: Down, chunk: Chunk, items: Tensor) -> Tensor:
        if self.replays():
            return self._replayed(state, down, chunk, items)
        own = dict(state.per_client)
        if self.score_with == "received":
            own["item"] = down.shared["item"].expand(len(chunk.clients), -1, -1)
        return self.trainer.own_scores(state.per_user["user"], own, chunk, items)

    def _replayed(self, state: State, down: Down, chunk: Chunk, items: Tensor) -> Tensor:
        """Scores with own tables that are trained again, all clients of one last round together."""
        trained, parts, order = state.per_client[TRAINED], [], []
        for last in trained.unique().tolist():
            some = (trained == last).nonzero().flatten()
            users = torch.isin(chunk.owner, some).nonzero().flatten()
            mine = State(
                {name: value[some] for name, value in state.per_client.items()},
                {name: value[users] for name, value in state.per_user.items()},
            )
            own = {name: mine.per_client[name] for name in self.model.dense_shapes()}
            part = replace(chunk, clients=chunk.clients[some.cpu().numpy()])
            own["item"] = self._own_tables(mine, down, part, last)
            parts.append(self.trainer.own_scores(mine.per_user["user"], own, part, items))
            order.append(users)
        return torch.cat(parts)[torch.cat(order).argsort()]

    def _own_tables(self, state: State, down: Down, chunk: Chunk, last: int) -> Tensor:
        # a new user has met no table but the newest
        start = down.shared[STARTS][max(0, last)] if STARTS in down.shared else down.shared["item"]
        if last == NEVER:
            return start.expand(len(chunk.clients), -1, -1)
        head = {name: state.per_client[BEFORE + name] for name in self.model.dense_shapes()}
        trainer = self.for_world(chunk.world).trainer
        again = chunk.data.chunk(chunk.clients, chunk.cohort, foldable=True)
        own = start.new_empty(len(chunk.clients), *start.shape)
        with torch.enable_grad():
            trainer.fit(again, last, state.per_user[BEFORE + "user"], start, head, own=own)
        return own

    def footprint(self, world: World) -> Footprint:
        kept = 2 if self.score_with == "local" and not self.replays() else 0
        return self.trainer.footprint(world, dense=8, tables=kept, scored=2 if self.replays() else 0)
