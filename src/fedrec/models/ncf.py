"""Neural collaborative filtering: a network on the concatenation [user; item], ReLU between layers."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

from fedrec.models.user_batches import by_users


@dataclass(frozen=True)
class NCF:
    dim: int
    hidden: tuple[int, ...] = ()  # default: so many layers, each half as wide as the one before: 2d -> d -> d/2 -> 1
    layers: int = 2
    has_user = True

    def sizes(self) -> list[int]:
        hidden = self.hidden or tuple(max(1, self.dim >> layer) for layer in range(self.layers))
        return [2 * self.dim, *hidden, 1]

    def dense_shapes(self) -> dict[str, tuple[int, ...]]:
        shapes: dict[str, tuple[int, ...]] = {}
        sizes = self.sizes()
        for layer, (fan_in, out) in enumerate(pairwise(sizes)):
            shapes[f"weight{layer}"] = (out, fan_in)
            shapes[f"bias{layer}"] = (out,)
        return shapes

    def logits(self, user: Tensor, item: Tensor, dense: dict[str, Tensor]) -> Tensor:
        return self._upper(torch.cat([user, item], -1) @ dense["weight0"].mT + dense["bias0"].unsqueeze(-2), dense)

    def scores(self, user: Tensor, item: Tensor, dense: dict[str, Tensor]) -> Tensor:
        # The widest layer counts; the input is never laid out, because the first layer is split.
        return by_users(self._scores, max(self.sizes()[1:]), user, item, dense)

    def _scores(self, user: Tensor, item: Tensor, dense: dict[str, Tensor]) -> Tensor:
        # The first layer splits into a user and an item part, so that common items are multiplied only once.
        of_user, of_item = dense["weight0"].split(self.dim, -1)
        left = (user.unsqueeze(-2) @ of_user.mT) + dense["bias0"].unsqueeze(-2)
        return self._upper(left + item @ of_item.mT, dense)

    def _upper(self, hidden: Tensor, dense: dict[str, Tensor]) -> Tensor:
        for layer in range(1, len(self.sizes()) - 1):
            hidden = torch.relu(hidden) @ dense[f"weight{layer}"].mT + dense[f"bias{layer}"].unsqueeze(-2)
        return hidden.squeeze(-1)
