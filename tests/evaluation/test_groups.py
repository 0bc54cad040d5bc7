"""Groups on small tables that can be counted by hand."""

from __future__ import annotations

import numpy as np
import pytest

from fedrec.errors import FedrecError
from fedrec.evaluation.groups import ACTIVITY, POPULARITY, TASTE, by_activity, by_popularity, by_taste


def names(labels: np.ndarray, of: tuple[str, ...]) -> list[str]:
    return [of[label] for label in labels]


def test_activity_takes_both_ends_and_breaks_ties_by_user() -> None:
    found = by_activity(np.array([9, 3, 3, 3, 7, 8, 5, 5, 5, 9]))
    assert names(found, ACTIVITY) == [
        "warm",
        "cold",
        "cold",
        "cold",
        "middle",
        "warm",
        "middle",
        "middle",
        "middle",
        "warm",
    ]
    assert np.bincount(by_activity(np.arange(100), 0.1)).tolist() == [10, 80, 10]
    with pytest.raises(FedrecError, match=r"at most 0\.5"):
        by_activity(np.arange(5), 0.6)


def test_taste_by_hand() -> None:
    # Items 0, 1, 2 of ten are popular (4, 3, 3 times). Shares on them: 1, 3/4, 1/2, 1/3, 0, 1.
    rows = [(0, [0, 1]), (1, [0, 1, 2, 3]), (2, [0, 4]), (3, [2, 5, 6]), (4, [7, 8]), (5, [0, 1, 2])]
    user = np.concatenate([np.full(len(items), who) for who, items in rows])
    item = np.concatenate([items for _, items in rows])
    found = by_taste((user, item), 6, 10, size=2)
    assert names(found, TASTE) == ["followers", "middle", "middle", "distinct", "distinct", "followers"]
    halves = by_taste((user, item), 6, 10)  # fewer than 200 users: three and three
    assert np.bincount(halves, minlength=3).tolist() == [3, 0, 3]


def test_equal_users_are_in_one_group_only() -> None:
    user, item = np.repeat(np.arange(4), 2), np.tile([0, 1], 4)
    assert names(by_taste((user, item), 5, 4, size=2), TASTE) == [
        "distinct",
        "distinct",
        "followers",
        "followers",
        "middle",
    ]
    with pytest.raises(FedrecError, match="cannot be grouped by taste"):
        by_taste((np.array([], int), np.array([], int)), 2, 2)


def test_popularity_cuts_the_interactions_in_thirds() -> None:
    counts = np.array([1, 30, 15, 0, 15, 1, 28])  # 90 in all: 30 | 28 15 | 15 1 1 0; 15 starts at 58 and at 73
    found = by_popularity(counts, np.arange(7))
    assert names(found, POPULARITY) == ["tail", "head", "mid", "tail", "tail", "tail", "mid"]
    assert names(by_popularity(counts, np.array([1, 3])), POPULARITY) == ["head", "tail"]
    assert names(by_popularity(np.zeros(2), np.array([0])), POPULARITY) == ["tail"]
