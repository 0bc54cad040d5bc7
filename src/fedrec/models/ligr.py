"""LiGR's block: norms first, and what each part adds passes a gate. Borisyuk et al., 2025; the layers of eSASRec
(Tikhonovich et al., RecSys 2025).

    x <- x + sigmoid(x W_a + b_a) * attention(norm(x))
    x <- x + sigmoid(x W_f + b_f) * network(norm(x)),    network(y) = outer(silu(swish y) * (inner y))

The network (SwiGLU, without biases) is four times as wide as the model.
"""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional as F

from fedrec.models.attention import attend, linear, norm
from fedrec.models.backbone import Drop

WIDER = 4
GATES = ("attention_gate", "forward_gate")
SITES = 4  # of dropout in a block


def shapes(dim: int) -> dict[str, tuple[int, ...]]:
    """Of a block's matrices and biases, by name."""
    square, wide = (dim, dim), WIDER * dim
    matrices = dict.fromkeys(("query", "key", "value", "out", *GATES), square)
    network = {"swish": (wide, dim), "inner": (wide, dim), "outer": (dim, wide)}
    return matrices | network | {f"{name}_bias": (dim,) for name in matrices if name != "key"}


def block(x: Tensor, dense: dict[str, Tensor], number: int, heads: int, drop: Drop) -> Tensor:
    """One block's output; `number` is its place in the network."""
    site = SITES * number
    seen = attend(norm(x, dense, f"attention_%s{number}"), dense, number, heads, drop, site + 1)
    x = x + linear(x, dense, "attention_gate", number).sigmoid() * drop(site + 2, seen)
    made = _network(norm(x, dense, f"forward_%s{number}"), dense, number, drop, site + 3)
    return x + linear(x, dense, "forward_gate", number).sigmoid() * drop(site + 4, made)


def _network(x: Tensor, dense: dict[str, Tensor], number: int, drop: Drop, site: int) -> Tensor:
    inner = F.silu(x @ dense[f"swish{number}"].mT) * (x @ dense[f"inner{number}"].mT)
    return drop(site, inner) @ dense[f"outer{number}"].mT
