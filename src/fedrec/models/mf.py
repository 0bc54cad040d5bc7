"""Matrix factorisation: the score is the inner product of a user vector and an item row, without biases."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class MF:
    dim: int
    has_user = True

    def dense_shapes(self) -> dict[str, tuple[int, ...]]:
        return {}

    def logits(self, user: Tensor, item: Tensor, dense: dict[str, Tensor]) -> Tensor:
        return (user * item).sum(-1)

    def scores(self, user: Tensor, item: Tensor, dense: dict[str, Tensor]) -> Tensor:
        return user @ item.T if item.dim() == 2 else torch.einsum("ud,umd->um", user, item)
