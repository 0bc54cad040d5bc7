"""The worked examples of the evaluation specification, to the printed digits."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from fedrec.evaluation import Targets, candidate_targets, chance, evaluate, forbidden_negatives, positions, protocol


def one_user(n_items: int, held_out: int = 0) -> Targets:
    return Targets.build((np.array([0]), np.array([held_out])), [], n_items)


def pairs(*items: int) -> tuple[np.ndarray, np.ndarray]:
    return np.zeros(len(items), int), np.array(items, int)


def candidates_of(targets: Targets) -> set[int]:
    return set(range(targets.n_items)) - set(targets.mask_items.tolist())


class TestTies:
    scores = torch.tensor([[0.7, 0.9, 0.7, 0.7, 0.1]])

    def test_positions(self) -> None:
        higher, equal = positions(self.scores, one_user(5))
        assert (higher.tolist(), equal.tolist()) == ([1], [3])

    def test_expected(self) -> None:
        means = evaluate(self.scores, one_user(5), ks=(1, 2, 3, 5), metrics=("hr", "ndcg", "mrr")).mean()
        hit_rates = [means[f"hr@{k}"] for k in (1, 2, 3, 5)]
        assert hit_rates == pytest.approx([0, 0.333333, 0.666667, 1], abs=5e-7)
        assert [means[f"ndcg@{k}"] for k in (1, 2, 3, 5)] == pytest.approx([0, 0.210310, 0.376977, 0.520535], abs=5e-7)
        assert means["mrr@5"] == pytest.approx(0.361111, abs=5e-7)

    def test_first_places_the_held_out_item_last(self) -> None:
        means = evaluate(self.scores, one_user(5), ks=(3, 5), ties="first", metrics=("hr", "ndcg")).mean()
        assert means["hr@3"] == 0
        assert means["ndcg@5"] == pytest.approx(0.430677, abs=5e-7)

    def test_item_id_places_the_lower_id_first(self) -> None:
        higher, equal = positions(self.scores, one_user(5, held_out=2), ties="item_id")
        assert (higher.tolist(), equal.tolist()) == ([2], [1])


class TestConstantScorer:
    @pytest.mark.parametrize(
        ("candidates", "name", "value"),
        [
            (100, "hr@10", 0.1),
            (100, "ndcg@10", 0.045436),
            (100, "hr@5", 0.05),
            (100, "ndcg@5", 0.029485),
            (1577, "hr@10", 0.006341),
            (1577, "ndcg@10", 0.002881),
        ],
    )
    def test_expected_and_chance(self, candidates: int, name: str, value: float) -> None:
        targets = one_user(candidates)
        means = evaluate(torch.zeros(1, candidates), targets, ks=(5, 10)).mean()
        assert means[name] == pytest.approx(value, abs=5e-7)
        assert chance(targets, (5, 10))[name] == pytest.approx(value, abs=5e-7)

    def test_first_gives_nothing(self) -> None:
        means = evaluate(torch.zeros(1, 100), one_user(100), ks=(5, 10), ties="first").mean()
        assert set(means.values()) == {0.0}


class TestMasks:
    train, valid, test = pairs(0, 1), pairs(2), pairs(3)

    def test_candidates(self) -> None:
        valid, test = candidate_targets(self.train, self.valid, self.test, 6, protocol())
        assert candidates_of(valid) == {2, 3, 4, 5}
        assert candidates_of(test) == {3, 4, 5}

    def test_test_item_masked_at_validation(self) -> None:
        asked = protocol("honest,mask_test_at_validation=true")
        valid, test = candidate_targets(self.train, self.valid, self.test, 6, asked)
        assert candidates_of(valid) == {2, 4, 5}
        assert candidates_of(test) == {3, 4, 5}

    def test_validation_item_left_in_at_test(self) -> None:
        _, test = candidate_targets(self.train, self.valid, self.test, 6, protocol("honest,mask_val_at_test=false"))
        assert candidates_of(test) == {2, 3, 4, 5}

    @pytest.mark.parametrize(("pool", "left"), [("honest", {2, 3, 4, 5}), ("leaked", {4, 5})])
    def test_negative_pool(self, pool: str, left: set[int]) -> None:
        users, items = forbidden_negatives(self.valid, self.test, protocol(f"honest,neg_pool={pool}"))
        assert len(users) == len(items)
        assert set(range(6)) - {0, 1} - set(items.tolist()) == left

    def test_dropped_training_items_are_no_candidates(self) -> None:
        _, test = candidate_targets(pairs(0), self.valid, self.test, 6, protocol(), dropped=pairs(1))
        assert candidates_of(test) == {3, 4, 5}


def test_saturated_probabilities_tie_where_logits_do_not() -> None:
    logits = torch.tensor([[17.0, 18.0]])
    assert torch.sigmoid(torch.tensor(16.0)).item() == pytest.approx(0.99999988, abs=5e-9)
    assert [part.tolist() for part in positions(torch.sigmoid(logits), one_user(2))] == [[0], [2]]
    assert [part.tolist() for part in positions(logits, one_user(2))] == [[1], [1]]
