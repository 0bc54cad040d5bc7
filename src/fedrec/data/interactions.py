"""The one table every other part of fedrec works on: who met which item, when, and how it was rated."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from fedrec.data.filtered import LOWER_MINIMUM, LOWER_RATING, Filtered
from fedrec.data.sparse import csr
from fedrec.errors import FedrecError
from fedrec.plugins import OldName

if TYPE_CHECKING:
    import scipy.sparse as sp

    from fedrec.data.bad_rows import BadRows

Array = np.ndarray[Any, np.dtype[Any]]

FEWEST_TO_SPLIT = 3  # items of a user that can be in training, validation and test
TIMES = ("real", "order", "none")


@dataclass(frozen=True, eq=False)
class ItemInfo:
    """Side information of items, row i belonging to item index i. A field that is not known is None."""

    titles: Array | None = None
    tags: sp.csr_matrix | None = None
    """[n_items, n_tags] float32, 1 where the item carries the genre or tag."""
    tag_names: tuple[str, ...] = ()
    years: Array | None = None
    """int64, 0 where the year is not known."""
    features: sp.csr_matrix | None = None
    """[n_items, n_features] float32 real-valued attributes as distributed; scale them before use."""
    feature_names: tuple[str, ...] = ()
    """Of the columns of `features`; empty where they have none."""

    def take(self, items: Array) -> ItemInfo:
        """The same information for some of the items, in the order given."""
        return ItemInfo(
            titles=None if self.titles is None else self.titles[items],
            tags=None if self.tags is None else self.tags[items],
            tag_names=self.tag_names,
            years=None if self.years is None else self.years[items],
            features=None if self.features is None else self.features[items],
            feature_names=self.feature_names,
        )

    def n_items(self) -> int | None:
        for known in (self.titles, self.tags, self.years, self.features):
            if known is not None:
                return int(known.shape[0])
        return None


@dataclass(frozen=True)
class Description:
    """The size of a dataset, as printed in tables."""

    name: str
    version: str
    users: int
    items: int
    interactions: int
    density: float
    time: str
    per_user_min: int
    per_user_median: float
    per_user_max: int


@dataclass(frozen=True, eq=False)
class Interactions:
    """Interactions in the row order of their file; users and items are numbered from 0.

    ``time`` says what ``timestamp`` is worth: "real" (a clock shared by all users), "order" (only the order within each
    user is known, values of different users must not be compared) or "none". ``tie_seed`` decides the order of
    interactions that share a timestamp; it belongs to the data version, so that every method and run sees the same one.
    """

    user: Array
    item: Array
    user_ids: Array
    item_ids: Array
    rating: Array | None = None
    timestamp: Array | None = None
    time: str = "none"
    name: str = ""
    version: str = ""
    tie_seed: int = 0
    info: ItemInfo | None = None
    first_line: Array | None = None
    """[n_items] the row of the whole, unfiltered file in which the item first appears (published splits go by it)."""
    notes: tuple[str, ...] = ()
    """What a reader of results should know about where the rows come from (for instance guessed columns)."""
    filtered: tuple[Filtered, ...] = ()
    """What filters have left out so far, in their order."""
    guessed: bool = False
    """Whether this is a user's own file, whose columns were guessed."""
    columns: Mapping[str, str] = field(default_factory=dict)
    """Of a user's own file: what chooses the same columns again, role by role; otherwise nothing."""

    silos: Mapping[str, str] | None = None
    """The company of every user, by id as text, where the data says it."""
    bad: BadRows | None = None
    """Rows of the file that could not be used and were put aside."""

    def __post_init__(self) -> None:
        n = self.user.shape[0]
        for role in ("item", "rating", "timestamp"):
            column = getattr(self, role)
            if column is not None and column.shape != (n,):
                raise FedrecError(f"column '{role}' has shape {column.shape}, but there are {n} interactions")
        _check_range("user", self.user, self.n_users)
        _check_range("item", self.item, self.n_items)
        # One rating that is no number would make every mean and loss no number, far from where it came from.
        if self.rating is not None and not np.isfinite(self.rating).all():
            raise FedrecError(
                f"rating of row {int(np.argmin(np.isfinite(self.rating)))} is not finite; fix or remove this row"
            )
        if self.time not in TIMES:
            raise FedrecError(f"time must be one of {', '.join(TIMES)}, not '{self.time}'")
        if (self.time == "none") != (self.timestamp is None):
            raise FedrecError(
                f"time='{self.time}' does not fit {'no' if self.timestamp is None else 'given'} timestamps"
            )
        if self.tie_seed < 0:
            raise FedrecError(f"tie_seed must not be negative, but {self.tie_seed} was given")
        # Published splits go by these lines: a wrong length would shift every cut without any sign of it.
        if self.first_line is not None and self.first_line.shape != (self.n_items,):
            raise FedrecError(f"first_line has shape {self.first_line.shape}, but there are {self.n_items} items")
        described = None if self.info is None else self.info.n_items()
        if described is not None and described != self.n_items:
            raise FedrecError(f"item information describes {described} items, but there are {self.n_items}")

    @property
    def n_users(self) -> int:
        return int(self.user_ids.shape[0])

    @property
    def n_items(self) -> int:
        return int(self.item_ids.shape[0])

    def __len__(self) -> int:
        return int(self.user.shape[0])

    @property
    def label(self) -> str:
        """Which data, and which version of it."""
        return f"{self.name}@{self.version}" if self.version else self.name

    def identity(self) -> str:
        """The label, with a checksum of the rows where there is no version to tell them by."""
        if self.version:
            return self.label
        parts = [part for part in (self.user, self.item, self.timestamp) if part is not None]
        # Contiguous first: a view with strides would be hashed in the order of its memory, not of its rows.
        rows = hashlib.sha256(b"".join(np.ascontiguousarray(part).tobytes() for part in parts))
        return f"{self.name}@rows-{rows.hexdigest()[:12]}"

    def __repr__(self) -> str:
        return f"<Interactions {self.label} users={self.n_users} items={self.n_items} interactions={len(self)}>"

    def matrix(self) -> sp.csr_matrix:
        """[n_users, n_items] float32, 1 for every pair that occurs (however often)."""
        ones = np.ones(len(self), dtype=np.float32)
        matrix = csr(ones, self.user, self.item, (self.n_users, self.n_items))
        matrix.data[:] = 1.0  # duplicate pairs were summed up
        return matrix

    def pair_keys(self) -> Array:
        """One int64 per row that is equal exactly for equal (user, item) pairs."""
        # A numpy integer, so that users times items is counted in 64 bits even where the index is 32 bits wide.
        return self.user * np.int64(self.n_items) + self.item

    def distinct_pairs(self) -> Array:
        """The keys of the pairs that occur, sorted, each once."""
        # Several times faster than np.unique on millions of rows.
        keys = np.sort(self.pair_keys())
        # The slice is for an empty table, which would otherwise have one key that does not exist.
        return keys[np.append(True, keys[1:] != keys[:-1])[: keys.size]]

    def counts(self) -> Array:
        """Rows per user."""
        return np.bincount(self.user, minlength=self.n_users)

    def select(self, rows: Array) -> Interactions:
        """Some of the rows (mask or index), in the same user and item numbering."""
        return replace(
            self,
            user=self.user[rows],
            item=self.item[rows],
            rating=None if self.rating is None else self.rating[rows],
            timestamp=None if self.timestamp is None else self.timestamp[rows],
        )

    def with_bad_rows(self, bad: BadRows) -> Interactions:
        """With a record of rows that could not be used."""
        record = Filtered(f"rows that cannot be used: {bad}", 0, 0, len(bad))
        return replace(self, filtered=(record, *self.filtered), bad=bad)

    def _leave_out(self, rows: Array, rule: str, remedy: str = "") -> Interactions:
        """Without the rows of a mask, and with a record of what was left out."""
        # Users and items are compared before and after, since a rule about rows can empty some of them.
        kept = self.select(~rows)
        users = _occurs(self.user, self.n_users) & ~_occurs(kept.user, self.n_users)
        items = _occurs(self.item, self.n_items) & ~_occurs(kept.item, self.n_items)
        return kept._record(rule, self.user_ids[users], self.item_ids[items], len(self) - len(kept), remedy)

    def _record(self, rule: str, user_ids: Array, item_ids: Array, rows: int, remedy: str) -> Interactions:
        if not (rows or user_ids.size or item_ids.size):
            # A filter that changed nothing leaves no record, so that reports list only what mattered.
            return self
        record = Filtered(rule, user_ids.size, item_ids.size, rows, remedy, user_ids, item_ids)
        return replace(self, filtered=(*self.filtered, record))

    def compact(self) -> Interactions:
        """Drop users and items without interactions and renumber the others in the same order."""
        users, user = np.unique(self.user, return_inverse=True)
        items, item = np.unique(self.item, return_inverse=True)
        never = (
            # Only those that no filter has named yet: the rule that emptied them is the reason, not this clean-up.
            _ids_without_record(np.delete(self.user_ids, users), [one.user_ids for one in self.filtered]),
            _ids_without_record(np.delete(self.item_ids, items), [one.item_ids for one in self.filtered]),
        )
        return replace(
            self._record("no interactions in the data", *never, 0, "data with interactions"),
            user=user.astype(np.int64),
            item=item.astype(np.int64),
            user_ids=self.user_ids[users],
            item_ids=self.item_ids[items],
            info=None if self.info is None else self.info.take(items),
            first_line=None if self.first_line is None else self.first_line[items],
        )

    def renumber_items(self, order: Array) -> Interactions:
        """The same rows with the items renumbered: item ``order[k]`` becomes item k."""
        # The inverse permutation by one scatter, where argsort would sort.
        place = np.empty(self.n_items, dtype=np.int64)
        place[order] = np.arange(self.n_items)
        return replace(
            self,
            item=place[self.item],
            item_ids=self.item_ids[order],
            info=None if self.info is None else self.info.take(order),
            first_line=None if self.first_line is None else self.first_line[order],
        )

    def with_threshold(self, min_rating: float | None = None) -> Interactions:
        """Rows that count as positive: rating >= ``min_rating``, or any rating above 0 where it is None.

        Rows without ratings are all positive. The numbering is kept; ``compact()`` drops what became empty.
        """
        if self.rating is None:
            if min_rating is not None:
                raise FedrecError(
                    f"'{self.name}' has no ratings, so min_rating={min_rating} cannot be applied; leave it out"
                )
            return self
        # Said here, with the range that there is: later it would only be known as a dataset without users.
        if min_rating is not None and len(self) and not self.positive(min_rating).any():
            raise FedrecError(
                f"no rating of '{self.name}' reaches {min_rating:g}: they go from "
                f"{self.rating.min():g} to {self.rating.max():g}; give a lower --min-rating"
            )
        rule = "ratings of 0 or less" if min_rating is None else f"ratings below {min_rating:g}"
        return self._leave_out(~self.positive(min_rating), rule, LOWER_RATING)

    def positive(self, min_rating: float | None) -> Array:
        """Which rows count as liking the item: without a threshold all but those rated 0 or less."""
        if self.rating is None:
            return np.ones(len(self), dtype=bool)
        return np.asarray(self.rating > 0 if min_rating is None else self.rating >= min_rating)

    def drop_repeats(self) -> Interactions:
        """One row per (user, item): the latest by time; among equally late ones, or without times, the last line."""
        keys = self.pair_keys()
        row = np.arange(len(self))
        # The row is the least significant key, so that among equal times the last line in the file wins.
        order = np.lexsort((row, keys) if self.timestamp is None else (row, self.timestamp, keys))
        repeated = np.zeros(len(self), dtype=bool)
        repeated[order[:-1]] = keys[order][1:] == keys[order][:-1]
        return self._leave_out(repeated, "repeats of a user-item pair") if repeated.any() else self

    def with_min_interactions(self, k: int) -> Interactions:
        """Only users with at least ``k`` distinct items, compacted.

        Items are not filtered: they are dropped only when no remaining user has met them. Repeated pairs count once but
        stay in the table; ``deduplicated()`` removes them.
        """
        # Distinct items: somebody who played one song 50 times cannot fill three parts of a split.
        distinct = self.distinct_pairs() // self.n_items
        counts = np.bincount(distinct, minlength=self.n_users)
        if not (counts >= k).any():
            most = int(counts.max(initial=0))
            lower = f"lower the minimum, for instance with --protocol honest,min_interactions={min(3, k - 1)}"
            raise FedrecError(
                f"no user of '{self.name}' has at least {k} different items: the most is {most} (repeats count once); "
                + (lower if most >= FEWEST_TO_SPLIT else f"add users with at least {FEWEST_TO_SPLIT} items")
            )
        few = counts[self.user] < k
        # Compacted at once: empty users left in the numbering would count as clients that never have data.
        return self._leave_out(few, f"users with fewer than {k} items", LOWER_MINIMUM).compact()

    def describe(self) -> Description:
        """Sizes as they stand now, after whatever filters were applied; density counts distinct pairs."""
        counts = self.counts()
        cells = self.n_users * self.n_items
        return Description(
            name=self.name,
            version=self.version,
            users=self.n_users,
            items=self.n_items,
            interactions=len(self),
            density=self.distinct_pairs().size / cells if cells else 0.0,
            time=self.time,
            # An empty table has no minimum and no median; zeros keep the description printable.
            per_user_min=int(counts.min()) if counts.size else 0,
            per_user_median=float(np.median(counts)) if counts.size else 0.0,
            per_user_max=int(counts.max(initial=0)),
        )

    deduplicated = OldName("drop_repeats")
    renumbered = OldName("renumber_items")


def from_raw(
    users: Array,
    items: Array,
    *,
    rating: Array | None = None,
    timestamp: Array | None = None,
    time: str = "none",
    name: str = "",
    tie_seed: int = 0,
) -> Interactions:
    """Number raw ids from 0 in sorted order, so that the numbering does not depend on the order of the rows."""
    # Sorted ids, not order of appearance: a shuffled file must give the same numbering and thus the same results.
    user_ids, user = np.unique(users, return_inverse=True)
    item_ids, first, item = np.unique(items, return_index=True, return_inverse=True)
    return Interactions(
        user=user.astype(np.int64),
        item=item.astype(np.int64),
        user_ids=user_ids,
        item_ids=item_ids,
        rating=None if rating is None else np.asarray(rating, dtype=np.float32),
        timestamp=None if timestamp is None else np.asarray(timestamp, dtype=np.int64),
        time=time,
        name=name,
        version=f"ties{tie_seed}",
        tie_seed=tie_seed,
        first_line=first.astype(np.int64),
    )


def first_rows(item: Array, n_items: int) -> Array:
    """[n_items] the first row of each item; items without rows come after all others."""
    first = np.full(n_items, item.size, dtype=np.int64)
    # Later assignments win, so the earliest row stays.
    first[item[::-1]] = np.arange(item.size - 1, -1, -1)
    return first


def _occurs(index: Array, size: int) -> Array:
    return np.asarray(np.bincount(index, minlength=size) > 0)


def _ids_without_record(ids: Array, known: list[Array]) -> Array:
    """Ids that no record has yet."""
    # np.isin against nothing would be right too, but concatenating no arrays is an error.
    return ids[~np.isin(ids, np.concatenate(known))] if ids.size and known else ids


def _check_range(field: str, index: Array, size: int) -> None:
    if index.ndim != 1 or not np.issubdtype(index.dtype, np.integer):
        raise FedrecError(f"column '{field}' must be a one-dimensional array of integers")
    if index.size and (index.min() < 0 or index.max() >= size):
        raise FedrecError(f"column '{field}' holds {index.min()}..{index.max()}, outside 0..{size - 1}")
