"""A linear scorer of item rows: the user is the scorer itself (weight and bias), there is no user vector."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class Linear:
    dim: int
    has_user = False

    def dense_shapes(self) -> dict[str, tuple[int, ...]]:
        return {"weight0": (1, self.dim), "bias0": (1,)}

    def logits(self, user: Tensor, item: Tensor, dense: dict[str, Tensor]) -> Tensor:
        return (item @ dense["weight0"].mT).squeeze(-1) + dense["bias0"]

    def scores(self, user: Tensor, item: Tensor, dense: dict[str, Tensor]) -> Tensor:
        return self.logits(user, item, dense).expand(len(user), -1)
