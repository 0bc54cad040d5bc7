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
from fedrec.methods.cold.content_model import Content, ContentTrainer, keep_attributes, send_attributes


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
        known = keep_attributes(world, self.require_attributes(attributes))
        return {**known, **self.trainer.init_embedding(world, known["attributes"]), **self.trainer.init_dense(world)}

    def init_clients(self, world: fm.World, chunk: fm.Chunk) -> fm.State:
        return self.trainer.init_state(world, chunk)

    def broadcast(self, server: fm.Tensors, clients: np.ndarray, round: int) -> fm.Down:
        return send_attributes(server)

    def local(self, state: fm.State, down: fm.Down, chunk: fm.Chunk, round: int) -> tuple[fm.State, fm.Uploads]:
        """Return the weights that were sent, trained; weights of a client's own would stay with it."""
        weights = {name: value for name, value in down.shared.items() if name != "attributes"}
        dense = fm.replicate(weights, len(chunk.clients)) | state.per_client
        user = state.per_user["user"]
        fitted = self.trainer.fit(chunk, round, user, down.shared["attributes"], dense, fold=False)
        own = {name: fitted.dense[name] for name in state.per_client}
        return fm.State(own, {"user": fitted.user}), {name: fm.Mean(fitted.dense[name]) for name in weights}

    def aggregate(self, server: fm.Tensors, ups: fm.Ups, round: int) -> fm.Tensors:
        return server | {name: ups[name] for name in server if name in ups}

    def offer(self, server: fm.Tensors, clients: np.ndarray, round: int, items: Tensor) -> fm.Down:
        return send_attributes(server, items)

    def score(self, state: fm.State, down: fm.Down, chunk: fm.Chunk, items: Tensor) -> Tensor:
        dense = down.shared | {name: value[chunk.owner] for name, value in state.per_client.items()}
        # each distinct row is scored once: equal items must tie to the last bit, wherever they stand
        distinct, which = torch.unique(dense.pop("attributes"), dim=0, return_inverse=True)
        return self.model.scores(state.per_user["user"], distinct, dense)[:, which]
