"""Compiled noise: the same draws as `random.normal` and `random.laplace`, one client after another on every core.

A table of noise per client and round is by far the largest amount of randomness that a run needs.
"""

from __future__ import annotations

import math

import numpy as np
from numba import njit, prange

from fedrec.kernels.mf import fold

_TWELVE = np.uint64(12)
_STEP = 2.0**-52


@njit(inline="always")
def _uniform(draw):
    return (np.float64(draw >> _TWELVE) + 0.5) * _STEP


@njit(parallel=True, cache=True)
def add_normal(keys, scale, values):
    """values[c, j] += scale * the j-th normal draw of client c."""
    for c in prange(len(keys)):
        for j in range(values.shape[1]):
            radius = math.sqrt(-2.0 * math.log(_uniform(fold(keys[c], np.uint64(2 * j)))))
            angle = 2.0 * math.pi * _uniform(fold(keys[c], np.uint64(2 * j + 1)))
            values[c, j] += scale * (radius * math.cos(angle))


@njit(parallel=True, cache=True)
def add_laplace(keys, scale, values):
    """values[c, j] += scale * the j-th Laplace draw of client c."""
    for c in prange(len(keys)):
        for j in range(values.shape[1]):
            centred = _uniform(fold(keys[c], np.uint64(j))) - 0.5
            size = -math.log1p(-2.0 * abs(centred))
            values[c, j] += scale * (size if centred >= 0 else -size)
