"""Models that see attributes instead of item ids, trained on clients that are therefore sent all attributes."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedrec import method as fm

WIDE = 300  # columns of attributes that memory is planned for


@dataclass(frozen=True)
class Content:
    """A model whose item vectors are g(x) = E x + e, or its tanh. Its items are rows of attributes."""

    upper: fm.Backbone
    squash: bool = False

    @property
    def dim(self) -> int:
        return self.upper.dim

    @property
    def has_user(self) -> bool:
        return self.upper.has_user

    def dense_shapes(self) -> dict[str, tuple[int, ...]]:
        return self.upper.dense_shapes()

    def embed(self, attributes: Tensor, dense: fm.Tensors) -> Tensor:
        plain = attributes @ dense["embed"].mT + dense["embed_bias"].unsqueeze(-2)
        return torch.tanh(plain) if self.squash else plain

    def logits(self, user: Tensor, item: Tensor, dense: fm.Tensors) -> Tensor:
        return self.upper.logits(user, self.embed(item, dense), dense)

    def scores(self, user: Tensor, item: Tensor, dense: fm.Tensors) -> Tensor:
        return self.upper.scores(user, self.embed(item, dense), dense)


class ContentTrainer(fm.LocalTrainer):
    """Trains models whose items are rows of attributes, which clients are sent together with the weights.

    The server holds `attributes`, how many items are `warm`, and weights.
    """

    def __init__(self, settings: fm.LocalMethod, **special: Any) -> None:
        # items are rows of attributes, which are given: as a rule no step moves them
        super().__init__(settings, **{"phases": (("user", "dense"),), **special})

    def init_embedding(self, world: fm.World, attributes: Tensor) -> fm.Tensors:
        """Draw E and e."""
        shapes = {"embed": (self.settings.dim, attributes.shape[1]), "embed_bias": (self.settings.dim,)}
        return fm.draw_layers(world, "attributes", shapes)

    def keep(self, world: fm.World, attributes: Tensor) -> fm.Tensors:
        """Return what a server knows of items, which no round changes."""
        return {"attributes": attributes, "warm": torch.tensor(world.items)}

    def send(self, server: fm.Tensors, items: Tensor | None = None) -> fm.Down:
        """Send all weights, and the attributes of these items; None: of those that training can meet."""
        weights = {name: value for name, value in server.items() if name not in ("attributes", "warm")}
        rows = slice(int(server["warm"])) if items is None else items
        return fm.Down(shared={"attributes": server["attributes"][rows], **weights})

    def fit_received(self, chunk: fm.Chunk, round: int, user: Tensor, shared: fm.Tensors, own: fm.Tensors) -> fm.Fitted:
        """Train every client from the weights that it was sent, and from weights of its own."""
        weights = {name: value for name, value in shared.items() if name != "attributes"}
        dense = fm.replicate(weights, len(chunk.clients)) | own
        # each client has weights of its own by then, so that nothing is folded into a sum
        return self.fit(chunk, round, user, shared["attributes"], dense, fold=False)

    def footprint(self, world: fm.World, dense: int = 0, tables: int = 0, scored: int = 0) -> fm.Footprint:
        """Plan with `WIDE` columns of attributes: how many there are is not known beforehand."""
        size, settings = world.dtype.itemsize, self.settings
        upper = sum(int(np.prod(shape)) for shape in self.model.dense_shapes().values())
        sample = 200 + 8 * (settings.dim + WIDE) * size
        # weights six times: their gradients, two moments and copies; samples of a batch as wide as the widest client's
        client = 4096 + 6 * (upper + WIDE * settings.dim) * size + settings.batch * sample
        return replace(super().footprint(world, dense, tables, scored), client=client, sample=sample)
