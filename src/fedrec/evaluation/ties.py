"""What counts among equal scores.

`expected`: a held-out item that shares its score with others stands at each of their places with equal chance, and
every metric is the expectation over these orders. `first`: it stands behind all others of the same score, as in much
published code. `item_id`: lower item numbers come first. Here are the rules' names and the blocks of equal score.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fedrec.evaluation.targets import Ints

TIES = ("expected", "first", "item_id")


@dataclass(frozen=True)
class Blocks:
    """The blocks that contain held-out items, ordered by row and then from the top."""

    row: Ints
    higher: Ints
    """Candidates above the block."""
    equal: Ints
    """Candidates in the block."""
    relevant: Ints
    """Held-out items in the block."""
    hits_above: Ints
    """Held-out items of the row above the block."""
    order: Ints
    """Held-out items sorted into blocks: `relevant` of the first block, then of the next."""
    starts: Ints


def blocks(higher: Ints, equal: Ints, indptr: Ints) -> Blocks:
    """Group the positions of held-out items; items of a row with as many candidates above share a block."""
    rows = np.repeat(np.arange(len(indptr) - 1), np.diff(indptr))
    order = np.lexsort((higher, rows))
    new = np.ones(len(order), bool)
    new[1:] = (np.diff(rows[order]) != 0) | (np.diff(higher[order]) != 0)
    starts = np.flatnonzero(new)
    first = order[starts]
    relevant = np.diff(np.append(starts, len(order)))
    return Blocks(rows[first], higher[first], equal[first], relevant, starts - indptr[rows[first]], order, starts)


def last_among_equals(higher: Ints, equal: Ints, indptr: Ints) -> tuple[Ints, Ints]:
    """Settle ties against the held-out items: r of them in a block of b take its last r places, by ascending id."""
    found = blocks(higher, equal, indptr)
    within = np.arange(len(higher)) - np.repeat(found.starts, found.relevant)
    settled = np.empty_like(higher)
    settled[found.order] = np.repeat(found.higher + found.equal - found.relevant, found.relevant) + within
    return settled, np.ones_like(equal)
