"""The stream: chunks, order and gaps do not change the result; lists give coverage and novelty."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedrec.errors import FedrecError
from fedrec.evaluation import METRICS, Evaluator, Targets, evaluate, novelty_by_item

N_USERS, N_ITEMS = 12, 30


def world(most: int) -> tuple[Targets, torch.Tensor, np.ndarray]:
    """Up to `most` held-out items; users 3 and 7 have none."""
    rng = np.random.default_rng(most)
    held_out, masked = [], []
    for user in set(range(N_USERS)) - {3, 7}:
        order = rng.permutation(N_ITEMS)
        count = rng.integers(1, most + 1)
        held_out += [(user, item) for item in order[:count]]
        masked += [(user, item) for item in order[count : count + 9]]
    (users, items), (mask_users, mask_items) = np.array(held_out).T, np.array(masked).T
    scores = torch.from_numpy(rng.integers(0, 6, (N_USERS, N_ITEMS))).float()
    return Targets.build((users, items), [(mask_users, mask_items)], N_ITEMS), scores, rng.integers(0, 50, N_ITEMS)


@pytest.mark.parametrize("most", [1, 4])
@given(order=st.permutations(range(N_USERS)), cuts=st.sets(st.integers(1, N_USERS - 1)))
def test_chunks_and_their_order_do_not_matter(most: int, order: list[int], cuts: set[int]) -> None:
    targets, scores, counts = world(most)
    whole = evaluate(scores[torch.from_numpy(targets.users)], targets, metrics=METRICS, item_counts=counts)
    stream = Evaluator(targets, metrics=METRICS, item_counts=counts)
    for users in np.split(np.array(order), sorted(cuts)):
        stream.update(users, scores[torch.from_numpy(users)])
    parts = stream.result()
    assert parts.mean() == whole.mean()
    for name, values in whole.per_user.items():
        np.testing.assert_array_equal(values, parts.per_user[name])
    np.testing.assert_array_equal(whole.positions, parts.positions)


def test_values_are_aligned_with_users() -> None:
    targets, scores, _ = world(1)
    scores[torch.from_numpy(targets.users), torch.from_numpy(targets.items)] = -1.0
    scores[5, targets.items[targets.rows(np.array([5]))[0]]] = 99.0
    found = evaluate(scores[torch.from_numpy(targets.users)], targets, ks=(1,))
    assert found.users.tolist() == [0, 1, 2, 4, 5, 6, 8, 9, 10, 11]
    assert found.users[found.per_user["hr@1"] == 1].tolist() == [5]


def test_every_user_is_scored_exactly_once() -> None:
    targets, scores, _ = world(1)
    stream = Evaluator(targets)
    stream.update(np.arange(6), scores[:6])
    with pytest.raises(FedrecError, match="5 of 10 evaluated users have no scores"):
        stream.result()
    with pytest.raises(FedrecError, match="twice"):
        stream.update(np.arange(5, 12), scores[5:])
    with pytest.raises(FedrecError, match="one row per user"):
        stream.update(np.arange(6, 12), scores[:2])
    stream.update(np.array([3, 7]), scores[[3, 7]])  # nobody to evaluate


def test_coverage_and_novelty_by_hand() -> None:
    targets = Targets.build((np.array([0, 1]), np.array([3, 3])), [(np.array([0]), np.array([0]))], 4)
    scores = torch.tensor([[9.0, 2.0, 2.0, 1.0], [9.0, 2.0, 2.0, 1.0]])
    counts = np.array([7, 3, 1, 1])  # one added to each: 8, 4, 2, 2 of 16, that is 1, 2, 3, 3 bits
    assert novelty_by_item(counts).tolist() == [1, 2, 3, 3]
    found = evaluate(scores, targets, ks=(1, 2, 4), metrics=("coverage", "novelty"), item_counts=counts)
    assert found.overall == {"coverage@1": 0.5, "coverage@2": 0.75, "coverage@4": 1.0}
    assert found.per_user["novelty@1"].tolist() == [2, 1]
    assert found.per_user["novelty@2"].tolist() == [2.5, 1.5]
    assert found.per_user["novelty@4"].tolist() == pytest.approx([8 / 3, 9 / 4])


def test_novelty_needs_counts_and_ties_a_known_rule() -> None:
    targets, *_ = world(1)
    with pytest.raises(FedrecError, match="item_counts"):
        Evaluator(targets, metrics=("novelty",))
    with pytest.raises(FedrecError, match="expected, first, item_id"):
        Evaluator(targets, ties="best")


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("most", [1, 4])
@pytest.mark.parametrize("ties", ["expected", "first", "item_id"])
def test_cuda_gives_the_same(most: int, ties: str) -> None:
    targets, scores, counts = world(most)
    scores = scores[torch.from_numpy(targets.users)]
    options = {"ties": ties, "metrics": METRICS, "item_counts": counts}
    assert evaluate(scores.cuda(), targets, **options).mean() == evaluate(scores, targets, **options).mean()


@pytest.mark.parametrize("held_out", [1, 10])
def test_random_scores_that_come_in_chunks_are_worth_chance(held_out: int) -> None:
    n_users, n_items, n_train = 2000, 600, 165
    rng = np.random.default_rng(0)
    orders = np.argsort(rng.random((n_users, n_items), dtype=np.float32), 1)
    users = np.arange(n_users)
    test = np.repeat(users, held_out), orders[:, :held_out].ravel()
    train = np.repeat(users, n_train), orders[:, held_out : held_out + n_train].ravel()
    scores = torch.randn(n_users, n_items, generator=torch.Generator().manual_seed(0))
    stream = Evaluator(Targets.build(test, [train], n_items), metrics=METRICS, item_counts=np.ones(n_items))
    for chunk in np.array_split(users, 12):
        stream.update(chunk, scores[chunk[0] : chunk[-1] + 1])
    assert stream.result().mean()["recall@10"] == pytest.approx(10 / (n_items - n_train), rel=0.2)
