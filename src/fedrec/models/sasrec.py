"""SASRec: the user is the sequence of items, read by causal self-attention. Kang & McAuley, ICDM 2018.

A sequence's rows, scaled by sqrt(d) and with learned positions added, pass through blocks of self-attention and a
position-wise network, each with a residual and a layer norm (after the sum, or before the part with `norm_first`).
The score of an item is the inner product of the last hidden state and the item's row: one table reads and scores.

Sequences are filled up at their end, where causality already hides the filling from every real position; so positions
count from the first real item, and no row is needed that stands for padding.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional as F

from fedrec.errors import FedrecError
from fedrec.models.backbone import Drop, keep_all
from fedrec.models.mf import MF
from fedrec.random import fold, normal

EPSILON = 1e-8  # of layer norms
MATRICES = ("query", "key", "value", "out", "inner", "outer")  # of a block
# The keys have no bias: it would add the same number to all logits of a query.
BIASES = tuple(f"{name}_bias" for name in MATRICES if name != "key")
NORMS = ("attention", "forward")


@dataclass(frozen=True)
class SASRec:
    dim: int
    length: int = 50  # items of a sequence that are read, the last ones
    dropout: float = 0.2
    blocks: int = 2
    heads: int = 1
    norm_first: bool = False
    has_user = False

    def __post_init__(self) -> None:
        for name, good, what in (
            ("length", self.length >= 1, "at least 1"),
            ("dropout", 0 <= self.dropout < 1, "at least 0 and below 1"),
            ("blocks", self.blocks >= 1, "at least 1"),
            ("heads", self.heads >= 1 and self.dim % self.heads == 0, f"a divisor of dim={self.dim}"),
        ):
            if not good:
                raise FedrecError(f"{name}={getattr(self, name)} does not fit sasrec: it must be {what}")

    def dense_shapes(self) -> dict[str, tuple[int, ...]]:
        square, vector = (self.dim, self.dim), (self.dim,)
        shapes: dict[str, tuple[int, ...]] = {"position": (self.length, self.dim)}
        for block in range(self.blocks):
            shapes |= {f"{name}{block}": square for name in MATRICES}
            shapes |= {f"{name}{block}": vector for name in BIASES}
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
            for norm, part in (("attention", self._attend), ("forward", self._network)):
                x = self._residual(x, dense, f"{norm}_%s{block}", partial(part, dense=dense, block=block, drop=drop))
        return _norm(x, dense, "last_%s")

    def _residual(self, x: Tensor, dense: dict[str, Tensor], norm: str, part: Callable[[Tensor], Tensor]) -> Tensor:
        if self.norm_first:
            return x + part(_norm(x, dense, norm))
        return _norm(x + part(x), dense, norm)

    def _attend(self, x: Tensor, dense: dict[str, Tensor], block: int, drop: Drop) -> Tensor:
        query, value = (self._split(_linear(x, dense, name, block)) for name in ("query", "value"))
        key = self._split(x @ dense[f"key{block}"].mT)
        steps, width = x.shape[-2], self.dim // self.heads
        later = torch.ones(steps, steps, dtype=torch.bool, device=x.device).triu(1)
        logits = ((query / math.sqrt(width)) @ key.mT).masked_fill(later, -math.inf)
        seen = drop(3 * block + 1, logits.softmax(-1)) @ value
        return _linear(seen.transpose(-3, -2).flatten(-2), dense, "out", block)

    def _split(self, x: Tensor) -> Tensor:
        """[..., T, d] to [..., heads, T, d / heads]."""
        return x.unflatten(-1, (self.heads, self.dim // self.heads)).transpose(-3, -2)

    def _network(self, x: Tensor, dense: dict[str, Tensor], block: int, drop: Drop) -> Tensor:
        inner = drop(3 * block + 2, _linear(x, dense, "inner", block)).relu()
        return drop(3 * block + 3, _linear(inner, dense, "outer", block))

    def logits(self, user: Tensor, item: Tensor, dense: dict[str, Tensor]) -> Tensor:
        """`user` are hidden states."""
        return MF(self.dim).logits(user, item, {})

    def scores(self, user: Tensor, item: Tensor, dense: dict[str, Tensor]) -> Tensor:
        return MF(self.dim).scores(user, item, {})

    def floats(self, steps: int) -> int:
        """Numbers that training on one sequence of this many steps holds: activations, and weights of its own."""
        block = 24 * self.dim + 7 * self.heads * steps
        weights = sum(math.prod(shape) for shape in self.dense_shapes().values())
        return steps * (self.blocks * block + 20 * self.dim) + 2 * weights


def _linear(x: Tensor, dense: dict[str, Tensor], name: str, block: int) -> Tensor:
    return x @ dense[f"{name}{block}"].mT + dense[f"{name}_bias{block}"].unsqueeze(-2)


def _norm(x: Tensor, dense: dict[str, Tensor], name: str) -> Tensor:
    scale, shift = (dense[name % part].unsqueeze(-2) for part in ("scale", "shift"))
    return F.layer_norm(x, x.shape[-1:], eps=EPSILON) * scale + shift
