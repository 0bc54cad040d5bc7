"""PFedRec: item tables are averaged, but each client scores with a head and a table that it made its own.

Zhang et al., "Dual Personalization on Federated Recommendation" (IJCAI 2023), algorithm 1. The score is
sigmoid(w_u . q_i + b_u): the head (w_u, b_u) takes the place of a user vector and never leaves. With another backbone
the head is everything but the item table.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import numpy as np
from torch import Tensor

from fedrec.federation.clients import Chunk
from fedrec.federation.contract import Down, Mean, Reduction, Rows, State, Tensors, Ups, World, replicate
from fedrec.methods.comparison import TOGETHER, Aggregating


@dataclass(frozen=True)
class PFedRec(Aggregating):
    name: ClassVar[str] = "pfedrec"
    summary: ClassVar[str] = "private head, mean of item tables, scores with the table adapted locally"
    paper: ClassVar[str] = "Zhang et al., IJCAI 2023"
    backbones: ClassVar[tuple[str, ...]] = ("linear", "mf", "ncf", "sasrec")
    # within another backbone: Adam at one rate for all, as in FedCA's comparison
    backbone_defaults: ClassVar[Mapping[str, Mapping[str, object]]] = {
        name: {"optimiser": "adam", "lr": 0.01, "lr_item": 0.01, "init_std": 0.1} for name in ("mf", "ncf", "sasrec")
    }
    private: ClassVar[tuple[str, ...]] = ("user", "dense")
    fold_in_rounds: ClassVar[int | None] = 30
    presets: ClassVar[Mapping[str, Mapping[str, object]]] = {"fedca": {**TOGETHER, "backbone": "mf", "lr_item": 0.01}}
    # every batch: a step on the head, then a new forward pass and a step on the table
    phases: ClassVar[tuple[tuple[str, ...], ...]] = (("user", "dense"), ("item",))

    backbone: str = "linear"
    init_std: float = 1.0
    lr: float = 0.1
    item_rate_scale: float = (
        80.0  # without lr_item, rows move at lr * items * this: undoes the means over batch, clients
    )
    score_with: Literal["local", "received"] = "local"  # local: the table after training, before it is replaced

    def init_server(self, world: World, attributes: Tensor | None = None) -> Tensors:
        return {"item": self.init_items(world)}

    def init_clients(self, world: World, chunk: Chunk) -> State:
        kept = self.init_dense(world)
        if self.score_with == "local":
            kept["item"] = self.init_items(world)
        return State(replicate(kept, len(chunk.clients)), {"user": self.init_users(world, chunk.users)})

    def broadcast(self, server: Tensors, clients: np.ndarray, round: int) -> Down:
        return Down(shared=server)

    def for_world(self, world: World) -> PFedRec:
        """The same with the rate of item rows written out."""
        item = self.lr * world.items * self.item_rate_scale if self.lr_item is None else self.lr_item
        return replace(self, lr_item=item)

    def local(self, state: State, down: Down, chunk: Chunk, round: int) -> tuple[State, dict[str, Reduction]]:
        head = {name: value for name, value in state.per_client.items() if name != "item"}
        method = self.for_world(chunk.world)
        fitted = method.fit(chunk, round, state.per_user["user"], down.shared["item"], head, fold=False)
        assert isinstance(fitted.table, Rows)
        kept = dict(fitted.dense)
        if self.score_with == "local":
            kept["item"] = fitted.table.dense()
        return State(kept, {"user": fitted.user}), {"item": Mean(fitted.table)}

    def aggregate(self, server: Tensors, ups: Ups, round: int) -> Tensors:
        return {"item": ups["item"]} if "item" in ups else server

    def score(self, state: State, down: Down, chunk: Chunk, items: Tensor) -> Tensor:
        own = dict(state.per_client)
        if self.score_with == "received":
            own["item"] = down.shared["item"].expand(len(chunk.clients), -1, -1)
        return self.own_scores(state.per_user["user"], own, chunk, items)

    def client_bytes(self, world: World) -> int:
        dense = sum(int(np.prod(shape)) for shape in self.model.dense_shapes().values())
        table = world.items * self.dim if self.score_with == "local" else 0
        return 4096 + (8 * dense + 2 * table) * world.dtype.itemsize
