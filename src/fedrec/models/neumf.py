"""NeuMF: an inner product whose terms are weighted, and a network, each on its own part of the vectors.

He et al., WWW 2017. Of a row's `dim` numbers the first `factors` are multiplied with those of the user; the others, of
user and item side by side, pass through a tower that halves at every layer. One linear layer reads both results.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

from fedrec.errors import FedrecError
from fedrec.models.user_batches import by_users


@dataclass(frozen=True)
class NeuMF:
    dim: int
    factors: int | None = None  # default: a fifth of dim
    layers: int = 3  # of the tower
    has_user = True

    def __post_init__(self) -> None:
        if not 0 < self.factor_width() < self.dim:
            raise FedrecError(f"factors={self.factors} does not fit neumf: it must be between 1 and dim - 1")
        if self.layers < 1:
            raise FedrecError(f"layers={self.layers} does not fit neumf: it must be at least 1")

    def factor_width(self) -> int:
        """Return the width of the part that is multiplied."""
        return max(1, self.dim // 5) if self.factors is None else self.factors

    def sizes(self) -> list[int]:
        """Return the widths of the tower from its input on: what the other part leaves, twice, then half each time."""
        width = 2 * (self.dim - self.factor_width())
        return [width, *(max(1, width >> layer) for layer in range(1, self.layers + 1))]

    def dense_shapes(self) -> dict[str, tuple[int, ...]]:
        shapes: dict[str, tuple[int, ...]] = {}
        for layer, (fan_in, out) in enumerate(pairwise(self.sizes())):
            shapes |= {f"weight{layer}": (out, fan_in), f"bias{layer}": (out,)}
        return shapes | {"output": (1, self.factor_width() + self.sizes()[-1]), "output_bias": (1,)}

    def logits(self, user: Tensor, item: Tensor, dense: dict[str, Tensor]) -> Tensor:
        left = self.factor_width()
        hidden = torch.cat([user[..., left:], item[..., left:]], -1)
        for layer in range(self.layers):
            hidden = torch.relu(hidden @ dense[f"weight{layer}"].mT + dense[f"bias{layer}"].unsqueeze(-2))
        both = torch.cat([user[..., :left] * item[..., :left], hidden], -1)
        return (both @ dense["output"].mT).squeeze(-1) + dense["output_bias"]

    def scores(self, user: Tensor, item: Tensor, dense: dict[str, Tensor]) -> Tensor:
        # Here the concatenated input is laid out for every pair, so it counts beside the tower.
        return by_users(self._scores, self.sizes()[0] + self.dim, user, item, dense)

    def _scores(self, user: Tensor, item: Tensor, dense: dict[str, Tensor]) -> Tensor:
        items = item.expand(len(user), -1, -1)
        return self.logits(user[:, None].expand(-1, items.shape[1], -1), items, dense)
