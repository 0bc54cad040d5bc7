"""The sign attack: a user's items out of one uploaded table.

In one round of matrix factorisation, every row that a client's samples touch moves along its user vector: forwards for
an item that the user has, backwards for a negative. Whoever sees the table that went down and the one that came up sees
two clouds of rows on one line. Negatives are more than items, so the smaller cloud is the history.
"""

from __future__ import annotations

import numpy as np
from scipy.stats import rankdata

# Relative to the longest move, since learning rates scale all moves alike; rows that did not move are zero but for the
# rounding of the projection.
STILL = 1e-9


def sign_attack(before: np.ndarray, after: np.ndarray) -> np.ndarray:
    """For every item how far its row moved along the line of all moves, towards the smaller side."""
    # In double precision, because the difference of two nearly equal float32 tables loses most of its digits.
    change = np.asarray(after, dtype=np.float64) - before
    # All moves are multiples of one user vector, so the first singular direction is the line, without knowing the
    # vector.
    _, _, lines = np.linalg.svd(change, full_matrices=False)
    along = change @ lines[0]
    moved = np.abs(along) > STILL * np.abs(along).max(initial=0.0)
    # The sign of a singular vector is arbitrary, so the counts decide which side are the items.
    return along if (along[moved] > 0).sum() <= (along[moved] < 0).sum() else -along


def auc(scores: np.ndarray, items: np.ndarray) -> float:
    """How often an item of the user is scored above one that is not; ties count half."""
    ranks, mine, others = rankdata(scores), len(items), len(scores) - len(items)
    return float((ranks[items].sum() - mine * (mine + 1) / 2) / (mine * others))
