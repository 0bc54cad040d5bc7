from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedrec.data import (
    Interactions,
    ItemInfo,
    Split,
    cold_items,
    disjoint,
    from_raw,
    global_time,
    leave_one_out,
    ratio,
    read,
    synthetic,
    write,
)
from fedrec.errors import FedrecError

from .strategies import tables

PARTS = ("train", "valid", "test")


def pairs(data: Interactions) -> list[tuple[object, object]]:
    return list(zip(data.user_ids[data.user].tolist(), data.item_ids[data.item].tolist(), strict=True))


def assert_covers(split: Split, data: Interactions) -> None:
    together = [pair for name in PARTS for pair in pairs(getattr(split, name))]
    assert sorted(together) == sorted(pairs(data))
    for name in PARTS:
        part = getattr(split, name)
        assert part.user_ids is data.user_ids
        assert part.item_ids is data.item_ids


def one_user(items: list[int], times: list[int] | None, tie_seed: int = 0) -> Interactions:
    stamps = None if times is None else np.array(times)
    time = "none" if times is None else "real"
    return from_raw(np.zeros(len(items), int), np.array(items), timestamp=stamps, time=time, tie_seed=tie_seed)


def items_of(data: Interactions) -> list[int]:
    return [int(item) for item in data.item_ids[data.item]]


def test_published_rule_takes_the_first_line_among_equal_times() -> None:
    split = leave_one_out(one_user([7, 8, 9, 6], [5, 9, 9, 3]), ties="first")
    assert (items_of(split.test), items_of(split.valid), items_of(split.train)) == ([8], [9], [6, 7])


def test_ties_follow_the_data_version_and_both_orders_occur() -> None:
    seen = {items_of(leave_one_out(one_user([7, 8, 9, 6], [5, 9, 9, 3], seed)).test)[0] for seed in range(20)}
    assert seen == {8, 9}


@given(tables(), st.randoms(use_true_random=False))
def test_tie_order_depends_on_neither_line_order_nor_filters(data: Interactions, random: object) -> None:
    order = np.arange(len(data))
    random.shuffle(order)  # type: ignore[attr-defined]
    split, shuffled = leave_one_out(data), leave_one_out(data.select(order))
    first = data.select(data.user == data.user[0]).compact()
    alone = leave_one_out(first)
    for name in PARTS:
        assert sorted(pairs(getattr(split, name))) == sorted(pairs(getattr(shuffled, name)))
        mine = [pair for pair in pairs(getattr(split, name)) if pair[0] == first.user_ids[0]]
        assert pairs(getattr(alone, name)) == mine


def test_text_ids_have_a_tie_order_too() -> None:
    chosen = set()
    for seed in range(20):
        data = from_raw(np.array(["u"] * 3), np.array(["a", "b", "c"]), tie_seed=seed)
        chosen |= set(pairs(leave_one_out(data).test))
    assert chosen == {("u", "a"), ("u", "b"), ("u", "c")}


@given(tables(), st.sampled_from(["real", "item_order", "line_order", "random"]), st.sampled_from(["random", "first"]))
def test_leave_one_out_covers_the_data_and_takes_one_each(data: Interactions, time: str, ties: str) -> None:
    split = leave_one_out(data, time=time, ties=ties)  # type: ignore[arg-type]
    assert_covers(split, data)
    enough = data.counts() >= 3
    assert split.test.counts().tolist() == enough.astype(int).tolist()
    assert split.valid.counts().tolist() == enough.astype(int).tolist()


@given(tables(times=("real",)), st.sampled_from(["random", "first"]))
def test_test_is_never_earlier_than_valid_nor_valid_than_train(data: Interactions, ties: str) -> None:
    split = leave_one_out(data, ties=ties)  # type: ignore[arg-type]
    for user in np.unique(split.test.user):
        train, valid, test = (
            part.timestamp[part.user == user]  # type: ignore[index]
            for part in (split.train, split.valid, split.test)
        )
        assert train.max() <= valid[0] <= test[0]


def test_data_without_times_is_split_at_random_and_says_so() -> None:
    split = leave_one_out(one_user([1, 2, 3, 4], None))
    assert split.kind.startswith("leave_one_out(time=random")
    assert "no times" in split.notes[0]


def test_item_order_goes_by_the_whole_file_even_after_filtering() -> None:
    # Item 5 first appears with a user who is filtered away, before item 4 does.
    data = from_raw(np.array([1, 2, 2, 2]), np.array([5, 4, 3, 5]))
    split = leave_one_out(data.with_min_interactions(3), time="item_order")
    assert (items_of(split.test), items_of(split.valid), items_of(split.train)) == ([3], [4], [5])


def test_line_order_takes_the_last_lines() -> None:
    split = leave_one_out(one_user([4, 9, 2, 7], None), time="line_order")
    assert (items_of(split.test), items_of(split.valid)) == ([7], [2])


def test_small_users_stay_in_training(small: Interactions) -> None:
    split = leave_one_out(small.drop_repeats())
    assert len(split.train) == 5
    assert any("fewer than 3" in note for note in split.notes)


def test_repeated_pairs_across_parts_are_noted() -> None:
    split = leave_one_out(one_user([1, 1, 2, 3], [1, 9, 2, 3]))
    assert any("train and test" in note for note in split.notes)


@given(tables(), st.floats(0, 0.9), st.floats(0, 0.9), st.integers(0, 5), st.sampled_from(["dataset", "user"]))
def test_ratio_has_the_sizes_asked_for(data: Interactions, test: float, valid: float, seed: int, per: str) -> None:
    split = ratio(data, test, valid, seed, per)  # type: ignore[arg-type]
    assert_covers(split, data)
    if per == "dataset":
        assert len(split.test) == int(len(data) * test + 0.5)
        assert len(split.valid) == int((len(data) - len(split.test)) * valid + 0.5)
    else:
        assert split.test.counts().tolist() == [int(n * test + 0.5) for n in data.counts()]


def test_ratio_depends_on_the_seed_alone() -> None:
    data = synthetic(users=50, items=40, seed=1).interactions
    assert pairs(ratio(data, seed=1).test) == pairs(ratio(data, seed=1).test)
    assert pairs(ratio(data, seed=1).test) != pairs(ratio(data, seed=2).test)


@given(tables(duplicates=True), st.floats(0, 0.9), st.floats(0, 0.9), st.integers(0, 5))
def test_cold_items_are_disjoint(data: Interactions, test: float, valid: float, seed: int) -> None:
    split = cold_items(data, test, valid, seed)
    assert_covers(split, data)
    sets = [set(getattr(split, name).item.tolist()) for name in PARTS]
    assert sum(len(s) for s in sets) == len(set.union(*sets)) == np.unique(data.item).size
    assert len(sets[2]) == int(data.n_items * test + 0.5)


@given(tables(times=("real",)), st.floats(0, 0.9), st.floats(0, 0.9))
def test_global_time_lets_nothing_later_into_training(data: Interactions, test: float, valid: float) -> None:
    split = global_time(data, test, valid)
    assert_covers(split, data)
    ends = [part.timestamp for part in (split.train, split.valid, split.test) if len(part)]
    for earlier, later in pairwise(ends):
        assert earlier.max() < later.min()  # type: ignore[union-attr]


def test_global_time_needs_a_clock() -> None:
    data = one_user([1, 2, 3], [1, 2, 3])
    with pytest.raises(FedrecError, match="only the order"):
        global_time(replace(data, time="order"))
    with pytest.raises(FedrecError, match="no times"):
        global_time(one_user([1, 2, 3], None))


def test_wrong_choices_are_named(small: Interactions) -> None:
    with pytest.raises(FedrecError, match="did you mean 'real'"):
        leave_one_out(small, time="reel")  # type: ignore[arg-type]
    with pytest.raises(FedrecError, match="tie rule"):
        leave_one_out(small, ties="last")  # type: ignore[arg-type]
    with pytest.raises(FedrecError, match="ratio split"):
        ratio(small, per="item")  # type: ignore[arg-type]
    with pytest.raises(FedrecError, match="shares"):
        ratio(small, test=1.0)


def test_written_splits_come_back(tmp_path: Path) -> None:
    data = synthetic(users=30, items=20, seed=2).interactions
    split = leave_one_out(data)
    write(split, tmp_path / "out")
    assert sorted(p.name for p in (tmp_path / "out").iterdir()) == ["test.csv", "train.csv", "valid.csv"]
    back = read(*(tmp_path / "out" / f"{name}.csv" for name in PARTS))
    for name in PARTS:
        assert pairs(getattr(back, name)) == pairs(getattr(split, name))
        assert getattr(back, name).timestamp.tolist() == getattr(split, name).timestamp.tolist()
    assert back.train.user_ids is back.test.user_ids
    assert not any("pairs are in both" in note for note in back.notes)


def test_somebodys_split_is_taken_as_it_is_and_overlaps_are_noted(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("user,item\n1,2\n1,3\n")
    (tmp_path / "b.csv").write_text("user,item\n1,3\nx,9\n")
    split = read(tmp_path / "a.csv", None, tmp_path / "b.csv")
    assert split.train.user_ids.tolist() == ["1", "x"]
    assert split.train.item_ids.tolist() == [2, 3, 9]
    assert len(split.valid) == 0
    assert "1 (user, item) pairs are in both train and test" in split.notes


def test_held_out_pairs_of_an_earlier_part_are_left_out() -> None:
    """A user trained on an item is never ranked on it, so a stored split with such pairs is used without them."""
    whole = from_raw(np.array([0, 0, 0, 1]), np.array([0, 1, 2, 2]))
    pick = [np.array(rows) for rows in ([0, 3], [0, 1], [1, 2, 3])]
    split = disjoint(Split(*(whole.select(np.isin(np.arange(4), rows)) for rows in pick), "stored"))
    left = [list(zip(part.user.tolist(), part.item.tolist(), strict=True)) for part in (split.valid, split.test)]
    assert left == [[(0, 1)], [(0, 2)]]


def test_parts_with_titles_are_read_back(tmp_path: Path) -> None:
    """Each part knows the titles of its own items; together they know all of them."""
    rows = [(user, (user + place) % 9) for user in range(6) for place in range(4)]
    data = from_raw(*(np.array(column) for column in zip(*rows, strict=True)))
    data = replace(data, info=ItemInfo(np.array([f"Item {item}" for item in range(9)], dtype=object)))
    write(leave_one_out(data), tmp_path)
    split = read(*(tmp_path / f"{name}.csv" for name in PARTS))
    for name in PARTS:
        info = getattr(split, name).info
        assert info.titles.tolist() == [f"Item {item}" for item in split.train.item_ids]
