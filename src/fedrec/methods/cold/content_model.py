"""Models that see attributes instead of item ids, trained on clients that are therefore sent all attributes."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from fedrec.federation.clients import Chunk
from fedrec.federation.contract import (
    Disclosure,
    Down,
    Footprint,
    Mean,
    Reduction,
    State,
    Tensors,
    Ups,
    World,
    replicate,
)
from fedrec.federation.ranges import Count
from fedrec.methods.cold.content import (
    META,
    WIDE,
    require_attributes,
    scored_once,
    with_attributes,
)
from fedrec.models import NCF, Backbone
from fedrec.training.initial import DENSE, fan_in_uniform, initial_key
from fedrec.training.local_training import LocalTraining


@dataclass(frozen=True)
class Content:
    """A model whose item vectors are g(x) = E x + e, or its tanh. Its items are rows of attributes."""

    upper: Backbone
    squash: bool = False

    @property
    def dim(self) -> int:
        return self.upper.dim

    @property
    def has_user(self) -> bool:
        return self.upper.has_user

    def dense_shapes(self) -> dict[str, tuple[int, ...]]:
        return self.upper.dense_shapes()

    def embedded(self, attributes: Tensor, dense: Tensors) -> Tensor:
        plain = attributes @ dense["embed"].mT + dense["embed_bias"].unsqueeze(-2)
        return torch.tanh(plain) if self.squash else plain

    def logits(self, user: Tensor, item: Tensor, dense: Tensors) -> Tensor:
        return self.upper.logits(user, self.embedded(item, dense), dense)

    def scores(self, user: Tensor, item: Tensor, dense: Tensors) -> Tensor:
        return self.upper.scores(user, self.embedded(item, dense), dense)


@dataclass(frozen=True)
class ContentModel(LocalTraining):
    """Private user vectors; the layer on attributes and, unless `kept` names them, all weights are averaged."""

    phases: ClassVar[tuple[tuple[str, ...], ...]] = (("user", "dense"),)
    kept: ClassVar[bool] = False  # the weights above the layer on attributes stay with their client

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

    def upper_layers(self, world: World) -> Tensors:
        return fan_in_uniform(world, initial_key(world, DENSE), self.model.dense_shapes())

    def embedding(self, world: World, width: int) -> Tensors:
        return fan_in_uniform(world, initial_key(world, META), {"embed": (self.dim, width), "embed_bias": (self.dim,)})

    def init_server(self, world: World, attributes: Tensor | None = None) -> Tensors:
        x = require_attributes(attributes, self.info.name)
        upper = {} if self.kept else self.upper_layers(world)
        return {"attributes": x, "warm": torch.tensor(world.items), **self.embedding(world, x.shape[1]), **upper}

    def init_clients(self, world: World, chunk: Chunk) -> State:
        upper = replicate(self.upper_layers(world), len(chunk.clients)) if self.kept else {}
        return State(upper, {"user": self.init_users(world, chunk.users)})

    def _down(self, server: Tensors, attributes: Tensor) -> Down:
        weights = {name: value for name, value in server.items() if name not in ("attributes", "warm")}
        return Down(shared={"attributes": attributes, **weights})

    def broadcast(self, server: Tensors, clients: np.ndarray, round: int) -> Down:
        return self._down(server, server["attributes"][: int(server["warm"])])

    def local(self, state: State, down: Down, chunk: Chunk, round: int) -> tuple[State, dict[str, Reduction]]:
        shared = dict(down.shared)
        x = shared.pop("attributes")
        dense = replicate(shared, len(chunk.clients)) | state.per_client
        fitted = self.fit(chunk, round, state.per_user["user"], x, dense, fold=False)
        kept = {name: fitted.dense[name] for name in state.per_client}
        return State(kept, {"user": fitted.user}), {name: Mean(fitted.dense[name]) for name in shared}

    def aggregate(self, server: Tensors, ups: Ups, round: int) -> Tensors:
        return server | {name: ups[name] for name in server if name in ups}

    def offer(self, server: Tensors, clients: np.ndarray, round: int, items: Tensor) -> Down:
        return self._down(server, server["attributes"][items])

    def with_items(self, server: Tensors, attributes: Tensor) -> Tensors:
        return with_attributes(server, attributes)

    def score(self, state: State, down: Down, chunk: Chunk, items: Tensor) -> Tensor:
        dense = dict(down.shared)
        distinct, which = scored_once(dense.pop("attributes"))
        if self.kept:
            own = {name: value[chunk.owner] for name, value in state.per_client.items()}
            dense |= own
        return self.model.scores(state.per_user["user"], distinct, dense)[:, which]

    def footprint(self, world: World) -> Footprint:
        size = world.dtype.itemsize
        upper = sum(int(np.prod(shape)) for shape in self.model.dense_shapes().values())
        sample = 200 + 8 * (self.dim + WIDE) * size
        client = 4096 + 6 * (upper + WIDE * self.dim) * size + self.batch * sample  # as wide as the widest client's
        return replace(super().footprint(world), client=client, sample=sample)
