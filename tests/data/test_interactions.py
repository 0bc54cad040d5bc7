from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given
from hypothesis import strategies as st

from fedrec.data import Interactions, ItemInfo, load
from fedrec.errors import FedrecError

from .strategies import tables


def pairs(data: Interactions) -> list[tuple[int, int]]:
    return list(zip(data.user_ids[data.user].tolist(), data.item_ids[data.item].tolist(), strict=True))


def test_ids_are_numbered_in_sorted_order_and_kept(small: Interactions) -> None:
    assert small.user_ids.tolist() == [7, 8, 9]
    assert small.item_ids.tolist() == [10, 20, 30, 40]
    assert pairs(small) == [(7, 30), (7, 10), (7, 30), (9, 20), (9, 10), (8, 40)]
    assert (small.n_users, small.n_items, len(small), small.version) == (3, 4, 6, "ties0")


def test_matrix_is_binary_even_with_repeated_pairs(small: Interactions) -> None:
    matrix = small.matrix()
    assert matrix.shape == (3, 4)
    assert matrix.dtype == np.float32
    assert set(matrix.data) == {1.0}
    assert matrix.nnz == 5


def test_duplicates_keep_the_latest_time_not_the_last_line(small: Interactions) -> None:
    kept = small.drop_repeats()
    assert pairs(kept) == [(7, 30), (7, 10), (9, 20), (9, 10), (8, 40)]
    assert kept.rating is not None
    assert kept.rating[0] == 5


def test_duplicates_without_time_keep_the_last_line(small: Interactions) -> None:
    kept = replace(small, timestamp=None, time="none").drop_repeats()
    assert kept.rating is not None
    assert kept.rating.tolist() == [0, 3, 1, 4, 2]


def test_threshold_counts_any_rating_above_zero_or_at_least_the_given_one(small: Interactions) -> None:
    assert len(small.with_threshold()) == 5
    assert len(small.with_threshold(4)) == 2
    assert small.with_threshold(4).n_users == 3
    with pytest.raises(FedrecError, match="no ratings"):
        replace(small, rating=None).with_threshold(4)


def test_minimum_counts_distinct_items_and_drops_only_vanished_items(small: Interactions) -> None:
    kept = small.with_min_interactions(2)
    assert kept.user_ids.tolist() == [7, 9]
    assert kept.item_ids.tolist() == [10, 20, 30]
    assert len(kept) == 5
    with pytest.raises(FedrecError, match="at least 3"):
        small.with_min_interactions(3)


def test_compact_slices_side_information(small: Interactions) -> None:
    info = ItemInfo(
        titles=np.array(["a", "b", "c", "d"]),
        tags=sp.csr_matrix(np.eye(4, dtype=np.float32)),
        tag_names=("w", "x", "y", "z"),
        years=np.array([1, 2, 3, 4]),
    )
    kept = replace(small, info=info).select(small.item == 2).compact()
    assert kept.info is not None
    assert kept.info.titles is not None
    assert kept.info.years is not None
    assert kept.info.tags is not None
    assert kept.info.titles.tolist() == ["c"]
    assert kept.info.years.tolist() == [3]
    assert kept.info.tags.toarray().tolist() == [[0, 0, 1, 0]]


@pytest.mark.parametrize(
    "change",
    [
        {"item": np.array([0, 1])},
        {"user": np.array([0, 1, 2, 3, 0, 0])},
        {"item": np.array([0, 1, 2, -1, 0, 0])},
        {"user": np.zeros(6)},
        {"rating": np.array([1, 2, np.nan, 1, 1, 1])},
        {"time": "sometimes"},
        {"time": "none"},
        {"timestamp": None},
        {"tie_seed": -1},
        {"info": ItemInfo(titles=np.array(["too few"]))},
        {"first_line": np.array([0])},
    ],
)
def test_inconsistent_tables_are_refused(small: Interactions, change: dict[str, object]) -> None:
    with pytest.raises(FedrecError):
        replace(small, **change)


def test_description(small: Interactions) -> None:
    told = small.describe()
    assert (told.users, told.items, told.interactions) == (3, 4, 6)
    assert told.density == pytest.approx(5 / 12)
    assert (told.per_user_min, told.per_user_median, told.per_user_max) == (1, 2.0, 3)


@given(tables(duplicates=True))
def test_deduplication_keeps_every_pair_once_at_its_latest(data: Interactions) -> None:
    kept = data.drop_repeats()
    assert set(pairs(kept)) == set(pairs(data))
    assert np.unique(kept.pair_keys()).size == len(kept)
    if data.timestamp is not None and kept.timestamp is not None:
        for key, stamp in zip(kept.pair_keys(), kept.timestamp, strict=True):
            assert stamp == data.timestamp[data.pair_keys() == key].max()


@given(tables(duplicates=True), st.integers(1, 5))
def test_filter_keeps_whole_users_or_nothing(data: Interactions, k: int) -> None:
    distinct = {user: {i for u, i in pairs(data) if u == user} for user in data.user_ids.tolist()}
    expected = [p for p in pairs(data) if len(distinct[p[0]]) >= k]
    if not expected:
        with pytest.raises(FedrecError):
            data.with_min_interactions(k)
        return
    kept = data.with_min_interactions(k)
    assert pairs(kept) == expected
    assert kept.counts().min() > 0
    assert np.bincount(kept.item, minlength=kept.n_items).min() > 0


def test_a_threshold_above_all_ratings_is_told_as_such(tmp_path: Path) -> None:
    (tmp_path / "rated.csv").write_text("user,item,rating\n1,2,1\n1,3,5\n")
    with pytest.raises(FedrecError, match=r"no rating of 'rated.csv' reaches 9: they go from 1 to 5; give a lower"):
        load(str(tmp_path / "rated.csv")).with_threshold(9)
