"""Sparsity studies: every user keeps a random share of the training items, drawn once for the data version."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fedrec.evaluation.targets import Pairs
from fedrec.splitmix import Purpose, fold_array, stream

_STREAM = 1
"""Keeps these draws distinct from others with the same purpose."""


def select_rows(train: Pairs, fraction: float, seed: int) -> NDArray[np.bool_]:
    """Choose training rows that stay: of every user `fraction` of the rows, rounded half up, at least one.

    A row's draw is a hash of the seed, its user and its item. So what is kept at a smaller fraction is part of what is
    kept at a larger one, and nobody's draw depends on anybody else.
    """
    user, item = (np.asarray(side, np.int64) for side in train)
    draw = fold_array(fold_array(stream(seed, Purpose.CANDIDATES, _STREAM), user), item)
    # The item settles equal draws, so that the order of rows in the data does not matter.
    order = np.lexsort((item, draw, user))
    counts = np.bincount(user)
    rank = np.empty(len(user), np.int64)
    rank[order] = np.arange(len(user)) - np.repeat(np.cumsum(counts) - counts, counts)
    # 0.29 of 50 is a hair below 14.5 in binary, so the 1e-9 rounds it up as on paper.
    quota = np.maximum(np.floor(counts * fraction + 0.5 + 1e-9), 1)
    return np.asarray(rank < quota[user], np.bool_)
