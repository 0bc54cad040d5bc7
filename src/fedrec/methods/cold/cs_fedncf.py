"""CS-FedNCF: FedNCF whose item embedding is one layer on the item's attributes, so that new items have one too.

The cold-start variant of FedNCF in the comparison of IFedRec (WWW 2024). User vectors are private; the layer on
attributes and the network are averaged every round. The attributes go to every client.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from fedrec import method as fm
from fedrec.methods.cold.content_model import Content, ContentTrainer


@dataclass(frozen=True)
class CsFedNCF(fm.LocalMethod):
    info: ClassVar[fm.MethodInfo] = fm.MethodInfo(
        name="cs-fedncf",
        summary="new items: FedNCF on attributes, which all clients see",
        paper="Zhang et al., WWW 2024 (baseline)",
    )
    attributes = "clients"

    backbone: str = "ncf"
    dim: fm.Count = 200
    init_std: float = 1.0
    lr: float = 0.5

    @cached_property
    def model(self) -> fm.Backbone:
        return Content(fm.NCF(self.dim, (self.dim,)))

    @cached_property
    def trainer(self) -> ContentTrainer:
        return ContentTrainer(self)

    def init_server(self, world: fm.World, attributes: Tensor | None = None) -> fm.Tensors:
        known = self.trainer.keep(world, self.require_attributes(attributes))
        return {**known, **self.trainer.init_embedding(world, known["attributes"]), **self.trainer.init_dense(world)}

    def init_clients(self, world: fm.World, chunk: fm.Chunk) -> fm.State:
        return self.trainer.init_state(world, chunk)

    def broadcast(self, server: fm.Tensors, clients: np.ndarray, round: int) -> fm.Down:
        return self.trainer.send(server)

    def local(self, state: fm.State, down: fm.Down, chunk: fm.Chunk, round: int) -> tuple[fm.State, fm.Uploads]:
        """Return the weights that were sent, trained; weights of a client's own would stay with it."""
        fitted = self.trainer.fit_received(chunk, round, state.per_user["user"], down.shared, state.per_client)
        own = {name: fitted.dense[name] for name in state.per_client}
        sent: fm.Uploads = {name: fm.Mean(value) for name, value in fitted.dense.items() if name not in own}
        return fm.State(own, {"user": fitted.user}), sent

    def aggregate(self, server: fm.Tensors, ups: fm.Ups, round: int) -> fm.Tensors:
        return server | {name: ups[name] for name in server if name in ups}

    def offer(self, server: fm.Tensors, clients: np.ndarray, round: int, items: Tensor) -> fm.Down:
        return self.trainer.send(server, items)

    def score(self, state: fm.State, down: fm.Down, chunk: fm.Chunk, items: Tensor) -> Tensor:
        dense = down.shared | {name: value[chunk.owner] for name, value in state.per_client.items()}
        # each distinct row is scored once: equal items must tie to the last bit, wherever they stand
        distinct, which = torch.unique(dense.pop("attributes"), dim=0, return_inverse=True)
        return self.model.scores(state.per_user["user"], distinct, dense)[:, which]
