"""CS-FedNCF: FedNCF whose item embedding is one layer on the item's attributes, so that new items have one too.

The cold-start variant of FedNCF in the comparison of IFedRec (WWW 2024). User vectors are private; the layer on
attributes and the network are averaged every round. The attributes go to every client.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import numpy as np
from torch import Tensor

from fedrec.federation.clients import Chunk
from fedrec.federation.contract import (
    Disclosure,
    Down,
    Footprint,
    Mean,
    MethodInfo,
    Reduction,
    State,
    Tensors,
    Ups,
    World,
    replicate,
)
from fedrec.federation.ranges import Count
from fedrec.methods.cold import content_model
from fedrec.methods.cold.content import scored_once
from fedrec.methods.cold.content_model import WEIGHTS, Content
from fedrec.models import NCF, Backbone
from fedrec.training.local_training import LocalMethod, LocalTrainer


@dataclass(frozen=True)
class CsFedNCF(LocalMethod):
    info: ClassVar[MethodInfo] = MethodInfo(
        name="cs-fedncf",
        summary="new items: FedNCF on attributes, which all clients see",
        paper="Zhang et al., WWW 2024 (baseline)",
    )

    backbone: str = "ncf"
    dim: Count = 200
    init_std: float = 1.0
    lr: float = 0.5

    @property
    def disclosure(self) -> Disclosure:
        return Disclosure(private=("user",), attributes="clients")

    @cached_property
    def model(self) -> Backbone:
        return Content(NCF(self.dim, (self.dim,)))

    @cached_property
    def trainer(self) -> LocalTrainer:
        return LocalTrainer(self, phases=WEIGHTS)

    def init_server(self, world: World, attributes: Tensor | None = None) -> Tensors:
        known = content_model.init_attributes(world, self.require_attributes(attributes))
        embedding = content_model.init_embedding(world, self.dim, known["attributes"])
        return {**known, **embedding, **self.trainer.init_dense(world)}

    def init_clients(self, world: World, chunk: Chunk) -> State:
        return self.trainer.init_state(world, chunk)

    def broadcast(self, server: Tensors, clients: np.ndarray, round: int) -> Down:
        return content_model.sent(server)

    def local(self, state: State, down: Down, chunk: Chunk, round: int) -> tuple[State, dict[str, Reduction]]:
        """What was sent is averaged; weights of a client's own would stay with it."""
        shared = dict(down.shared)
        attributes = shared.pop("attributes")
        dense = replicate(shared, len(chunk.clients)) | state.per_client
        fitted = self.trainer.fit(chunk, round, state.per_user["user"], attributes, dense, fold=False)
        kept = {name: fitted.dense[name] for name in state.per_client}
        return State(kept, {"user": fitted.user}), {name: Mean(fitted.dense[name]) for name in shared}

    def aggregate(self, server: Tensors, ups: Ups, round: int) -> Tensors:
        return server | {name: ups[name] for name in server if name in ups}

    def offer(self, server: Tensors, clients: np.ndarray, round: int, items: Tensor) -> Down:
        return content_model.sent(server, items)

    def score(self, state: State, down: Down, chunk: Chunk, items: Tensor) -> Tensor:
        dense = down.shared | {name: value[chunk.owner] for name, value in state.per_client.items()}
        distinct, which = scored_once(dense.pop("attributes"))
        return self.model.scores(state.per_user["user"], distinct, dense)[:, which]

    def footprint(self, world: World) -> Footprint:
        return content_model.footprint(self.trainer, world)
