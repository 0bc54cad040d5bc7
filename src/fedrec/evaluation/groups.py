"""Groups of users and of held-out items: who is served well, not only how well on average.

Every function gives one label per user or per held-out item, as an index into the names beside it.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedrec.errors import FedrecError
from fedrec.evaluation.targets import Ints, Pairs

ACTIVITY = ("cold", "middle", "warm")
TASTE = ("distinct", "middle", "followers")
POPULARITY = ("head", "mid", "tail")

POPULAR_SHARE = 0.3
"""Share of the catalogue that counts as popular."""


def by_activity(counts: NDArray[Any], share: float = 0.3) -> Ints:
    """Cold: the share of users with the fewest training interactions; warm: that with the most; ties by user."""
    if not 0 < share <= 0.5:
        raise FedrecError(f"share = {share} must lie above 0 and be at most 0.5: two groups must not overlap")
    # Halves round up; without the 1e-9 a product that is a hair below one half in binary would round down.
    return _extremes(np.asarray(counts, np.float64), max(1, int(np.floor(len(counts) * share + 0.5 + 1e-9))))


def by_taste(train: Pairs, n_users: int, n_items: int, size: int = 100, popular: float = POPULAR_SHARE) -> Ints:
    """Followers: the `size` users with most of their training interactions on popular items; distinct: with least.

    Popular is the top share of items by training interactions, lower ids first among equals. Equal users are ordered
    by id. Where there are fewer than two groups of `size`, each is half of the users.
    """
    user, item = (np.asarray(side, np.int64) for side in train)
    if not len(user):
        raise FedrecError("no user has training interactions, so users cannot be grouped by taste")
    liked = np.zeros(n_items, bool)
    liked[popular_items(item, n_items, popular)] = True
    own = np.bincount(user, minlength=n_users)
    # Users without training interactions are left out below; the 1 only avoids dividing by 0 for them.
    share = np.bincount(user, liked[item], n_users) / np.maximum(own, 1)
    known = np.flatnonzero(own)
    labels = np.ones(n_users, np.int64)  # users without training interactions have no taste: middle
    labels[known] = _extremes(share[known], max(1, min(size, len(known) // 2)))
    return labels


def popular_items(item: NDArray[Any], n_items: int, share: float = POPULAR_SHARE) -> Ints:
    """The top share of items by training interactions, lower ids first among equals."""
    counts = np.bincount(item, minlength=n_items)
    return np.asarray(np.argsort(-counts, kind="stable")[: max(1, int(np.floor(n_items * share + 0.5 + 1e-9)))])


def by_popularity(item_counts: NDArray[Any], items: NDArray[Any]) -> Ints:
    """Head, mid or tail of each item: thirds of the training interactions, from the most popular item down.

    So the head is a few items and the tail most of them, and users' next items fall into each about equally often.
    """
    counts = np.asarray(item_counts, np.float64)
    order = np.argsort(-counts, kind="stable")
    before = np.cumsum(counts[order]) - counts[order]
    label = np.empty(len(counts), np.int64)
    # Items behind the last interaction would otherwise fall into a fourth third.
    label[order] = np.minimum(np.floor(3 * before / max(counts.sum(), 1)), 2)
    # Where nobody has trained on anything, all items would count as the head.
    label[counts == 0] = 2
    return np.asarray(label[np.asarray(items, np.int64)], np.int64)


def _extremes(values: NDArray[np.float64], size: int) -> Ints:
    """0 for the `size` smallest, 2 for the `size` largest, 1 between; one order, so that nobody is in both."""
    order = np.argsort(values, kind="stable")
    labels = np.ones(len(values), np.int64)
    labels[order[len(values) - size :]] = 2
    labels[order[:size]] = 0
    return labels
