"""What is ranked for whom: held-out items, masked items and candidates of every evaluated user."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain, repeat
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from fedrec.errors import FedrecError

Ints: TypeAlias = NDArray[np.int64]
Pairs: TypeAlias = tuple[NDArray[Any], NDArray[Any]]
"""Interactions as two aligned arrays: users, items."""


@dataclass(frozen=True)
class Targets:
    """Row k is user `users[k]`; ragged lists are CSR, and items ascend within a row."""

    n_items: int
    users: Ints
    """Users with at least one held-out item, ascending."""
    indptr: Ints
    items: Ints
    """Held-out items of row k: `items[indptr[k]:indptr[k + 1]]`."""
    mask_indptr: Ints
    mask_items: Ints
    """Items that are never candidates of row k."""
    candidates: Ints | None = None
    """Sampled items ranked against the held-out ones, one row per user; None: the whole catalogue is ranked."""
    catalogue: Ints | None = None
    """Items that are candidates for anybody, as in a cold-start split; None: all of them."""
    on_device: dict[Any, Any] = field(default_factory=dict, compare=False, repr=False)
    """What ranking has copied to an accelerator: the targets of a run are ranked again and again."""

    @classmethod
    def build(
        cls,
        held_out: Pairs,
        excluded: Sequence[Pairs],
        n_items: int,
        *,
        candidates: Ints | None = None,
        catalogue: NDArray[Any] | None = None,
        names: Sequence[str] = ("test", "training", "training"),
    ) -> Targets:
        """Rows from plain pairs. `candidates` must be aligned with the ascending distinct users of `held_out`.

        `names` are those of `held_out` and of the parts of `excluded`, for people who gave a pair twice.
        """
        keys = pair_keys([held_out], n_items)
        if not keys.size:
            raise FedrecError("no user has a held-out item; lower min_interactions or choose another split")
        excluded_keys = pair_keys(excluded, n_items)
        if np.intersect1d(keys, excluded_keys, assume_unique=True).size:
            raise _overlap(keys, excluded, n_items, names)
        users = np.unique(keys // n_items)
        indptr, items = csr_rows(keys, users, n_items)
        mask_indptr, mask_items = csr_rows(excluded_keys, users, n_items)
        allowed = None if catalogue is None else np.unique(np.asarray(catalogue, np.int64))
        targets = cls(n_items, users, indptr, items, mask_indptr, mask_items, candidates, allowed)
        targets._check_catalogue()
        targets._check_candidates()
        return targets

    @classmethod
    def none(cls, n_items: int) -> Targets:
        """Nobody has a held-out item."""
        nothing, start = np.zeros(0, np.int64), np.zeros(1, np.int64)
        return cls(n_items, nothing, start, nothing, start, nothing)

    def __len__(self) -> int:
        return len(self.users)

    @property
    def single(self) -> bool:
        """Whether every user has exactly one held-out item."""
        return len(self.items) == len(self.users)

    @property
    def counts(self) -> Ints:
        """Held-out items per row."""
        return np.diff(self.indptr)

    @property
    def n_candidates(self) -> Ints:
        """Items ranked per row, the held-out ones included."""
        if self.candidates is not None:
            return np.asarray(self.counts + self.candidates.shape[1], np.int64)
        open_items = np.ones(self.n_items, bool)
        if self.catalogue is not None:
            open_items[:] = False
            open_items[self.catalogue] = True
        # Differences of a running sum, because numpy's reduceat is wrong for empty rows.
        masked = np.concatenate([[0], np.cumsum(open_items[self.mask_items])])
        return np.asarray(open_items.sum() - np.diff(masked[self.mask_indptr]), np.int64)

    def rows(self, users: NDArray[Any]) -> Ints:
        """The row of each user, -1 for users without held-out items."""
        # Behind the last user searchsorted gives an index too many.
        spots = np.minimum(np.searchsorted(self.users, users), len(self.users) - 1)
        return np.where(self.users[spots] == users, spots, -1).astype(np.int64)

    def take(self, rows: NDArray[Any]) -> Targets:
        """The targets of some rows, in the order given."""
        # All users in order is the usual case: it shares the arrays, and their copies on an accelerator.
        if len(rows) == len(self) and bool((rows == np.arange(len(self))).all()):
            return self
        indptr, items = _take_csr(self.indptr, self.items, rows)
        mask_indptr, mask_items = _take_csr(self.mask_indptr, self.mask_items, rows)
        candidates = None if self.candidates is None else self.candidates[rows]
        return Targets(
            self.n_items, self.users[rows], indptr, items, mask_indptr, mask_items, candidates, self.catalogue
        )

    def over_catalogue(self) -> Targets:
        """Restrict to the catalogue alone: item k is `catalogue[k]`, so scores need no other columns."""
        if self.catalogue is None:
            return self
        inside = np.isin(self.mask_items, self.catalogue)
        mask_indptr = np.concatenate([[0], np.cumsum(inside)])[self.mask_indptr].astype(np.int64)
        items, mask = (np.searchsorted(self.catalogue, part) for part in (self.items, self.mask_items[inside]))
        candidates = None if self.candidates is None else np.searchsorted(self.catalogue, self.candidates)
        return Targets(len(self.catalogue), self.users, self.indptr, items, mask_indptr, mask, candidates)

    @cached_property
    def mask_spots(self) -> Ints:
        """Flat indices of `mask_items` in a matrix with one row per user and one column per item."""
        rows = np.repeat(np.arange(len(self)), np.diff(self.mask_indptr))
        return np.asarray(rows * self.n_items + self.mask_items, np.int64)

    def spots(self) -> Ints:
        """Flat indices of `items` in a matrix with one row per user, filled from the left."""
        rows = np.repeat(np.arange(len(self)), self.counts)
        return rows * int(self.counts.max()) + np.arange(len(self.items)) - self.indptr[rows]

    def _check_catalogue(self) -> None:
        if self.catalogue is not None and not np.isin(self.items, self.catalogue).all():
            raise FedrecError("a held-out item is outside the catalogue that is ranked; add it to the catalogue")

    def _check_candidates(self) -> None:
        if self.candidates is None:
            return
        if self.candidates.ndim != 2 or len(self.candidates) != len(self):
            raise FedrecError(f"sampled candidates need one row for each of the {len(self)} evaluated users")
        rows = np.arange(len(self)) * self.n_items
        # Sorted, a repeated item differs by 0 from its neighbour; keys of different rows cannot be equal.
        drawn = np.sort(self.candidates + rows[:, None], 1).ravel()
        held_out = np.repeat(rows, self.counts) + self.items
        masked = np.repeat(rows, np.diff(self.mask_indptr)) + self.mask_items
        if (np.diff(drawn) == 0).any() or np.isin(np.concatenate([held_out, masked]), drawn).any():
            raise FedrecError(
                "sampled candidates repeat an item or contain a held-out or masked one; sample them again"
            )
        if self.catalogue is not None and not np.isin(self.candidates, self.catalogue).all():
            raise FedrecError(
                "sampled candidates lie outside the catalogue; use candidates=full with a cold-items split"
            )


def pair_keys(parts: Sequence[Pairs], n_items: int) -> Ints:
    """All distinct pairs as single ascending integers: user * n_items + item."""
    empty = np.empty(0, np.int64)
    users, items = (np.concatenate([empty, *(np.asarray(part[side], np.int64) for part in parts)]) for side in (0, 1))
    if items.size and not (items.min() >= 0 and items.max() < n_items):
        raise FedrecError(f"item indices must lie in 0..{n_items - 1}, found {items.min()}..{items.max()}")
    keys = np.sort(users * n_items + items)
    fresh = np.ones(len(keys), bool)
    # np.unique would hash, ten times slower on millions of pairs.
    fresh[1:] = np.diff(keys) != 0
    return np.asarray(keys[fresh], np.int64)


def csr_rows(keys: Ints, users: Ints, n_items: int) -> tuple[Ints, Ints]:
    """CSR of the keys that belong to `users`."""
    owners = keys // n_items
    keys = keys[np.isin(owners, users)]
    # One bound more, to close the last row.
    indptr = np.searchsorted(keys, np.append(users, users[-1] + 1) * n_items)
    return indptr.astype(np.int64), keys % n_items


def _take_csr(indptr: Ints, values: Ints, rows: NDArray[Any]) -> tuple[Ints, Ints]:
    lengths = np.diff(indptr)[rows]
    taken = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    places = np.arange(taken[-1]) + np.repeat(indptr[:-1][rows] - taken[:-1], lengths)
    return taken, values[places]


def _overlap(held_out: Ints, excluded: Sequence[Pairs], n_items: int, names: Sequence[str]) -> FedrecError:
    """The error for pairs that are to be ranked and masked at once, with the first two parts that share some."""
    shared = (np.isin(held_out, pair_keys([part], n_items)).sum() for part in excluded)
    named = zip(shared, chain(names[1:], repeat("training")), strict=False)
    count, other = next((int(count), name) for count, name in named if count)
    pairs = "1 user-item pair is" if count == 1 else f"{count:,} user-item pairs are"
    return FedrecError(f"{pairs} in both the {other} and the {names[0]} part; keep each pair in one part only")
