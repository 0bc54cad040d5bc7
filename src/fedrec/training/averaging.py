"""A running mean of a model: what it came to lately, less noisy than where it stands.

After t models, one of age k counts keep^k / (1 + keep + ... + keep^(t-1)): the mean of Adam's first moment, with its
correction for the start (after Polyak & Juditsky, 1992).
"""

from __future__ import annotations

import torch
from torch import Tensor

MEAN = "mean."  # marks the means in a state


def mean_with(mean: Tensor, latest: Tensor, t: int, keep: float) -> Tensor:
    """The mean of t models, from that of t - 1 and the latest; the first model takes the place of any start."""
    return torch.lerp(mean, latest, (1 - keep) / (1 - keep**t))
