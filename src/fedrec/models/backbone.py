"""What every backbone offers: batched, pure, and ignorant of federation.

Parameters come in three groups: `user` (one vector per user), `item` (one row per item) and `dense` (named weights of
a network). The method that uses a backbone decides which groups are private.
"""

from __future__ import annotations

from typing import Protocol

from torch import Tensor


class Backbone(Protocol):
    @property
    def dim(self) -> int: ...

    @property
    def has_user(self) -> bool:
        """Whether there is a user vector."""
        ...

    def dense_shapes(self) -> dict[str, tuple[int, ...]]:
        """Shapes of the dense weights, in order; empty: none. The last size of a weight is its fan-in."""
        ...

    def logits(self, user: Tensor, item: Tensor, dense: dict[str, Tensor]) -> Tensor:
        """[..., B, d] users and items and dense weights with the same leading axes, to [..., B] logits."""
        ...

    def scores(self, user: Tensor, item: Tensor, dense: dict[str, Tensor]) -> Tensor:
        """[U, d] users against items [m, d] or [U, m, d]; dense weights common or with a leading U: [U, m] logits."""
        ...
