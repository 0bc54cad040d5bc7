"""CS-PFedRec: PFedRec on the known items; a new item is the mean of its neighbours by attributes.

The cold-start variant of PFedRec in the comparison of IFedRec (WWW 2024). Neighbours are the warm items of largest
cosine; their rows come from the server's mean table, because clients do not keep theirs. Attributes stay at the server.
Preset `released` has the saturated gradient of PFedRec's code, which is by the same authors.
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
from fedrec.federation.ranges import Count, Positive, Share
from fedrec.methods.cold.content import neighbour_rows, scored_once, with_neighbours
from fedrec.methods.rates import with_row_rate
from fedrec.training.local_training import IN_TURN, LocalMethod, LocalTrainer
from fedrec.training.losses import Saturate
from fedrec.training.participation import plan_part


@dataclass(frozen=True)
class CsPFedRec(LocalMethod):
    info: ClassVar[MethodInfo] = MethodInfo(
        name="cs-pfedrec",
        summary="new items: PFedRec, a new item is the mean of its neighbours by attributes",
        paper="Zhang et al., WWW 2024 (baseline)",
        backbones={"linear": {}},
    )

    backbone: str = "linear"
    dim: Count = 200
    init_std: float = 1.0
    lr: float = 0.1
    aggregated_fraction: Share = 1.0
    item_rate_scale: Positive = 80.0
    score_with: Literal["local", "received"] = "received"
    """received is the only choice: a new item has no row in a client's own table."""
    own_tables: Literal["kept", "replayed"] = "kept"
    """Without effect: clients do not keep their tables."""
    neighbours: Count = 20
    """Trained items, nearest by attributes, whose mean stands for a new item."""
    saturate: Saturate = "none"

    @property
    def disclosure(self) -> Disclosure:
        return Disclosure(private=("user", *self.model.dense_shapes()), attributes="server")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.score_with != "received":
            raise FedrecError("score_with=local does not fit cs-pfedrec: a new item has no row in a client's own table")

    @cached_property
    def trainer(self) -> LocalTrainer:
        return LocalTrainer(self, phases=IN_TURN, saturation=self.saturate)

    def for_world(self, world: World) -> CsPFedRec:
        return with_row_rate(self, self.item_rate_scale, world)

    def init_server(self, world: World, attributes: Tensor | None = None) -> Tensors:
        near = with_neighbours(self.require_attributes(attributes), world.items, self.neighbours)
        return {"item": self.trainer.init_items(world), **near}

    def init_clients(self, world: World, chunk: Chunk) -> State:
        return self.trainer.init_state(world, chunk, self.trainer.init_dense(world))

    def plan(self, world: World, server: Tensors, round: int) -> Plan:
        return plan_part(world, round, self.aggregated_fraction)

    def broadcast(self, server: Tensors, clients: np.ndarray, round: int) -> Down:
        return Down(shared={"item": server["item"]})

    def local(self, state: State, down: Down, chunk: Chunk, round: int) -> tuple[State, dict[str, Reduction]]:
        trainer, user, head = self.for_world(chunk.world).trainer, state.per_user["user"], state.per_client
        fitted = trainer.fit(chunk, round, user, down.shared["item"], head)
        return State(fitted.dense, {"user": fitted.user}), {"item": Mean(fitted.table)}

    def aggregate(self, server: Tensors, ups: Ups, round: int) -> Tensors:
        return server | {"item": ups["item"]} if "item" in ups else server

    def with_items(self, server: Tensors, attributes: Tensor) -> Tensors:
        more = super().with_items(server, attributes)["attributes"]
        return server | with_neighbours(more, len(server["item"]), self.neighbours)

    def offer(self, server: Tensors, clients: np.ndarray, round: int, items: Tensor) -> Down:
        return Down(shared={"item": neighbour_rows(server["item"], server["near"], items)})

    def score(self, state: State, down: Down, chunk: Chunk, items: Tensor) -> Tensor:
        distinct, which = scored_once(down.shared["item"])
        own = {name: value[chunk.owner] for name, value in state.per_client.items()}
        return self.model.scores(state.per_user["user"], distinct, own)[:, which]

    def footprint(self, world: World) -> Footprint:
        return self.trainer.footprint(world, dense=8)
