"""Compiled means over neighbourhoods, each made from the sum of one that differs from it by few members."""

from __future__ import annotations

import numpy as np
from numba import njit, prange

from fedrec.kernels.mf import FAST

WIDE = 256  # columns that are summed at a time: the sums of distinct neighbourhoods stay in a near cache


@njit(**FAST)
def _distinct(tables, steps, low, wide, place):
    """Means of the distinct neighbourhoods in some columns; `place` becomes every client's among them.

    Sums are in double precision: a chain of them may be long.
    """
    order, parent, first, member, sign, size = steps
    count = 1
    for u in order:
        count += first[u + 1] > first[u]
    sums, means = np.zeros((count, wide), np.float64), np.zeros((count, wide), tables.dtype)
    used, place[-1] = 0, 0  # nobody's sum
    for u in order:
        before = place[u] = place[parent[u]]
        if first[u + 1] == first[u]:
            continue
        used += 1
        place[u] = used
        for f in range(wide):
            sums[used, f] = sums[before, f]
        for j in range(first[u], first[u + 1]):
            row, by = tables[member[j], low : low + wide], sign[j]
            for f in range(wide):
                sums[used, f] += by * row[f]
        part = 1.0 / size[u]
        for f in range(wide):
            means[used, f] = sums[used, f] * part
    return means


@njit(**FAST)
def _hand_out(means, place, out, total):
    """Every client's mean into its row, and the sum of these."""
    for u in range(len(out)):
        row = means[place[u]]
        for f in range(len(row)):
            out[u, f] = row[f]
        for f in range(len(row)):
            total[f] += row[f]


@njit(parallel=True, cache=True, **FAST)
def add_means(tables, steps, at, out, total):
    """Mean rows of `tables` [clients, n] over every client's neighbours into out[:, at : at + n]; adds them to `total`.

    `steps`: order, parent, first, member, sign, size. The neighbours of u are those of parent[u], one before it in
    `order` (or nobody, where it is behind all), with the members first[u]:first[u + 1] added or taken away by their
    sign; `size[u]` in all.
    """
    for block in prange((tables.shape[1] + WIDE - 1) // WIDE):
        low = block * WIDE
        wide, place = min(WIDE, tables.shape[1] - low), np.empty(len(out) + 1, np.int64)
        means = _distinct(tables, steps, low, wide, place)
        _hand_out(means, place, out[:, at + low : at + low + wide], total[at + low : at + low + wide])
