"""Released list metrics: worked examples, the order of a set, and what the printed definitions leave of a ranking."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedrec.evaluation import Targets, evaluate
from fedrec.evaluation.lists import RELEASED, index_order, set_order

NAMES = ("mrr_released", "ndcg_released", "mrr", "ndcg")


def ranked(lists: list[list[int]], n_items: int) -> torch.Tensor:
    """Scores under which each user's list comes out on top, in its order."""
    scores = torch.zeros(len(lists), n_items)
    for row, items in enumerate(lists):
        for place, item in enumerate(items):
            scores[row, item] = len(items) - place
    return scores


def targets(labels: list[set[int]], n_items: int) -> Targets:
    users = [user for user, items in enumerate(labels) for _ in items]
    return Targets.build((np.array(users), np.array([item for items in labels for item in sorted(items)])), [], n_items)


@pytest.mark.parametrize(
    ("listed", "labels", "values"),
    [
        ([7, 2, 5], {7, 9}, (0.333333, 0.5, 1, 0.613147)),
        ([2, 5, 7], {7, 9}, (0.333333, 0.5, 0.333333, 0.306574)),
        ([7, 2, 5], {7, 2, 9, 11}, (1, 0.919721, 1, 0.765361)),
        ([5, 2, 7], {1, 3}, (0, 0, 0, 0)),
    ],
)
def test_fedcia_beside_the_standard(listed: list[int], labels: set[int], values: tuple[float, ...]) -> None:
    means = evaluate(ranked([listed], 12), targets([labels], 12), ks=(3,), ties="item_id", metrics=NAMES).mean()
    assert tuple(means[f"{name}@3"] for name in NAMES) == pytest.approx(values, abs=5e-7)


def test_a_set_of_ten_is_read_modulo_32() -> None:
    listed = [100, 3, 64, 7, 33, 50, 12, 5, 999, 1]
    assert set_order(np.array([listed]))[0].tolist() == [64, 33, 1, 3, 100, 5, 7, 999, 12, 50]


def test_f1_from_means() -> None:
    found = evaluate(
        ranked([[7, 2, 5], [2, 5, 7]], 12),
        targets([{7, 9}, {2}], 12),
        ks=(3,),
        metrics=("f1_of_means", "f1", "precision", "recall"),
    )
    means = found.mean()
    assert means["precision@3"] == pytest.approx(1 / 3)
    assert means["recall@3"] == pytest.approx(0.75)
    assert means["f1_of_means@3"] == pytest.approx(0.461538, abs=5e-7)
    assert means["f1@3"] == pytest.approx(0.45)
    assert "f1_of_means@3" not in found.per_user


def test_ifedrec_by_index() -> None:
    scores = torch.tensor([[0.1, 0.9, 0.3, 0.8, 0.2], [0.5, 0.4, 0.3, 0.2, 0.1]])
    names = ("recall", "precision", "ndcg", "ndcg_index", "ndcg_ifedrec")
    means = evaluate(scores, targets([{1, 2}, {4}], 5), ks=(3,), ties="item_id", metrics=names).mean()
    assert [means[f"{name}@3"] for name in names] == pytest.approx([0.5, 0.333333, 0.459860, 0.5, 0.657732], abs=5e-7)


@settings(max_examples=30)
@given(st.data())
def test_the_pooled_gain_is_that_of_arrays_divided_by_broadcasting(data: st.DataObject) -> None:
    """The released code divides gains of shape (n,) by ideal gains of shape (n, 1) and takes the mean of n x n."""
    n_items, k, users = 60, data.draw(st.sampled_from([1, 3, 10])), data.draw(st.integers(1, 5))
    lists = [data.draw(st.permutations(range(n_items)))[:k] for _ in range(users)]
    labels = [data.draw(st.sets(st.integers(0, n_items - 1), min_size=1, max_size=15)) for _ in range(users)]
    gains = [
        sum(1 / math.log2(place + 1) for place, item in enumerate(sorted(listed), 1) if item in label)
        for listed, label in zip(lists, labels, strict=True)
    ]
    ideals = [[sum(1 / math.log2(place + 1) for place in range(1, min(len(label), k) + 1))] for label in labels]
    whole = evaluate(ranked(lists, n_items), targets(labels, n_items), ks=(k,), metrics=("ndcg_ifedrec",)).mean()
    assert whole[f"ndcg_ifedrec@{k}"] == pytest.approx((np.array(gains) / np.array(ideals)).mean(), abs=1e-12)


def naive(name: str, listed: list[int], labels: set[int]) -> float:
    order = sorted(listed) if name == "ndcg_index" else list(set(listed))
    hits = [place for place, item in enumerate(order, 1) if item in labels]
    if name == "mrr_released":
        return 1 / hits[0] if hits else 0.0
    best = len(hits) if name == "ndcg_released" else min(len(labels), len(listed))
    ideal = sum(1 / math.log2(place + 1) for place in range(1, best + 1))
    return sum(1 / math.log2(place + 1) for place in hits) / ideal if hits else 0.0


@settings(max_examples=60)
@given(st.data())
def test_against_one_user_at_a_time(data: st.DataObject) -> None:
    n_items, k = 400, data.draw(st.sampled_from([1, 3, 10, 20]))
    users = data.draw(st.integers(1, 4))
    distinct = st.lists(st.integers(0, n_items - 1), min_size=k, max_size=k, unique=True)
    lists = [data.draw(distinct) for _ in range(users)]
    labels = [set(data.draw(st.lists(st.sampled_from(one), min_size=1, unique=True))) | {399} for one in lists]
    found = evaluate(ranked(lists, n_items), targets(labels, n_items), ks=(k,), metrics=tuple(RELEASED)).per_user
    for name in RELEASED:
        expected = [naive(name, one, label) for one, label in zip(lists, labels, strict=True)]
        assert found[f"{name}@{k}"].tolist() == pytest.approx(expected, abs=1e-12)


def test_short_lists_end_early() -> None:
    lists = np.array([[9, 3, -1, -1], [40, 8, 2, -1]])
    assert set_order(lists)[0].tolist() == [9, 3, -1, -1]  # 9 is 1 modulo 8
    assert index_order(lists).tolist() == [[3, 9, -1, -1], [2, 8, 40, -1]]
    few = Targets.build((np.array([0]), np.array([2])), [(np.array([0]), np.array([0]))], 3)
    means = evaluate(torch.tensor([[9.0, 2.0, 1.0]]), few, ks=(5,), metrics=tuple(RELEASED)).mean()
    assert means["mrr_released@5"] == 0.5
    assert means["ndcg_index@5"] == pytest.approx(1 / math.log2(3))


def test_ten_hits_are_worth_the_same_in_any_order() -> None:
    rng = np.random.default_rng(0)
    for _ in range(20):
        listed = rng.permutation(500)[:10].tolist()
        means = evaluate(ranked([listed], 500), targets([set(listed)], 500), ks=(10,), metrics=tuple(RELEASED)).mean()
        assert all(value == pytest.approx(1) for value in means.values())
