"""The generators behind everything random in this folder."""

from __future__ import annotations

import numpy as np

from fedrec.errors import FedrecError


def generator(seed: int, stream: int = 0) -> np.random.Generator:
    """An independent generator for each (seed, stream)."""
    if seed < 0:
        raise FedrecError(f"a seed must not be negative, but {seed} was given")
    return np.random.Generator(np.random.Philox(np.random.SeedSequence([seed, stream])))
