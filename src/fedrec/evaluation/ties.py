"""How ties are ranked.

`expected`: a held-out item that shares its score with others takes each of their ranks with equal probability, and
every metric is the expectation over these orders. `first`: it comes after all others with the same score, as in much
published code. `item_id`: lower item numbers come first. This file has the names of the rules and the groups of equal
scores.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fedrec.evaluation.targets import Ints

TIES = ("expected", "first", "item_id")


@dataclass(frozen=True)
class TieGroups:
    """Groups of candidates with equal scores that hold held-out items, by row and then from the top."""

    row: Ints
    higher: Ints
    """Candidates above the group."""
    equal: Ints
    """Candidates in the group."""
    relevant: Ints
    """Held-out items in the group."""
    hits_above: Ints
    """Held-out items of the row above the group."""
    order: Ints
    """Held-out items sorted by group: `relevant` of the first, then of the next."""
    starts: Ints


def tie_groups(higher: Ints, equal: Ints, indptr: Ints) -> TieGroups:
    """Group the positions of held-out items; items of a row with as many candidates above share a group."""
    rows = np.repeat(np.arange(len(indptr) - 1), np.diff(indptr))
    # lexsort takes its main key last: by row, then from the top
    order = np.lexsort((higher, rows))
    new = np.ones(len(order), bool)
    new[1:] = (np.diff(rows[order]) != 0) | (np.diff(higher[order]) != 0)
    starts = np.flatnonzero(new)
    first = order[starts]
    relevant = np.diff(np.append(starts, len(order)))
    return TieGroups(rows[first], higher[first], equal[first], relevant, starts - indptr[rows[first]], order, starts)


def last_among_equals(higher: Ints, equal: Ints, indptr: Ints) -> tuple[Ints, Ints]:
    """Settle ties against the held-out items: r of them in a group of b take its last r ranks, by ascending id."""
    found = tie_groups(higher, equal, indptr)
    within = np.arange(len(higher)) - np.repeat(found.starts, found.relevant)
    settled = np.empty_like(higher)
    settled[found.order] = np.repeat(found.higher + found.equal - found.relevant, found.relevant) + within
    return settled, np.ones_like(equal)
