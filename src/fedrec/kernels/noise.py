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
    # Half a step off the grid, so that neither 0 nor 1 is drawn: the logarithm of 0 is infinite.
    return (np.float64(draw >> _TWELVE) + 0.5) * _STEP


@njit(parallel=True, cache=True)
def add_normal(keys, scale, values):
    """values[c, j] += scale * the j-th normal draw of client c."""
    for c in prange(len(keys)):
        for j in range(values.shape[1]):
            # The second normal number that these two draws could give is not used, so that draw j hangs on j alone.
            radius = math.sqrt(-2.0 * math.log(_uniform(fold(keys[c], np.uint64(2 * j)))))
            angle = 2.0 * math.pi * _uniform(fold(keys[c], np.uint64(2 * j + 1)))
            values[c, j] += scale * (radius * math.cos(angle))


@njit(parallel=True, cache=True)
def add_laplace(keys, scale, values):
    """values[c, j] += scale * the j-th Laplace draw of client c."""
    for c in prange(len(keys)):
        for j in range(values.shape[1]):
            centred = _uniform(fold(keys[c], np.uint64(j))) - 0.5
            # log1p keeps the digits of small draws, which 1 - x would round away.
            size = -math.log1p(-2.0 * abs(centred))
            values[c, j] += scale * (size if centred >= 0 else -size)
