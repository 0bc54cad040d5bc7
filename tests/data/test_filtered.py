"""Every filter keeps a record of what it left out, and the records add up to what is missing."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedrec.data import Filtered, Interactions, Split, disjoint, from_raw
from fedrec.errors import FedrecError

from .strategies import tables


def counts(data: Interactions) -> list[tuple[str, int, int, int]]:
    return [(one.rule, one.users, one.items, one.rows) for one in data.filtered]


def test_each_filter_says_users_items_and_rows() -> None:
    """User 4 rates nothing above 0, user 3 has one item, which nobody else has; (1, 10) is there twice."""
    table = from_raw(
        np.array([1, 1, 1, 2, 2, 3, 4, 1]),
        np.array([10, 11, 10, 10, 11, 12, 13, 14]),
        rating=np.array([5, 4, 3, 1, 2, 5, 0, -1]),
        name="eight",
    )
    assert table.filtered == ()
    kept = table.with_threshold().drop_repeats().with_min_interactions(2)
    assert counts(kept) == [
        ("ratings of 0 or less", 1, 2, 2),
        ("repeats of a user-item pair", 0, 0, 1),
        ("users with fewer than 2 items", 1, 1, 1),
    ]
    threshold, _, minimum = kept.filtered
    assert (threshold.user_ids.tolist(), threshold.item_ids.tolist()) == ([4], [13, 14])
    assert (minimum.user_ids.tolist(), minimum.item_ids.tolist()) == ([3], [12])
    assert counts(table.with_threshold(4)) == [("ratings below 4", 2, 2, 5)]


def test_a_filter_that_leaves_nothing_out_says_nothing(small: Interactions) -> None:
    assert replace(small, rating=None).with_threshold().filtered == ()
    assert small.select(np.array([0, 1])).drop_repeats().filtered == ()
    assert small.with_min_interactions(1).filtered == ()


def test_items_that_nobody_ever_met_are_counted_once(small: Interactions) -> None:
    table = replace(small, item_ids=np.array([10, 20, 30, 40, 50, 60]), first_line=None)
    kept = table.with_threshold(2).with_min_interactions(1)
    assert counts(kept) == [("ratings below 2", 0, 1, 2), ("no interactions in the data", 0, 2, 0)]
    assert kept.filtered[1].item_ids.tolist() == [50, 60]


@given(tables(duplicates=True), st.integers(1, 4), st.data())
def test_what_is_kept_and_what_was_left_out_make_the_whole(data: Interactions, k: int, drawn: st.DataObject) -> None:
    size = len(data)
    rating = np.array(drawn.draw(st.lists(st.integers(-1, 2), min_size=size, max_size=size)), dtype=np.float32)
    table = replace(data, rating=rating)
    try:
        kept = table.with_threshold().drop_repeats().with_min_interactions(k)
    except FedrecError:
        return
    assert len(kept) + sum(one.rows for one in kept.filtered) == len(table)
    gone = [user for one in kept.filtered for user in one.user_ids.tolist()]
    assert sorted([*kept.user_ids.tolist(), *gone]) == table.user_ids.tolist()
    gone = [item for one in kept.filtered for item in one.item_ids.tolist()]
    assert sorted([*kept.item_ids.tolist(), *gone]) == table.item_ids.tolist()
    assert all(one.users == len(one.user_ids) and one.items == len(one.item_ids) for one in kept.filtered)


def test_held_out_pairs_that_are_known_already_are_recorded(small: Interactions) -> None:
    train, rest = small.select(np.array([0, 1])), small.select(np.array([2, 3, 4]))
    split = Split(train, small.select(np.array([1, 3])), rest, "given")
    found = disjoint(split)
    assert (len(found.valid), len(found.test)) == (1, 1)
    (record,) = found.filtered
    assert (record.users, record.items, record.rows) == (0, 0, 3)
    assert "held-out" in record.rule
    assert disjoint(found).filtered == found.filtered


@pytest.mark.parametrize(
    ("record", "text"),
    [
        (
            Filtered("users with fewer than 10 items", 22_870, 41, 31_004),
            "22,870 users, 41 items and 31,004 rows (users with fewer than 10 items)",
        ),
        (Filtered("repeats of a user-item pair", 0, 0, 1), "1 row (repeats of a user-item pair)"),
        (Filtered("no interactions in the data", 0, 2, 0), "2 items (no interactions in the data)"),
    ],
)
def test_in_words(record: Filtered, text: str) -> None:
    assert str(record) == text
    assert str(Filtered.from_dict(record.to_dict())) == text
