"""Expected metrics against every order of the ties, and what must hold whatever the scores."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedrec.errors import FedrecError
from fedrec.evaluation import Evaluation, Targets, chance, evaluate
from fedrec.evaluation.metrics import MEAN_METRICS, POSITION_METRICS

from . import naive

NAMES = tuple(POSITION_METRICS)
KS = (1, 2, 3, 5, 9)
N_ITEMS = 7


@dataclass(frozen=True)
class World:
    scores: torch.Tensor
    held_out: list[set[int]]
    masked: list[set[int]]

    def targets(self) -> Targets:
        return Targets.build(flat(self.held_out), [flat(self.masked)], N_ITEMS)

    def candidates(self, user: int) -> list[int]:
        return [item for item in range(N_ITEMS) if item not in self.masked[user]]

    def evaluate(self, **options: str) -> Evaluation:
        return evaluate(self.scores, self.targets(), ks=KS, metrics=(*NAMES, *MEAN_METRICS), **options)


def flat(sets: list[set[int]]) -> tuple[np.ndarray, np.ndarray]:
    users = [user for user, items in enumerate(sets) for _ in items]
    return np.array(users, int), np.array([item for items in sets for item in items], int)


@st.composite
def worlds(draw: st.DrawFn, most_held_out: int = 4) -> World:
    """Few score levels, so that blocks of equal score are large and hold several held-out items."""
    scores, held_out, masked = [], [], []
    for _ in range(draw(st.integers(1, 3))):
        scores.append(draw(st.lists(st.integers(0, 2), min_size=N_ITEMS, max_size=N_ITEMS)))
        shuffled = draw(st.permutations(range(N_ITEMS)))
        count = draw(st.integers(1, most_held_out))
        held_out.append(set(shuffled[:count]))
        masked.append(set(shuffled[count : count + draw(st.integers(0, N_ITEMS - count))]))
    return World(torch.tensor(scores, dtype=torch.float32), held_out, masked)


@settings(max_examples=40)
@given(worlds())
def test_expectation_is_the_average_over_all_orders(world: World) -> None:
    found = world.evaluate().per_user
    for name in NAMES:
        for k in KS:
            for user, held_out in enumerate(world.held_out):
                row = world.scores[user].tolist()
                reference = naive.expected(name, row, world.candidates(user), held_out, k)
                assert found[f"{name}@{k}"][user] == pytest.approx(reference, abs=1e-12), (name, k)


@settings(max_examples=100)
@given(worlds(), st.sampled_from(["first", "item_id"]))
def test_settled_ties_are_one_list(world: World, ties: str) -> None:
    found = world.evaluate(ties=ties).per_user
    for user, held_out in enumerate(world.held_out):
        ranked = naive.settled(world.scores[user].tolist(), world.candidates(user), held_out, ties)
        for name in NAMES:
            for k in KS:
                assert found[f"{name}@{k}"][user] == pytest.approx(naive.metric(name, ranked, held_out, k), abs=1e-12)


@given(worlds())
def test_monotone_transforms_change_nothing(world: World) -> None:
    moved = World(torch.exp(world.scores.double() * 3) - 5, world.held_out, world.masked)
    assert world.evaluate().mean() == moved.evaluate().mean()


@given(worlds())
def test_constant_scorer_is_chance(world: World) -> None:
    constant = World(torch.full_like(world.scores, -3.5), world.held_out, world.masked)
    assert constant.evaluate().mean() == pytest.approx(chance(world.targets(), KS))


@given(worlds(most_held_out=1))
def test_one_held_out_item_gives_recall_both_names(world: World) -> None:
    found = world.evaluate().per_user
    for k in KS:
        np.testing.assert_array_equal(found[f"recall@{k}"], found[f"hr@{k}"])
        np.testing.assert_allclose(found[f"map@{k}"], found[f"mrr@{k}"], atol=1e-15)


@pytest.mark.parametrize("size", [400, 20_000])
def test_large_blocks_stay_in_bounds(size: int) -> None:
    """Binomials of this size overflow; the recursion must not."""
    held_out = np.arange(0, size, 7)
    targets = Targets.build((np.zeros(len(held_out), int), held_out), [], size)
    means = evaluate(torch.zeros(1, size), targets, ks=(10, 100), metrics=NAMES).mean()
    assert all(0 < value < 1 for value in means.values())
    assert means["precision@10"] == pytest.approx(len(held_out) / size)


def test_hr_needs_one_held_out_item() -> None:
    targets = Targets.build((np.zeros(2, int), np.array([1, 2])), [], 5)
    assert "hr@1" not in evaluate(torch.zeros(1, 5), targets, ks=(1,)).mean()
    with pytest.raises(FedrecError, match="recall"):
        evaluate(torch.zeros(1, 5), targets, metrics=("hr",))


def test_unknown_metric_offers_the_nearest() -> None:
    targets = Targets.build((np.zeros(1, int), np.ones(1, int)), [], 5)
    with pytest.raises(FedrecError, match="did you mean 'ndcg'"):
        evaluate(torch.zeros(1, 5), targets, metrics=("ndgc",))
