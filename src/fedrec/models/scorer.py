"""A small network of item rows, d -> 16 -> 1 with ReLU: the user is the network itself, there is no user vector."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Scorer:
    dim: int
    hidden: int = 16
    has_user = False

    def dense_shapes(self) -> dict[str, tuple[int, ...]]:
        return {"weight0": (self.hidden, self.dim), "bias0": (self.hidden,), "weight1": (1, self.hidden), "bias1": (1,)}

    def logits(self, user: Tensor, item: Tensor, dense: dict[str, Tensor]) -> Tensor:
        hidden = torch.relu(item @ dense["weight0"].mT + dense["bias0"].unsqueeze(-2))
        return (hidden @ dense["weight1"].mT).squeeze(-1) + dense["bias1"]

    def scores(self, user: Tensor, item: Tensor, dense: dict[str, Tensor]) -> Tensor:
        return self.logits(user, item, dense).expand(len(user), -1)
