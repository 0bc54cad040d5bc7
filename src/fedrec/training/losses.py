"""Binary cross-entropy of logits, as it is or as published code computes it.

`released`: the logit passes a sigmoid in single precision, then torch's loss of probabilities, which bounds logarithms
by 100 and the divisor p (1 - p) of its gradient by 1e-12. A sigmoid that rounds to 1 has no slope: above a logit of
16.64 the gradient is exactly 0, for label 0 too; below -27.6 that of label 1 fades (-30: a tenth, -40: nothing). Steps
that overshoot so far therefore end there, where the gradient of the logits themselves would send them back with all
their force.
"""

from __future__ import annotations

from typing import Any, Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from fedrec.kernels.bounds import LEAST_LOG, LEAST_SLOPE

Saturate = Literal["none", "released"]


def bce(logits: Tensor, label: Tensor, saturate: Saturate = "none") -> Tensor:
    """The loss of every sample."""
    if saturate == "none":
        return F.binary_cross_entropy_with_logits(logits, label, reduction="none")
    losses: Tensor = _Saturated.apply(logits, label)  # type: ignore[no-untyped-call]
    return losses


def bce_slope(logits: Tensor, label: Tensor, saturate: Saturate = "none") -> Tensor:
    """Its derivative by the logit."""
    if saturate == "none":
        return torch.sigmoid(logits) - label
    p = torch.sigmoid(logits.float())
    flat = p * (1 - p)
    return ((p - label.float()) * (flat / flat.clamp(min=LEAST_SLOPE))).to(logits.dtype)


class _Saturated(torch.autograd.Function):
    """torch's own function refuses NaN, which must pass here so that the run can report that it diverged."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, label: Tensor) -> Tensor:
        ctx.save_for_backward(bce_slope(logits, label, "released"))
        p = torch.sigmoid(logits.float())
        liked, other = p.log().clamp(min=LEAST_LOG), (-p).log1p().clamp(min=LEAST_LOG)
        return -torch.lerp(other, liked, label.float()).to(logits.dtype)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        (slope,) = ctx.saved_tensors
        return gradients[0] * slope, None
