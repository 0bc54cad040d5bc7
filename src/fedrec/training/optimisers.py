"""Adam, as the libraries define it, in torch."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

MOMENTS = (0.9, 0.999)  # what a step keeps of the mean gradient, and of the mean square
FLOOR = 1e-8


def adam_step(
    gradient: Tensor,
    first: Tensor,
    second: Tensor,
    count: Tensor | int,
    rate: float = 1.0,
    moments: tuple[float, float] = MOMENTS,
) -> Tensor:
    """What to subtract from the parameters: rate * mean / (sqrt(mean square) + floor), corrected for their start at 0.

    `first` and `second` are updated in place. `count`: the steps taken, this one included, of all or of each.
    """
    keep, keep_square = moments
    first.mul_(keep).add_(gradient, alpha=1 - keep)
    second.mul_(keep_square).addcmul_(gradient, gradient, value=1 - keep_square)
    mean = first / (1 - keep**count)
    if rate != 1.0:  # before the division: which comes first decides the last digit
        mean *= rate
    # The floor is added after the root, as in the libraries: inside it, small gradients would take other steps.
    return mean.div_((second / (1 - keep_square**count)).sqrt_().add_(FLOOR))


def fused_adam(leaves: Iterable[Tensor], rate: float, decay: float) -> torch.optim.Optimizer:
    """The same from the library, for leaves that all step together and whose moments end with the round.

    It goes through the memory once, which is what counts where every client has a network of its own.
    """
    return torch.optim.Adam(leaves, lr=rate, betas=MOMENTS, eps=FLOOR, weight_decay=decay, fused=True)
