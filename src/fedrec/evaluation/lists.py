"""List metrics as two published evaluations computed them, under names of their own; to repeat printed figures only.

`mrr_released` and `ndcg_released` put the first k items into a Python set and read positions from its iteration order,
which is that of the item numbers modulo the size of the set's table. `ndcg_released` also divides by the gain of as
many hits as there are, so that recall drops out. `ndcg_index` reads positions from the first k sorted by item number.
`ndcg_ifedrec` reads them so too, and is a pooled figure: the mean gain of all users times the mean of one over their
ideal gains, because the released code divides arrays of shapes (n,) and (n, 1).
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from fedrec.evaluation.targets import Ints, Targets

Floats = NDArray[np.float64]
Hits = NDArray[np.bool_]


def set_order(lists: Ints) -> Ints:
    """Each row in the order in which CPython iterates over the set of it; -1 fills up at the end."""
    ordered = np.full_like(lists, -1)
    for row, listed in enumerate(lists.tolist()):
        there = [item for item in listed if item >= 0]
        # A real set, because no formula for CPython's order of iteration would hold for every version and size.
        ordered[row, : len(there)] = list(set(there))
    return ordered


def index_order(lists: Ints) -> Ints:
    """Each row by ascending item number; -1 fills up at the end."""
    # Larger than any item number, so that the padding sorts behind all of them.
    last = np.iinfo(np.int64).max
    ordered = np.sort(np.where(lists < 0, last, lists), 1)
    return np.where(ordered == last, -1, ordered)


def hits(lists: Ints, targets: Targets) -> Hits:
    """Whether each listed item is held out for the user of its row."""
    # A row and an item as one integer, so that one look-up serves all users.
    rows = np.arange(len(targets)) * targets.n_items
    keys = np.repeat(rows, targets.counts) + targets.items
    return np.asarray((lists >= 0) & np.isin(lists + rows[:, None], keys), np.bool_)


def mrr_released(lists: Ints, targets: Targets) -> Floats:
    """1 / position of the first hit in the order of the set."""
    found = hits(set_order(lists), targets)
    return np.where(found.any(1), 1 / (found.argmax(1) + 1), 0.0)


def ndcg_released(lists: Ints, targets: Targets) -> Floats:
    """Discounted gain in the order of the set, over that of the same number of hits at the top."""
    found = hits(set_order(lists), targets)
    return _ratio(found, found.sum(1))


def ndcg_index(lists: Ints, targets: Targets) -> Floats:
    """Discounted gain in the order of item numbers, over that of a perfect list."""
    found = hits(index_order(lists), targets)
    return _ratio(found, np.minimum(targets.counts, lists.shape[1]))


def index_gain(lists: Ints, targets: Targets) -> Floats:
    """Discounted gain in the order of item numbers."""
    return _gain(hits(index_order(lists), targets))


def inverse_ideal(counts: Ints, k: int) -> Floats:
    """One over the gain of a perfect list of k, of users with so many held-out items."""
    return np.asarray(1 / _ideal(np.minimum(counts, k), k), np.float64)


def _ratio(found: Hits, best: Ints) -> Floats:
    ideal = _ideal(best, found.shape[1])
    # Without a hit both are 0, and the released code counts that as 0.
    return np.asarray(_gain(found) / np.where(ideal > 0, ideal, 1), np.float64)


def _gain(found: Hits) -> Floats:
    return np.asarray((found * _discounts(found.shape[1])).sum(1), np.float64)


def _ideal(best: Ints, k: int) -> Floats:
    return np.asarray(np.concatenate([[0.0], np.cumsum(_discounts(k))])[best], np.float64)


def _discounts(k: int) -> Floats:
    return np.asarray(1 / np.log2(np.arange(2, k + 2)), np.float64)


RELEASED: dict[str, Callable[[Ints, Targets], Floats]] = {
    "mrr_released": mrr_released,
    "ndcg_released": ndcg_released,
    "ndcg_index": ndcg_index,
}
"""Each takes the first k items of every user, best first, and their targets."""
