"""The sparsity switch: exact counts, nested draws, and where dropped items may and may not turn up."""

from __future__ import annotations

import numpy as np
import pytest

from fedrec.data import Interactions, load
from fedrec.evaluation import protocol, select_rows
from fedrec.experiment.prepare import prepare
from fedrec.federation.contract import World


def pairs(sizes: list[int]) -> tuple[np.ndarray, np.ndarray]:
    return np.repeat(np.arange(len(sizes)), sizes), np.concatenate([np.arange(size) for size in sizes])


@pytest.mark.parametrize(
    ("fraction", "counts"),
    [(1.0, [1, 2, 5, 50]), (0.8, [1, 2, 4, 40]), (0.5, [1, 1, 3, 25]), (0.29, [1, 1, 1, 15]), (0.1, [1, 1, 1, 5])],
)
def test_counts_round_half_up_and_leave_one(fraction: float, counts: list[int]) -> None:
    user, item = pairs([1, 2, 5, 50])
    assert np.bincount(user[select_rows((user, item), fraction, 0)]).tolist() == counts


def test_draws_are_nested_stateless_and_even() -> None:
    user, item = pairs([40] * 500)
    small, large = (select_rows((user, item), fraction, 7) for fraction in (0.2, 0.6))
    assert (large | ~small).all()
    order = np.random.default_rng(0).permutation(len(user))
    np.testing.assert_array_equal(select_rows((user[order], item[order]), 0.2, 7), small[order])
    some = user % 3 == 0
    np.testing.assert_array_equal(select_rows((user[some], item[some]), 0.2, 7), small[some])
    assert (select_rows((user, item), 0.2, 8) != small).any()
    by_item = np.bincount(item[small], minlength=40)  # 100 expected of each, standard deviation 9
    assert by_item.min() > 60
    assert by_item.max() < 140


@pytest.fixture(scope="module")
def table() -> Interactions:
    return load("synthetic@users=60+items=200+interactions=1500+seed=1")


@pytest.mark.parametrize("pool", ["honest", "leaked"])
def test_dropped_items_are_unknown_to_clients_and_never_ranked(table: Interactions, pool: str) -> None:
    whole = prepare(table, protocol(f"honest,neg_pool={pool}"))
    thin = prepare(table, protocol(f"honest,neg_pool={pool},train_fraction=0.4"))
    assert thin.dropped is not None
    assert len(thin.split.train) + len(thin.dropped) == len(whole.split.train)
    for part in ("valid", "test"):
        mine, theirs = getattr(thin, part), getattr(whole, part)
        np.testing.assert_array_equal(mine.items, theirs.items)
        np.testing.assert_array_equal(mine.mask_items, theirs.mask_items)
    data = thin.clients(World(items=thin.n_items, clients=thin.partition.n_clients, seed=0))
    hidden = thin.split.train if pool == "honest" else whole.source
    for user in range(thin.source.n_users):
        start, end = data.pool.indptr[user : user + 2]
        excluded = data.pool.gap[start:end] + np.arange(end - start)
        assert set(excluded.tolist()) == set(hidden.item[hidden.user == user].tolist())


def test_sequences_keep_their_order(table: Interactions) -> None:
    whole, thin = (prepare(table, protocol(f"honest,train_fraction={share}")).split.train for share in (1, 0.5))
    for user in range(thin.n_users):
        places = [whole.item[whole.user == user].tolist().index(item) for item in thin.item[thin.user == user]]
        assert places == sorted(places)
