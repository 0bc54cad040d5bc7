"""Given scores, ranked under every tie rule at once."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fedrec.evaluation.metrics import recall
from fedrec.experiment.audit.case import Case, Scores


@dataclass(frozen=True)
class Spread:
    """recall@k with ties against the held-out items, at random, and in their favour."""

    worst: float
    expected: float
    best: float
    covered: float
    """Share of the test pairs that have a score."""


def spread(case: Case, scores: Scores) -> Spread | None:
    """Candidates of a user are its scored items less those of training and validation; a pair scored twice counts once.

    None where no test pair has a score.
    """
    n_items = case.n_items
    keys, first = np.unique(scores.user * n_items + scores.item, return_index=True)
    values = scores.score[first]
    test = case.keys("test")
    open_ = np.isin(keys, test) | ~np.isin(keys, case.keys("train", "valid"))
    keys, values = keys[open_], values[open_]
    held = keys[np.isin(keys, test)]
    if not held.size:
        return None
    higher, equal = _positions(keys, values, held, n_items)
    indptr = np.concatenate([[0], np.flatnonzero(np.diff(held // n_items)) + 1, [len(held)]]).astype(np.int64)
    one = np.ones_like(equal)
    worst, expected, best = (
        float(recall(above, width, indptr, case.k).mean())
        for above, width in ((higher + equal - 1, one), (higher, equal), (higher, one))
    )
    return Spread(worst, expected, best, held.size / test.size)


def _positions(keys: np.ndarray, values: np.ndarray, held: np.ndarray, n_items: int) -> tuple[np.ndarray, np.ndarray]:
    """For each held-out pair: scores of its user strictly above, and equal, itself included."""
    order = np.lexsort((values, keys // n_items))
    user, value = (keys // n_items)[order], values[order]
    dense = np.unique(value, return_inverse=True)[1]  # ranks of values: whole numbers, so that pairs can be compared
    size = int(dense.max()) + 1
    sorted_pairs = user * size + dense
    rank = np.empty(len(order), np.int64)
    rank[order] = np.arange(len(order))
    own = sorted_pairs[rank[np.searchsorted(keys, held)]]
    left, right = (np.searchsorted(sorted_pairs, own, side) for side in ("left", "right"))
    end = np.searchsorted(user, held // n_items, "right")
    return (end - right).astype(np.int64), (right - left).astype(np.int64)
