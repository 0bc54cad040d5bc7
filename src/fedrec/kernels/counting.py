"""Counting draws at the speed of the compiled sampler."""

from __future__ import annotations

import numpy as np
from numba import njit

from fedrec.kernels.mf import EXACT, draw_negatives, fold


@njit(**EXACT)
def add_draws(places, users, user_ptr, pool_ptr, gap, n_items, slots, unique, key, counts):
    """One round of the users at `places`, added to their rows of `counts`."""
    # Nobody has more positives than there are items.
    out = np.empty(n_items * slots, np.int64)
    for row in range(len(places)):
        place = places[row]
        positives = user_ptr[place + 1] - user_ptr[place]
        if positives == 0:
            continue
        excluded = gap[pool_ptr[place] : pool_ptr[place + 1]]
        draw_negatives(fold(key, np.uint64(users[place])), slots, n_items, positives, excluded, unique, out)
        for j in range(positives * slots):
            counts[row, out[j]] += 1
