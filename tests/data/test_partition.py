from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedrec.data import Interactions, Partition, from_raw, one_user_per_client, silos, synthetic
from fedrec.errors import FedrecError

from .strategies import tables


def test_one_user_per_client() -> None:
    partition = one_user_per_client(4)
    assert partition.n_clients == 4
    assert partition.client_of().tolist() == partition.users.tolist() == [0, 1, 2, 3]
    with pytest.raises(FedrecError):
        one_user_per_client(0)


def test_contiguous_silos_leave_the_rest_to_the_last() -> None:
    data = synthetic(users=943, items=30, seed=0).interactions
    partition = silos(data, 100)
    assert partition.sizes().tolist() == [9] * 99 + [52]
    assert partition.users.tolist() == list(range(943))
    assert partition.client_of()[:10].tolist() == [0] * 9 + [1]


def test_random_silos_depend_on_the_seed() -> None:
    data = synthetic(users=40, items=30, seed=0).interactions
    a, b, c = (silos(data, 7, "random", seed).users.tolist() for seed in (1, 1, 2))
    assert a == b != c


@given(tables(duplicates=True), st.data(), st.sampled_from(["contiguous", "random", "taste"]), st.integers(0, 3))
def test_every_user_has_one_client_and_no_client_is_empty(
    data: Interactions, draw: st.DataObject, how: str, seed: int
) -> None:
    k = draw.draw(st.integers(1, data.n_users))
    partition = silos(data, k, how, seed)  # type: ignore[arg-type]
    assert sorted(partition.users.tolist()) == list(range(data.n_users))
    assert partition.n_clients == k
    assert partition.sizes().min() >= 1
    assert np.array_equal(partition.users, silos(data, k, how, seed).users)  # type: ignore[arg-type]


def test_taste_silos_find_groups_that_share_no_item() -> None:
    rng = np.random.default_rng(0)
    group = rng.integers(0, 3, size=300)
    user = np.repeat(np.arange(300), 12)
    item = group[user] * 40 + rng.integers(0, 40, size=user.size)
    partition = silos(from_raw(user, item), 3, "taste", seed=5)
    found = partition.client_of()
    assert len({(int(a), int(b)) for a, b in zip(group, found, strict=True)}) == 3


@pytest.mark.parametrize("k", [0, -1, 11])
def test_impossible_numbers_of_silos_are_refused(k: int) -> None:
    with pytest.raises(FedrecError, match="from 1 to 10"):
        silos(synthetic(users=10, items=9).interactions, k)


def test_unknown_way_is_refused() -> None:
    with pytest.raises(FedrecError, match="did you mean 'random'"):
        silos(synthetic(users=10, items=9).interactions, 2, "randm")  # type: ignore[arg-type]


def test_broken_partitions_are_refused() -> None:
    with pytest.raises(FedrecError, match="empty"):
        Partition(np.arange(3), np.array([0, 0, 3]))
    with pytest.raises(FedrecError, match="exactly once"):
        Partition(np.array([0, 0, 2]), np.array([0, 3]))
