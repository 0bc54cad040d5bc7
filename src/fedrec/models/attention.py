"""What blocks of sequence models are made of: causal self-attention, linear maps and layer norms.

Weights come by name, the block's number at its end. They are common or have the same leading axes as the sequences.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional as F

from fedrec.models.backbone import Drop

# As in the published SASRec code; torch's own 1e-5 would show where rows start out small.
EPSILON = 1e-8  # of layer norms


def attend(x: Tensor, dense: dict[str, Tensor], block: int, heads: int, drop: Drop, site: int) -> Tensor:
    """Every step sees itself and those before it. The keys have no bias: it would add the same number to all logits
    of a query."""
    steps, dim = x.shape[-2:]

    def split(values: Tensor) -> Tensor:
        """[..., T, d] to [..., heads, T, d / heads]."""
        return values.unflatten(-1, (heads, dim // heads)).transpose(-3, -2)

    query, value = (split(linear(x, dense, name, block)) for name in ("query", "value"))
    key = split(x @ dense[f"key{block}"].mT)
    later = torch.ones(steps, steps, dtype=torch.bool, device=x.device).triu(1)
    # The query is scaled, not the logits: it has fewer numbers wherever sequences are longer than heads are wide.
    logits = ((query / math.sqrt(dim // heads)) @ key.mT).masked_fill(later, -math.inf)
    seen = drop(site, logits.softmax(-1)) @ value
    return linear(seen.transpose(-3, -2).flatten(-2), dense, "out", block)


def linear(x: Tensor, dense: dict[str, Tensor], name: str, block: int) -> Tensor:
    return x @ dense[f"{name}{block}"].mT + dense[f"{name}_bias{block}"].unsqueeze(-2)


def norm(x: Tensor, dense: dict[str, Tensor], name: str) -> Tensor:
    """`name` has `%s` for scale and shift."""
    scale, shift = (dense[name % part].unsqueeze(-2) for part in ("scale", "shift"))
    return F.layer_norm(x, x.shape[-1:], eps=EPSILON) * scale + shift
