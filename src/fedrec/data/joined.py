"""Tables put together: in one numbering, a log with the rows that arrived since, and what one lacks of another."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from fedrec.data.filtered import count_in_words
from fedrec.data.interactions import Array, Interactions, ItemInfo
from fedrec.data.sparse import csr
from fedrec.data.times import unit_since_1970
from fedrec.errors import FedrecError

if TYPE_CHECKING:
    import scipy.sparse as sp

EARLIEST_PLAUSIBLE_TIME = 1e8  # 1973 in Unix seconds; smaller numbers may count anything
_OTHER_UNIT = 500  # seconds, milliseconds and microseconds are a thousand apart
_COLUMNS = {"rating": "ratings", "timestamp": "times"}
"""Those that a table may lack, and what they hold."""
WHOLE_LOG = "give the whole log, old rows and new ones, with --data FILE --replace"


@dataclass(frozen=True)
class Joined:
    """A log with the new rows of another table, and how many of that table's rows were no news."""

    data: Interactions
    name: str
    """Of the other table."""
    before: int
    new: int
    there: int
    """Rows that the log had already."""
    repeated: int
    """Rows that repeat another new one."""
    users: int
    """Users whom only the new rows have."""
    items: int

    def __str__(self) -> str:
        again = f"; {self.repeated:,} repeat{'s' * (self.repeated == 1)} another new row" if self.repeated else ""
        were = "was" if self.there == 1 else "were"
        rows = f"{self.new:,} new row{'s' * (self.new != 1)}"
        return f"{self.name}: {rows} joined with {self.before:,}; {self.there:,} {were} already there{again}"

    def to_dict(self) -> dict[str, int]:
        return {name: getattr(self, name) for name in ("before", "new", "there", "repeated")}


@dataclass(frozen=True)
class Lost:
    """How much of a log another table lacks."""

    users: int
    items: int
    rows: int

    def __str__(self) -> str:
        return count_in_words(self.users, self.items, self.rows)


def join(log: Interactions, rows: Interactions) -> Joined:
    """Put rows after those of a log, unless they are there already; its name and its order of ties stay.

    A row is there if one has the same user, item, rating and time. The same user and item with another rating or time
    are another row, of which filters make what they make of it in any log.
    """
    _require_same_columns(log, rows)
    rows = _in_unit_of(log, rows)
    _require_same_clock(log, rows)
    numbered = in_one_numbering([log, rows])
    whole = stack(numbered)
    first, own = _earliest_equal(whole)[len(log) :], np.arange(len(log), len(whole))
    # A row is new if its earliest equal is itself; an earlier one in the new table makes it a repeat.
    there, new = first < len(log), first == own
    # Without new rows the log keeps its version, so that nothing is trained anew for no news.
    grown = log
    if new.any():
        grown = whole.select(np.concatenate([np.ones(len(log), dtype=bool), new]))
        grown = replace(grown, version=f"joined-{_digest(grown)}+ties{log.tie_seed}")
    # What the log says of a company goes before the new file, which may have been written carelessly.
    silos = {**(rows.silos or {}), **(log.silos or {})} or None
    return Joined(
        data=replace(grown, notes=rows.notes, silos=silos),
        name=rows.name,
        before=len(log),
        new=int(new.sum()),
        there=int(there.sum()),
        repeated=int((~there & ~new).sum()),
        users=_count_only_in("user", numbered[1], numbered[0]),
        items=_count_only_in("item", numbered[1], numbered[0]),
    )


def count_lost(log: Interactions, other: Interactions) -> Lost:
    """Count what of a log another table lacks. Rows are compared by the columns that both have."""
    there, here = in_one_numbering([_drop_columns(other, log), _drop_columns(log, other)])
    rows = int((_earliest_equal(stack([there, here]))[len(there) :] >= len(there)).sum())
    return Lost(_count_only_in("user", here, there), _count_only_in("item", here, there), rows)


def describe_items(data: Interactions, tables: Sequence[Interactions]) -> Interactions:
    """The same rows, with what the first of several tables to know it says of each item; `data` may be one of them."""
    whole = in_one_numbering([*tables, data])[0]
    info = None if whole.info is None else whole.info.take(_places(data.item_ids, whole.item_ids))
    return replace(data, info=info)


def in_one_numbering(tables: Sequence[Interactions]) -> list[Interactions]:
    """Number the users and items of several tables alike; what is known of items is that of the first who knows it."""
    user_ids, item_ids = (_union([getattr(one, ids) for one in tables]) for ids in ("user_ids", "item_ids"))
    users, items = (
        [_places(getattr(one, ids), union) for one in tables]
        for ids, union in (("user_ids", user_ids), ("item_ids", item_ids))
    )
    info = _join_info([one.info for one in tables], items, len(item_ids))
    return [
        replace(
            one,
            user=user[one.user],
            item=item[one.item],
            user_ids=user_ids,
            item_ids=item_ids,
            info=info,
            # Lines of different files have no common order.
            first_line=None,
        )
        for one, user, item in zip(tables, users, items, strict=True)
    ]


def _drop_columns(data: Interactions, other: Interactions) -> Interactions:
    """The table without the columns that another lacks."""
    lacking: dict[str, Any] = {name: None for name in _COLUMNS if getattr(other, name) is None}
    lacking |= {"time": "none"} if "timestamp" in lacking else {}
    return replace(data, **lacking)


def _union(ids: list[Array]) -> Array:
    if len({part.dtype.kind for part in ids}) > 1:  # integers in one file, text in another
        # As text, since 7 and '7' are the same id in two files of one owner.
        ids = [part.astype(str) for part in ids]
    return np.unique(np.concatenate(ids))


def _places(ids: Array, union: Array) -> Array:
    return np.searchsorted(union, ids.astype(union.dtype)).astype(np.int64)


def stack(tables: Sequence[Interactions]) -> Interactions:
    """The rows of several tables in the same numbering, with the same columns, one after another."""
    first = tables[0]
    names = ("user", "item", *(name for name in _COLUMNS if getattr(first, name) is not None))
    columns: dict[str, Any] = {name: np.concatenate([getattr(one, name) for one in tables]) for name in names}
    return replace(first, **columns)


def keep_common_columns(tables: Sequence[Interactions]) -> list[Interactions]:
    """The tables without ratings or times where one of them has none."""
    for other in tables:
        tables = [_drop_columns(one, other) for one in tables]
    return list(tables)


def _earliest_equal(data: Interactions) -> Array:
    """For every row the first one with the same user, item, rating and time."""
    columns = [data.pair_keys(), *(value for name in _COLUMNS if (value := getattr(data, name)) is not None)]
    # Stable: equal rows stay in their order.
    order = np.lexsort(columns)
    starts = np.ones(len(data), dtype=bool)
    starts[1:] = np.logical_or.reduce([column[order][1:] != column[order][:-1] for column in columns])
    first = np.empty(len(data), dtype=np.int64)
    first[order] = order[np.flatnonzero(starts)[np.cumsum(starts) - 1]]
    return first


def _count_only_in(kind: Literal["user", "item"], one: Interactions, other: Interactions) -> int:
    """How many users or items have rows in one table and none in another, in the same numbering."""
    return int(np.setdiff1d(getattr(one, kind), getattr(other, kind)).size)


def _digest(data: Interactions) -> str:
    """What tells these rows from others."""
    whole = hashlib.sha256()
    for ids in (data.user_ids, data.item_ids):
        # Joined by a character that no id may contain, so that two lists of ids cannot look alike.
        whole.update("\0".join(map(str, ids.tolist())).encode())
    for name in ("user", "item", *_COLUMNS):
        if (column := getattr(data, name)) is not None:
            whole.update(np.ascontiguousarray(column).tobytes())
    return whole.hexdigest()[:12]


# -- what is known of items --


def _join_info(infos: Sequence[ItemInfo | None], items: Sequence[Array], n_items: int) -> ItemInfo | None:
    """`items`: for each table, the places of its items among all."""
    known = [(info, places) for info, places in zip(infos, items, strict=True) if info is not None]
    if not known:
        return None
    tagged = next(((info, places) for info, places in known if info.tags is not None), None)
    measured = next(((info, places) for info, places in known if info.features is not None), None)
    return ItemInfo(
        titles=_first_description(
            [(info.titles, places) for info, places in known], np.full(n_items, "", dtype=object)
        ),
        years=_first_description([(info.years, places) for info, places in known], np.zeros(n_items, dtype=np.int64)),
        tags=None if tagged is None else _spread(tagged[0].tags, tagged[1], n_items),
        tag_names=() if tagged is None else tagged[0].tag_names,
        features=None if measured is None else _spread(measured[0].features, measured[1], n_items),
        feature_names=() if measured is None else measured[0].feature_names,
    )


def _first_description(columns: Sequence[tuple[Array | None, Array]], blank: Array) -> Array | None:
    """For every item what the first table says that says anything of it; None where no table has the column."""
    if all(told is None for told, _ in columns):
        return None
    values = blank.copy()
    for told, places in reversed(columns):  # the first comes last, and stays
        if told is not None:
            here = told != blank[:1]
            values[places[here]] = told[here]
    return values


def _spread(matrix: sp.csr_matrix | None, places: Array, n_items: int) -> sp.csr_matrix:
    """The rows of a matrix at their places among all items; the others are empty."""
    assert matrix is not None
    cells = matrix.tocoo()
    return csr(cells.data, places[cells.row], cells.col, (n_items, cells.shape[1]))


# -- what cannot be put together --


def _require_same_columns(log: Interactions, rows: Interactions) -> None:
    """A row without a rating or a time would mean something else than those beside it."""
    there, here = ({name for name in _COLUMNS if getattr(one, name) is not None} for one in (log, rows))
    if lacking := [_COLUMNS[name] for name in _COLUMNS if name in there - here]:
        raise FedrecError(
            f"{rows.name} has no {' and no '.join(lacking)}, but the log of {log.name} has: add them, or {WHOLE_LOG}"
        )
    if extra := [_COLUMNS[name] for name in _COLUMNS if name in here - there]:
        raise FedrecError(
            f"{rows.name} has {' and '.join(extra)}, but the log of {log.name} has none: leave them out, or {WHOLE_LOG}"
        )


def _in_unit_of(log: Interactions, rows: Interactions) -> Interactions:
    """The rows with their times in the log's unit, where both count from 1970: a day's file may be written another way
    than the log, whose times of several formats are microseconds."""
    if log.timestamp is None or rows.timestamp is None:
        return rows
    unit, own = (unit_since_1970(column) for column in (log.timestamp, rows.timestamp))
    if unit is None or own is None or unit == own:
        return rows
    if unit > own:
        # Whole-number division and product: floats would lose microseconds in times of today's size.
        return replace(rows, timestamp=rows.timestamp * (unit // own))
    return replace(rows, timestamp=rows.timestamp // (own // unit))


def _require_same_clock(log: Interactions, rows: Interactions) -> None:
    """Positions and times, or seconds and milliseconds, have no common order."""
    if log.timestamp is None or rows.timestamp is None or not len(log) or not len(rows):
        # Nothing to compare: an empty table fits any clock.
        return
    if log.time == "real" and rows.time == "order":
        raise FedrecError(
            f"{rows.name} knows only the order within each user, but the log of {log.name} has times: add them, or "
            f"{WHOLE_LOG}"
        )
    # The median instead of an end: a few times of 0 stand for unknown and must not decide the unit.
    there, here = (int(np.median(np.abs(column))) for column in (log.timestamp, rows.timestamp))
    if max(there, here) >= EARLIEST_PLAUSIBLE_TIME and max(there, here) >= _OTHER_UNIT * min(there, here):
        raise FedrecError(
            f"the times of {rows.name} lie around {here:,} and those of the log of {log.name} around {there:,}: write "
            f"both in one unit (dates and fractions of a second count in microseconds), or {WHOLE_LOG}"
        )
