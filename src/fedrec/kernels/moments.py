"""Compiled second moments of the rows that clients' samples of a round have in their own tables."""

from __future__ import annotations

import numpy as np
from numba import njit, prange

from fedrec.kernels.mf import FAST, draw_client, drawing_space


@njit(**FAST)
def _moments(table, ids, times, scatter):
    """The scatter of these rows around their mean, each counted so many times; returns their summed squares."""
    d, count, size = table.shape[1], 0.0, 0.0
    # In double precision, because a mean is then subtracted from numbers that are close to it.
    mean, row = np.zeros(d, np.float64), np.empty(d, np.float64)
    for k in range(len(ids)):
        count += times[k]
        for f in range(d):
            mean[f] += times[k] * table[ids[k], f]
    for f in range(d):
        # A client without samples has a count of 0.
        mean[f] /= max(count, 1.0)
    scatter[:] = 0.0
    for k in range(len(ids)):
        for f in range(d):
            size += times[k] * np.float64(table[ids[k], f]) ** 2
            row[f] = table[ids[k], f] - mean[f]
        for a in range(d):
            by = times[k] * row[a]
            for f in range(d):
                scatter[a, f] += by * row[f]
    return size


@njit(**FAST)
def _moments_of_block(low, high, data, slots, key, tables, scatter, size):
    n_items = tables.shape[1]
    slot, _, slot_of, ids = drawing_space(data, low, high, slots, n_items)
    times = np.empty(len(ids), np.float64)
    for k in range(low, high):
        mine, used = draw_client(data, k, key, slots, n_items, slot, slot_of, ids)
        times[:used] = 0.0
        for row in mine:
            times[row] += 1.0
        size[k] = _moments(tables[k], ids[:used], times, scatter[k])


@njit(parallel=True, cache=True, **FAST)
def sample_moments(data, slots, key, tables, blocks, scatter, size):
    """Of clients of one user each, who draw with the `key` of a round; `tables` [clients, items, d].

    `scatter` [clients, d, d] becomes that of the rows of all samples around their mean, `size` their summed squares.
    """
    for b in prange(len(blocks) - 1):
        _moments_of_block(blocks[b], blocks[b + 1], data, slots, key, tables, scatter, size)
