from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedrec.data import leave_one_out, load, synthetic
from fedrec.errors import FedrecError


@settings(max_examples=40)
@given(st.integers(1, 40), st.integers(1, 400), st.floats(0, 1), st.integers(0, 99), st.floats(0, 3))
def test_any_size_has_exactly_the_interactions_asked_for(
    users: int, items: int, fill: float, seed: int, skew: float
) -> None:
    total = users + int(fill * users * (items - 1))
    data = synthetic(users, items, total, seed, popularity_skew=skew).interactions
    assert len(data) == total
    assert np.unique(data.pair_keys()).size == total
    assert (data.n_users, data.n_items) == (users, items)
    assert data.counts().min() >= 1


def test_equal_seeds_give_equal_worlds_and_other_seeds_others() -> None:
    a, b, c = (synthetic(users=200, items=2000, seed=s).interactions for s in (1, 1, 2))
    assert np.array_equal(a.item, b.item)
    assert np.array_equal(a.timestamp, b.timestamp)  # type: ignore[arg-type]
    assert not np.array_equal(a.item, c.item)


def test_time_runs_forward_within_users_and_has_ties() -> None:
    data = synthetic(users=100, items=300).interactions
    assert data.timestamp is not None
    step = np.diff(data.timestamp)[data.user[1:] == data.user[:-1]]
    assert (step >= 0).all()
    assert (step == 0).any()


def test_popularity_skew_concentrates_interactions() -> None:
    def share_of_top_tenth(skew: float) -> float:
        data = synthetic(users=500, items=1000, popularity_skew=skew).interactions
        counts = np.sort(np.bincount(data.item, minlength=1000))
        return float(counts[-100:].sum() / counts.sum())

    assert share_of_top_tenth(0.0) < share_of_top_tenth(1.0) < share_of_top_tenth(1.5)


def test_the_truth_ranks_the_next_item_better_than_popularity() -> None:
    world = synthetic(users=800, items=1000, seed=3)
    split = leave_one_out(world.interactions)
    item = split.test.item
    now = (world.taste + world.drift)[split.test.user]
    truth = now @ world.item_factors.T + world.popularity
    assert truth.shape == (800, 1000)
    by_truth = (truth > truth[np.arange(800), item][:, None]).sum(axis=1)
    by_popularity = (world.popularity > world.popularity[item][:, None]).sum(axis=1)
    assert by_truth.mean() < 0.6 * by_popularity.mean()


def test_taste_drifts_towards_what_comes_later() -> None:
    world = synthetic(users=2000, items=500, seed=4)
    split = leave_one_out(world.interactions)

    def pull(part: object) -> float:
        user, item = part.user, part.item  # type: ignore[attr-defined]
        return float((world.drift[user] * world.item_factors[item]).sum(axis=1).mean())

    assert pull(split.test) > pull(split.train) + 0.1


def test_tags_say_something_about_the_factors() -> None:
    world = synthetic(users=10, items=400, attributes=12)
    info = world.interactions.info
    assert info is not None
    assert info.tags is not None
    assert info.tags.shape == (400, 12)
    overlap = np.asarray((info.tags @ info.tags.T).todense())
    unit = world.item_factors / np.linalg.norm(world.item_factors, axis=1, keepdims=True)
    alike = unit @ unit.T
    off = ~np.eye(400, dtype=bool)
    assert np.corrcoef(overlap[off], alike[off])[0, 1] > 0.4


def test_spec_options_and_version() -> None:
    data = load("synthetic@users=30+items=20+seed=3+ties2")
    assert (data.n_users, data.n_items, data.tie_seed) == (30, 20, 2)
    assert data.version.startswith("users=30+items=20+interactions=")
    assert data.version.endswith("+ties2")
    again = load(f"synthetic@{data.version}")
    assert np.array_equal(again.item, data.item)
    assert again.version == data.version


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("synthetic@user=3", "did you mean 'users'"),
        ("synthetic@users=many", "needs a number"),
        ("synthetic@users=0", "at least 1"),
        ("synthetic@users=10+items=5+interactions=51", "from 10 .* to 50"),
        ("synthetic@seed=-1", "seed"),
    ],
)
def test_impossible_worlds_are_refused(spec: str, message: str) -> None:
    with pytest.raises(FedrecError, match=message):
        load(spec)


@pytest.mark.slow
def test_a_large_world_is_made_in_time() -> None:
    data = synthetic(users=100_000, items=20_000, interactions=2_000_000).interactions
    assert np.unique(data.pair_keys()).size == len(data) == 2_000_000
