"""Models that see attributes instead of item ids, trained on clients that are therefore sent all attributes.

The server holds `attributes`, how many items are `warm`, and weights.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from fedrec.federation.contract import Down, Footprint, Tensors, World
from fedrec.methods.cold.content import META, WIDE
from fedrec.models import Backbone
from fedrec.training.initial import fan_in_uniform, initial_key
from fedrec.training.local_training import LocalTrainer, Phases

WEIGHTS: Phases = (("user", "dense"),)  # items are rows of attributes, which are given


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


def init_attributes(world: World, attributes: Tensor) -> Tensors:
    """Return what the server knows of items."""
    return {"attributes": attributes, "warm": torch.tensor(world.items)}


def init_embedding(world: World, dim: int, attributes: Tensor) -> Tensors:
    """The layer on attributes."""
    shapes = {"embed": (dim, attributes.shape[1]), "embed_bias": (dim,)}
    return fan_in_uniform(world, initial_key(world, META), shapes)


def sent(server: Tensors, items: Tensor | None = None) -> Down:
    """All weights, and the attributes of these items; None: of those that training can meet."""
    weights = {name: value for name, value in server.items() if name not in ("attributes", "warm")}
    rows = slice(int(server["warm"])) if items is None else items
    return Down(shared={"attributes": server["attributes"][rows], **weights})


def footprint(trainer: LocalTrainer, world: World) -> Footprint:
    size, settings = world.dtype.itemsize, trainer.settings
    upper = sum(int(np.prod(shape)) for shape in trainer.model.dense_shapes().values())
    sample = 200 + 8 * (settings.dim + WIDE) * size
    client = 4096 + 6 * (upper + WIDE * settings.dim) * size + settings.batch * sample  # as wide as the widest client's
    return replace(trainer.footprint(world), client=client, sample=sample)
