"""A log with the rows that arrived since: each counted once, in the order and with the titles of the log."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedrec.data import Interactions, ItemInfo, Lost, count_lost, from_raw, join, read_table
from fedrec.errors import FedrecError

Row = tuple[Any, ...]


def table(*rows: Row, name: str = "log", time: str = "real") -> Interactions:
    """Of rows with user, item, rating and time, or of the first two or three of these."""
    columns = [np.array(column) for column in zip(*rows, strict=True)]
    rating, timestamp = (columns[at] if len(columns) > at else None for at in (2, 3))
    kind = "none" if timestamp is None else time
    return from_raw(columns[0], columns[1], rating=rating, timestamp=timestamp, time=kind, name=name)


def rows_of(data: Interactions) -> list[Row]:
    columns = [data.user_ids[data.user], data.item_ids[data.item], data.rating, data.timestamp]
    return list(zip(*(column.tolist() for column in columns if column is not None), strict=True))


LOG = table((1, 10, 5, 100), (1, 11, 4, 101), (2, 10, 3, 102))


def test_new_rows_follow_and_equal_ones_count_once() -> None:
    more = table((2, 10, 3, 102), (3, 12, 1, 103), (3, 12, 1, 103), (1, 10, 5, 104), (1, 11, 1, 101), name="delta")
    joined = join(LOG, more)
    assert rows_of(joined.data) == [*rows_of(LOG), (3, 12, 1, 103), (1, 10, 5, 104), (1, 11, 1, 101)]
    assert (joined.new, joined.there, joined.repeated, joined.users, joined.items) == (3, 1, 1, 1, 1)
    assert str(joined) == "delta: 3 new rows joined with 3; 1 was already there; 1 repeats another new row"
    assert (joined.data.name, joined.data.tie_seed) == ("log", 0)


def test_nothing_new_changes_nothing() -> None:
    joined = join(LOG, LOG)
    assert rows_of(joined.data) == rows_of(LOG)
    assert joined.data.identity() == LOG.identity()
    assert str(joined) == "log: 0 new rows joined with 3; 3 were already there"


def test_joined_rows_are_told_by_their_content() -> None:
    more, other = table((3, 12, 1, 103)), table((3, 12, 2, 103))
    one, again, two = join(LOG, more), join(LOG, more), join(LOG, other)
    assert one.data.identity() == again.data.identity() != two.data.identity()
    assert one.data.identity() != LOG.identity()


cells = st.tuples(st.integers(0, 3), st.integers(0, 3), st.integers(1, 2), st.integers(0, 2))


@given(st.lists(cells, min_size=1, max_size=12), st.lists(cells, min_size=1, max_size=12))
def test_any_two_tables_are_joined_as_lists_are(old: list[Row], new: list[Row]) -> None:
    joined = join(table(*old), table(*new))
    fresh = list(dict.fromkeys(row for row in new if row not in old))
    assert rows_of(joined.data) == old + fresh
    assert joined.new == len(fresh)
    assert joined.there == sum(row in old for row in new)
    assert joined.new + joined.there + joined.repeated == len(new)
    assert count_lost(table(*old), joined.data) == Lost(0, 0, 0)
    gone = count_lost(table(*old), table(*new))
    assert gone == Lost(
        *(len({row[at] for row in old} - {row[at] for row in new}) for at in (0, 1)), sum(row not in new for row in old)
    )


def test_numbers_and_the_same_numbers_as_text_are_one_id(tmp_path: Path) -> None:
    old, new = tmp_path / "old.csv", tmp_path / "new.csv"
    old.write_text("user,item\n7,1\n8,2\n")
    new.write_text("user,item\n7,1\nsomebody,2\n007,2\n")
    joined = join(read_table(old)[0], read_table(new)[0])
    assert rows_of(joined.data) == [("7", 1), ("8", 2), ("somebody", 2), ("007", 2)]
    assert (joined.users, joined.there) == (2, 1)


@pytest.mark.parametrize(
    ("rows", "told"),
    [
        ([(1, 10)], "delta has no ratings and no times, but the log of log has: add them, or give the whole log"),
        ([(1, 10, 5)], "delta has no times, but the log of log has: add them"),
        (
            [(1, 10, 5, 1_700_000_000)],
            "the times of delta lie around 1,700,000,000 and those of the log of log around 101",
        ),
    ],
)
def test_what_has_no_common_meaning_is_refused(rows: list[Row], told: str) -> None:
    with pytest.raises(FedrecError, match=told):
        join(LOG, table(*rows, name="delta"))


def test_columns_that_the_log_lacks_are_refused() -> None:
    with pytest.raises(FedrecError, match="delta has ratings and times, but the log of log has none: leave them out"):
        join(table((1, 10), (2, 11)), table((1, 12, 5, 3), name="delta"))


def test_times_of_a_day_are_brought_to_the_unit_of_the_log() -> None:
    joined = join(
        table((1, 10, 5, 1_700_000_000)), table((1, 11, 5, 1_800_000_000_000_000), (1, 10, 5, 1_700_000_000_000_000))
    )
    assert joined.data.timestamp is not None
    assert joined.data.timestamp.tolist() == [1_700_000_000, 1_800_000_000]
    assert joined.there == 1
    finer = join(table((1, 10, 5, 1_700_000_000_000)), table((1, 11, 5, 1_800_000_000))).data.timestamp
    assert finer is not None
    assert finer.tolist() == [1_700_000_000_000, 1_800_000_000_000]


def test_seconds_and_microseconds_are_not_mixed() -> None:
    seconds = [(1, 10, 5, 1_700_000_000)]
    join(table(*seconds), table((1, 11, 5, 1_800_000_000)))
    join(table((1, 12, 5, 0), *seconds, (1, 13, 5, 1_700_000_000_000)), table((1, 11, 5, 1_800_000_000)))
    with pytest.raises(FedrecError, match="write both in one unit"):
        join(table((1, 12, 5, 0), *seconds, (1, 13, 5, 1_700_000_000)), table((1, 11, 5, 1_800_000_000_000_000)))


def test_positions_stay_positions() -> None:
    known = replace(LOG, time="order")
    assert join(known, table((1, 12, 5, 103))).data.time == "order"
    with pytest.raises(FedrecError, match="knows only the order within each user"):
        join(LOG, known)


def test_what_is_known_of_items_stays_and_is_added_to() -> None:
    import scipy.sparse as sp

    titles = np.array(["Ten", ""], dtype=object)
    tags = sp.csr_matrix(np.array([[1, 0], [0, 1]], dtype=np.float32))
    log = replace(LOG, info=ItemInfo(titles, tags, ("a", "b"), np.array([1990, 0])))
    new = table((1, 9, 5, 103), (1, 10, 5, 104), (1, 11, 5, 105))
    new = replace(new, info=ItemInfo(np.array(["Nine", "Another", "Eleven"])))
    info = join(log, new).data.info
    assert info is not None
    assert info.titles is not None
    assert info.tags is not None
    assert info.years is not None
    assert info.titles.tolist() == ["Nine", "Ten", "Eleven"]
    assert info.years.tolist() == [0, 1990, 0]
    assert info.tags.toarray().tolist() == [[0, 0], [1, 0], [0, 1]]
