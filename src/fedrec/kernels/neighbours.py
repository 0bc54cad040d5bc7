"""Compiled means over neighbourhoods, each made from the sum of one that differs from it by few members."""

from __future__ import annotations

import numpy as np
from numba import njit, prange

from fedrec.kernels.mf import FAST
from fedrec.kernels.streamed import gather_past

# So few columns at a time that the sums of distinct neighbourhoods stay in a near cache.
WIDE = 256


@njit(**FAST)
def _distinct(tables, steps, low, wide):
    """Means over every neighbourhood in some columns. Sums are in double precision: a chain of them may be long."""
    order, parent, first, member, sign, size = steps
    sums, means = np.zeros((len(order) + 1, wide), np.float64), np.empty((len(order), wide), tables.dtype)
    for u in order:
        for f in range(wide):
            sums[u, f] = sums[parent[u], f]
        for j in range(first[u], first[u + 1]):
            row, by = tables[member[j], low : low + wide], sign[j]
            for f in range(wide):
                sums[u, f] += by * row[f]
        part = 1.0 / size[u]
        for f in range(wide):
            means[u, f] = sums[u, f] * part
    return means


@njit(**FAST)
def _hand_out(means, place, out, total):
    """Every client's mean into its row, and the sum of these."""
    gather_past(means, place, out)
    for u in range(len(out)):
        row = means[place[u]]
        for f in range(len(row)):
            total[f] += row[f]


@njit(parallel=True, cache=True, **FAST)
def add_means(tables, steps, place, at, out, total):
    """Mean rows of `tables` [clients, n] over every client's neighbours into out[:, at : at + n]; adds them to `total`.

    `place`: every client's neighbourhood. `steps`: order, parent, first, member, sign, size of neighbourhoods. One has
    the members of parent[u], before it in `order` (or nobody, where that is behind all), with the members
    first[u]:first[u + 1] added or taken away by their sign; `size[u]` in all.
    """
    # By columns, because sums of neighbourhoods build on each other and cannot be formed side by side.
    for block in prange((tables.shape[1] + WIDE - 1) // WIDE):
        low = block * WIDE
        wide = min(WIDE, tables.shape[1] - low)
        means = _distinct(tables, steps, low, wide)
        _hand_out(means, place, out[:, at + low : at + low + wide], total[at + low : at + low + wide])
