"""An evaluation in parts is that of the whole."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from fedrec.evaluation import Evaluator, Targets
from fedrec.evaluation.partial import merge_evaluations

METRICS = ("recall", "ndcg", "mrr", "precision", "map", "f1_of_means", "novelty", "coverage", "ndcg_ifedrec")


def test_parts_merge_to_the_whole() -> None:
    rng = np.random.default_rng(0)
    users, items = np.repeat(np.arange(30), 2), np.concatenate([rng.choice(50, 2, replace=False) for _ in range(30)])
    targets, scores = Targets.build((users, items), [], 50), torch.from_numpy(rng.normal(size=(30, 50)))
    counts = rng.integers(1, 9, 50)

    def evaluator(rows: np.ndarray) -> Evaluator:
        made = Evaluator(targets.take(rows), ks=(3, 10), metrics=METRICS, item_counts=counts)
        made.update(rows, scores[torch.from_numpy(rows)])
        return made

    whole = evaluator(np.arange(30)).result().mean()
    parts = merge_evaluations(evaluator(rows).partial() for rows in np.split(np.arange(30), [4, 5, 21]))
    assert parts.users == 30
    assert parts.mean() == pytest.approx(whole, rel=1e-12)
    assert set(parts.mean()) == set(whole)


def test_processes_see_their_users_and_combine() -> None:
    """What one process adds to the arrays of another is all that a whole evaluation holds."""
    users, items = np.arange(6), np.array([3, 1, 4, 1, 5, 0])
    targets, scores = (
        Targets.build((users, items), [], 8),
        torch.from_numpy(np.random.default_rng(1).normal(size=(6, 8))),
    )
    halves = [Evaluator(targets, ks=(2,), metrics=("ndcg", "coverage")) for _ in range(2)]
    for part, half in zip(np.split(users, 2), halves, strict=True):
        half.update(part, scores[torch.from_numpy(part)])
    seen = []
    halves[1].combine(lambda array: (seen.append(array.copy()), array)[1])
    others = iter(seen)
    halves[0].combine(lambda array: array + next(others))
    whole = Evaluator(targets, ks=(2,), metrics=("ndcg", "coverage"))
    whole.update(users, scores)
    assert halves[0].result().mean() == whole.result().mean()
