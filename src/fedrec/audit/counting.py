"""Counting draws at the speed of the compiled sampler."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

from fedrec.federation import kernels

_draw: Any = kernels.draw_negatives
_fold: Any = kernels.fold


def _add_draws(places: Any, users: Any, user_ptr: Any, pool_ptr: Any, gap: Any, n_items: int, slots: int,
               unique: bool, key: Any, counts: Any) -> None:  # fmt: skip
    """One round of the users at `places`, added to their rows of `counts`."""
    out = np.empty(n_items * slots, np.int64)  # nobody has more positives than there are items
    for row in range(len(places)):
        place = places[row]
        positives = user_ptr[place + 1] - user_ptr[place]
        if positives == 0:
            continue
        excluded = gap[pool_ptr[place] : pool_ptr[place + 1]]
        _draw(_fold(key, np.uint64(users[place])), slots, n_items, positives, excluded, unique, out)
        for j in range(positives * slots):
            counts[row, out[j]] += 1


add_draws: Any = njit(**kernels.EXACT)(_add_draws)
