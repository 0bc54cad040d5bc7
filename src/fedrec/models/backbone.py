"""The interface of backbones: batched, pure functions that know nothing of federation.

Parameters come in three groups: `user` (one vector per user), `item` (one row per item) and `dense` (named weights of
a network). The method that uses a backbone decides which groups are private.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

Drop = Callable[[int, Tensor], Tensor]


def keep_all(site: int, x: Tensor) -> Tensor:
    """No dropout."""
    return x


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


@runtime_checkable
class Sequential(Backbone, Protocol):
    """A backbone without user vectors of their own: it makes them from the rows of the user's items in time order."""

    @property
    def length(self) -> int:
        """Items that are read at most, the last ones."""
        ...

    @property
    def dropout(self) -> float:
        """Part of the activations that training drops."""
        ...

    def initial(self, key: int, dtype: torch.dtype) -> dict[str, Tensor]:
        """Dense weights to start from."""
        ...

    def encode(self, rows: Tensor, dense: dict[str, Tensor], drop: Drop = keep_all) -> Tensor:
        """[..., T, d] rows to [..., T, d] user vectors, the t-th from the first t rows.

        Dense weights are common or have the same leading axes. `drop(site, activations)` applies dropout.
        """
        ...

    def floats(self, steps: int) -> int:
        """Numbers that training on one sequence of this many steps holds."""
        ...
