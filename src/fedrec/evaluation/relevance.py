"""Lists as ones and zeros, from the positions of held-out items: what a metric of one's own is a function of."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from fedrec.evaluation.targets import Ints
from fedrec.evaluation.ties import TieGroups, tie_groups

Floats: TypeAlias = NDArray[np.float64]
OfLists: TypeAlias = Callable[[Floats, Ints], Floats]
"""[users, k] of ones where a held-out item stands, and how many each user has, to one value per user."""

DRAWS = 32
"""Orders of equal scores that are averaged over where a user has several held-out items."""


def expectation(values: OfLists, higher: Ints, equal: Ints, indptr: Ints, k: int) -> Floats:
    """The mean over orders of equal scores: exact without ties or with one held-out item, else of some drawn orders."""
    if len(higher) == len(indptr) - 1:
        return _mean_of_single(values, higher, equal, k)
    groups, counts = tie_groups(higher, equal, indptr), np.diff(indptr)
    # A group changes the list only if it begins within k and holds an item that is not held out.
    unsure = np.zeros(len(counts), bool)
    unsure[groups.row[(groups.equal > groups.relevant) & (groups.higher < k)]] = True
    # A fixed seed, because the same ranking must have the same figure every time.
    drawn = np.random.default_rng(0)
    found = values(_lists(groups, len(counts), k, drawn), counts)
    if unsure.any():
        rest = [values(_lists(groups, len(counts), k, drawn)[unsure], counts[unsure]) for _ in range(DRAWS - 1)]
        found = found.copy()
        found[unsure] = np.mean([found[unsure], *rest], axis=0)
    return found


def _mean_of_single(values: OfLists, higher: Ints, equal: Ints, k: int) -> Floats:
    """Average over orders: of one held-out item there are k + 1 lists, it stands at one of k places or beyond."""
    # A single hit makes k + 1 different lists, so the metric is asked k + 1 times and not once per user.
    of_place = values(np.eye(k + 1, k), np.ones(k + 1, np.int64))
    before = np.concatenate([[0.0], np.cumsum(of_place[:k])])
    first, last = np.minimum(higher, k), np.minimum(higher + equal, k)
    inside = last - first
    return np.asarray((before[last] - before[first] + (equal - inside) * of_place[k]) / equal, np.float64)


def _lists(groups: TieGroups, users: int, k: int, drawn: np.random.Generator) -> Floats:
    """One order of equal scores: place after place, each a hit with the share of held-out items among those left."""
    lists, left = np.zeros((users, k)), groups.relevant.copy()
    for place in range(k):
        here = np.flatnonzero((groups.higher <= place) & (place < groups.higher + groups.equal))
        open_places = groups.equal[here] - (place - groups.higher[here])
        hit = drawn.random(len(here)) < left[here] / open_places
        lists[groups.row[here], place] = hit
        left[here] -= hit
    return lists
