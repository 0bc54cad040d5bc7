"""CS-PFedRec: PFedRec on the known items; a new item is the mean of its neighbours by attributes.

The cold-start variant of PFedRec in the comparison of IFedRec (WWW 2024). Neighbours are the warm items of largest
cosine; their rows come from the server's mean table, because clients do not keep theirs. Attributes stay at the server.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar, Literal

import numpy as np
import torch
from torch import Tensor

from fedrec import method as fm
from fedrec.methods.cold.neighbours import neighbour_table, rows_with_neighbours
from fedrec.methods.rates import with_row_rate


@dataclass(frozen=True)
class CsPFedRec(fm.LocalMethod):
    info: ClassVar[fm.MethodInfo] = fm.MethodInfo(
        name="cs-pfedrec",
        summary="new items: PFedRec, a new item is the mean of its neighbours by attributes",
        paper="Zhang et al., WWW 2024 (baseline)",
        backbones={"linear": {}},
    )
    attributes = "server"
    private_network = True

    backbone: str = "linear"
    dim: fm.Count = 200
    init_std: float = 1.0
    lr: float = 0.1
    aggregated_fraction: fm.Share = 1.0
    item_rate_scale: fm.Positive = 80.0
    score_with: Literal["local", "received"] = "received"
    """received is the only choice: a new item has no row in a client's own table."""
    own_tables: Literal["kept", "replayed"] = "kept"
    """Without effect: clients do not keep their tables."""
    neighbours: fm.Count = 20
    """Trained items, nearest by attributes, whose mean stands for a new item."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.score_with != "received":
            raise fm.FedrecError(
                "score_with=local does not fit cs-pfedrec: a new item has no row in a client's own table"
            )

    @cached_property
    def trainer(self) -> fm.LocalTrainer:
        return fm.LocalTrainer(self, phases=fm.IN_TURN)

    def for_world(self, world: fm.World) -> CsPFedRec:
        return with_row_rate(self, self.item_rate_scale, world)

    def init_server(self, world: fm.World, attributes: Tensor | None = None) -> fm.Tensors:
        near = neighbour_table(self.require_attributes(attributes), world.items, self.neighbours)
        return {"item": self.trainer.init_items(world), **near}

    def init_clients(self, world: fm.World, chunk: fm.Chunk) -> fm.State:
        return self.trainer.init_state(world, chunk, self.trainer.init_dense(world))

    def broadcast(self, server: fm.Tensors, clients: np.ndarray, round: int) -> fm.Down:
        return fm.Down(shared={"item": server["item"]})

    def local(self, state: fm.State, down: fm.Down, chunk: fm.Chunk, round: int) -> tuple[fm.State, fm.Uploads]:
        trainer = self.for_world(chunk.world).trainer
        fitted = trainer.fit(chunk, round, state.per_user["user"], down.shared["item"], state.per_client)
        return fm.State(fitted.dense, {"user": fitted.user}), {"item": fm.Mean(fitted.table)}

    def aggregate(self, server: fm.Tensors, ups: fm.Ups, round: int) -> fm.Tensors:
        return server | {"item": ups["item"]} if "item" in ups else server

    def with_items(self, server: fm.Tensors, attributes: Tensor) -> fm.Tensors:
        more = super().with_items(server, attributes)["attributes"]
        return server | neighbour_table(more, len(server["item"]), self.neighbours)

    def offer(self, server: fm.Tensors, clients: np.ndarray, round: int, items: Tensor) -> fm.Down:
        return fm.Down(shared={"item": rows_with_neighbours(server["item"], server["near"], items)})

    def score(self, state: fm.State, down: fm.Down, chunk: fm.Chunk, items: Tensor) -> Tensor:
        # each distinct row is scored once: equal items must tie to the last bit, wherever they stand
        distinct, which = torch.unique(down.shared["item"], dim=0, return_inverse=True)
        own = {name: value[chunk.owner] for name, value in state.per_client.items()}
        return self.model.scores(state.per_user["user"], distinct, own)[:, which]
