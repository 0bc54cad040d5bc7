"""SASRec: the user is the sequence of items, read by causal self-attention. Kang & McAuley, ICDM 2018.

A sequence's rows, scaled by sqrt(d) and with learned positions added, pass through blocks of self-attention and a
position-wise network, each with a residual and a layer norm (after the sum, or before the part with `norm_first`);
with block_kind=ligr through those of `ligr.py`.
The score of an item is the inner product of the last hidden state and the item's row: one table reads and scores.

Sequences are filled up at their end, where causality already hides the filling from every real position; so positions
count from the first real item, and no row is needed that stands for padding.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Literal, get_args

import torch
from torch import Tensor

from fedrec.errors import FedrecError
from fedrec.models import ligr
from fedrec.models.attention import attend, linear, norm
from fedrec.models.backbone import Drop, keep_all
from fedrec.models.mf import MF
from fedrec.random import fold, normal

MATRICES = ("query", "key", "value", "out", "inner", "outer")  # of a block
NORMS = ("attention", "forward")
BlockKind = Literal["sasrec", "ligr"]


@dataclass(frozen=True)
class SASRec:
    dim: int
    length: int = 50  # items of a sequence that are read, the last ones
    dropout: float = 0.2
    blocks: int = 2
    heads: int = 1
    norm_first: bool = False  # of block_kind=sasrec; those of ligr always have it
    block_kind: BlockKind = "sasrec"
    has_user = False

    def __post_init__(self) -> None:
        for name, good, what in (
            ("length", self.length >= 1, "at least 1"),
            ("dropout", 0 <= self.dropout < 1, "at least 0 and below 1"),
            ("blocks", self.blocks >= 1, "at least 1"),
            ("heads", self.heads >= 1 and self.dim % self.heads == 0, f"a divisor of dim={self.dim}"),
            ("block_kind", self.block_kind in get_args(BlockKind), " or ".join(get_args(BlockKind))),
        ):
            if not good:
                raise FedrecError(f"{name}={getattr(self, name)} does not fit sasrec: it must be {what}")

    def dense_shapes(self) -> dict[str, tuple[int, ...]]:
        vector = (self.dim,)
        shapes: dict[str, tuple[int, ...]] = {"position": (self.length, self.dim)}
        of_block = ligr.shapes(self.dim) if self.block_kind == "ligr" else _shapes(self.dim)
        for block in range(self.blocks):
            shapes |= {f"{name}{block}": shape for name, shape in of_block.items()}
            for name in NORMS:
                shapes |= {f"{name}_scale{block}": vector, f"{name}_shift{block}": vector}
        return shapes | {"last_scale": vector, "last_shift": vector}

    def initial(self, key: int, dtype: torch.dtype) -> dict[str, Tensor]:
        """Matrices and positions Xavier-normal, biases zero, norms the identity."""
        weights = {}
        for index, (name, shape) in enumerate(self.dense_shapes().items()):
            if len(shape) == 1:
                weights[name] = torch.full(shape, 1.0 if "_scale" in name else 0.0, dtype=dtype)
            else:
                # Keyed by the place of the weight: more blocks leave the first ones' initial values as they are.
                draws = normal(fold(key, index), torch.arange(math.prod(shape)), dtype)
                weights[name] = math.sqrt(2 / sum(shape)) * draws.reshape(shape)
        return weights

    def encode(self, rows: Tensor, dense: dict[str, Tensor], drop: Drop = keep_all) -> Tensor:
        """[..., T, d] rows of items in time order to hidden states, the t-th of which saw the first t rows.

        Weights are common or have the same leading axes. `drop` is called with the number of the site in the network.
        """
        steps = rows.shape[-2]
        x = drop(0, math.sqrt(self.dim) * rows + dense["position"][..., :steps, :])
        for block in range(self.blocks):
            if self.block_kind == "ligr":
                x = ligr.block(x, dense, block, self.heads, drop)
                continue
            for name, part in (("attention", self._attend), ("forward", self._network)):
                x = self._residual(x, dense, f"{name}_%s{block}", partial(part, dense=dense, block=block, drop=drop))
        return norm(x, dense, "last_%s")

    def _residual(self, x: Tensor, dense: dict[str, Tensor], name: str, part: Callable[[Tensor], Tensor]) -> Tensor:
        if self.norm_first:
            return x + part(norm(x, dense, name))
        return norm(x + part(x), dense, name)

    def _attend(self, x: Tensor, dense: dict[str, Tensor], block: int, drop: Drop) -> Tensor:
        return attend(x, dense, block, self.heads, drop, 3 * block + 1)

    def _network(self, x: Tensor, dense: dict[str, Tensor], block: int, drop: Drop) -> Tensor:
        inner = drop(3 * block + 2, linear(x, dense, "inner", block)).relu()
        return drop(3 * block + 3, linear(inner, dense, "outer", block))

    def logits(self, user: Tensor, item: Tensor, dense: dict[str, Tensor]) -> Tensor:
        """`user` are hidden states."""
        return MF(self.dim).logits(user, item, {})

    def scores(self, user: Tensor, item: Tensor, dense: dict[str, Tensor]) -> Tensor:
        return MF(self.dim).scores(user, item, {})

    def floats(self, steps: int) -> int:
        """Numbers that training on one sequence of this many steps holds: activations, and weights of its own."""
        block = (56 if self.block_kind == "ligr" else 24) * self.dim + 7 * self.heads * steps
        weights = sum(math.prod(shape) for shape in self.dense_shapes().values())
        # Weights count twice, with their gradient, because clients side by side have each their own.
        return steps * (self.blocks * block + 20 * self.dim) + 2 * weights


def _shapes(dim: int) -> dict[str, tuple[int, ...]]:
    """Of a block's matrices and biases, by name."""
    return dict.fromkeys(MATRICES, (dim, dim)) | {f"{name}_bias": (dim,) for name in MATRICES if name != "key"}
