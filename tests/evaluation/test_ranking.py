"""Lists, masks, sampled candidates and scores that cannot be ranked."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedrec.errors import FedrecError
from fedrec.evaluation import Targets, candidate_targets, evaluate, positions, protocol, top_k


def csr(sets: list[list[int]]) -> tuple[np.ndarray, np.ndarray]:
    return np.cumsum([0, *map(len, sets)]), np.array([item for items in sets for item in items], int)


def split(n_users: int = 8, n_items: int = 300, seed: int = 0) -> list[tuple[np.ndarray, np.ndarray]]:
    """Training, validation and test pairs; training items are many and differ between users."""
    rng = np.random.default_rng(seed)
    orders = [rng.permutation(n_items)[: 12 + user] for user in range(n_users)]
    parts = [order[2:] for order in orders], [order[:1] for order in orders], [order[1:2] for order in orders]
    return [(np.repeat(np.arange(n_users), [len(row) for row in rows]), np.concatenate(rows)) for rows in parts]


@given(
    st.lists(st.lists(st.integers(0, 3), min_size=6, max_size=6), min_size=1, max_size=4),
    st.lists(st.sets(st.integers(0, 5)), min_size=4, max_size=4),
    st.integers(1, 8),
)
def test_top_k_is_a_stable_argsort(scores: list[list[int]], masked: list[set[int]], k: int) -> None:
    masks = [sorted(mask) for mask in masked[: len(scores)]]
    lists = top_k(torch.tensor(scores, dtype=torch.float32), *csr(masks), k)
    for row, mask, found in zip(scores, masks, lists.tolist(), strict=True):
        order = [item for item in np.argsort([-score for score in row], kind="stable").tolist() if item not in mask]
        assert found == (order[:k] + [-1] * k)[:k]


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
def test_non_finite_scores_abort(bad: float) -> None:
    _, test = candidate_targets(*split(), 300, protocol())
    scores = torch.zeros(8, 300)
    scores[[1, 4], 7] = bad
    with pytest.raises(FedrecError, match="non-finite scores for 2 of 8 users: training diverged"):
        positions(scores, test)


def test_half_precision_is_refused_and_integers_are_ranked() -> None:
    targets = Targets.build((np.array([0]), np.array([1])), [], 3)
    with pytest.raises(FedrecError, match="float32"):
        positions(torch.zeros(1, 3, dtype=torch.bfloat16), targets)
    large = 2**24  # float32 cannot tell it from its successor
    assert positions(torch.tensor([[large + 1, large, 0]]), targets)[0].tolist() == [1]


@pytest.mark.parametrize("several", [False, True])
def test_the_callers_scores_are_not_changed(several: bool) -> None:
    train, valid, test = split()
    held_out = tuple(np.concatenate(sides) for sides in zip(valid, test, strict=True)) if several else test
    targets = Targets.build((held_out[0], held_out[1]), [train], 300)
    scores = torch.randn(300, 8).T  # not contiguous, either
    before = scores.clone()
    for ties in ("expected", "first", "item_id"):
        evaluate(scores, targets, ties=ties, metrics=("recall", "coverage"))
    assert torch.equal(scores, before)


def test_masked_items_never_stand_above() -> None:
    train, valid, test = split()
    _, targets = candidate_targets(train, valid, test, 300, protocol())
    scores = torch.zeros(8, 300)
    for users, items in (train, valid):
        scores[users, items] = 9.0
    scores[test[0], test[1]] = 1.0
    assert evaluate(scores, targets, ks=(1,)).mean() == {"hr@1": 1, "recall@1": 1, "ndcg@1": 1, "mrr@1": 1}


@pytest.mark.parametrize("ties", ["expected", "first", "item_id"])
def test_sampled_candidates_are_a_catalogue_of_their_own(ties: str) -> None:
    """Ranking against sampled items is full ranking with everything else masked."""
    rng = np.random.default_rng(3)
    users, items = np.array([0, 0, 1, 2, 2, 2]), np.array([5, 9, 0, 3, 4, 29])
    held_out = [set(items[users == user].tolist()) for user in range(3)]
    drawn = [rng.permutation([item for item in range(30) if item not in held_out[user]])[:8] for user in range(3)]
    others = [sorted(set(range(30)) - held_out[user] - set(drawn[user].tolist())) for user in range(3)]
    masked = np.repeat(np.arange(3), [len(rest) for rest in others]), np.concatenate(others)
    scores = torch.from_numpy(rng.integers(0, 3, (3, 30)))
    options = {"ks": (1, 3, 20), "ties": ties, "metrics": ("recall", "ndcg", "mrr", "map", "coverage")}
    sampled = evaluate(scores, Targets.build((users, items), [], 30, candidates=np.array(drawn)), **options)
    full = evaluate(scores, Targets.build((users, items), [masked], 30), **options)
    assert sampled.mean() == full.mean()


def test_catalogue_limits_what_is_ranked() -> None:
    held_out = np.array([0, 1]), np.array([4, 6])
    targets = Targets.build(held_out, [], 10, catalogue=np.array([6, 4, 8]))
    scores = torch.arange(10.0).repeat(2, 1)
    assert positions(scores, targets)[0].tolist() == [2, 1]
    assert targets.n_candidates.tolist() == [3, 3]
    assert evaluate(scores, targets, ks=(1,), metrics=("coverage",)).mean() == {"coverage@1": pytest.approx(1 / 3)}


@pytest.mark.parametrize(("rule", "shared"), [("sampled99", True), ("split198", False)])
def test_drawn_candidates(rule: str, shared: bool) -> None:
    train, valid, test = split()
    first, second = candidate_targets(train, valid, test, 300, protocol(f"honest,candidates={rule}"))
    assert first.candidates is not None
    assert second.candidates is not None
    assert first.candidates.shape == second.candidates.shape == (8, 99)
    known = np.concatenate([users * 300 + items for users, items in (train, valid, test)])
    assert not np.isin(first.candidates + np.arange(8)[:, None] * 300, known).any()
    overlaps = [len(np.intersect1d(*rows)) for rows in zip(first.candidates, second.candidates, strict=True)]
    assert set(overlaps) == ({99} if shared else {0})


def test_a_users_draw_depends_on_no_other_user() -> None:
    parts = split()
    alone = [(users[users == 5], items[users == 5]) for users, items in parts]
    asked = protocol("honest,candidates=sampled99")
    together, single = (candidate_targets(*each, 300, asked)[1].candidates for each in (parts, alone))
    assert together is not None
    assert single is not None
    np.testing.assert_array_equal(together[5], single[0])


def test_mistakes_are_named() -> None:
    pair = np.array([0]), np.array([1])
    empty = np.empty(0, int), np.empty(0, int)
    with pytest.raises(FedrecError, match="1 user-item pair is in both the training and the test part; keep"):
        Targets.build(pair, [pair], 3)
    with pytest.raises(FedrecError, match=r"0\.\.0"):
        Targets.build(pair, [], 1)
    with pytest.raises(FedrecError, match="no user has a held-out item"):
        Targets.build(empty, [pair], 3)
    with pytest.raises(FedrecError, match="candidates"):
        Targets.build(pair, [], 3, candidates=np.array([[0, 1]]))
    with pytest.raises(FedrecError, match="catalogue"):
        Targets.build(pair, [], 3, catalogue=np.array([0]))
    with pytest.raises(FedrecError, match="shape"):
        positions(torch.zeros(1, 4), Targets.build(pair, [], 3))
    with pytest.raises(FedrecError, match=r"^candidates=split198 draws 198 items .* candidates=full"):
        candidate_targets(*split(n_items=100), 100, protocol("honest,candidates=split198"))


@pytest.mark.parametrize(("again", "into"), [("train", "valid"), ("train", "test"), ("valid", "test")])
def test_a_pair_in_two_parts_is_named_by_the_parts(again: str, into: str) -> None:
    names = {"train": "training", "valid": "validation", "test": "test"}
    parts = dict(zip(names, split(), strict=True))
    (users, items), (more_users, more_items) = parts[into], parts[again]
    parts[into] = np.append(users, more_users[:2]), np.append(items, more_items[:2])
    with pytest.raises(FedrecError) as caught:
        candidate_targets(parts["train"], parts["valid"], parts["test"], 300, protocol("honest"))
    assert str(caught.value).startswith("2 user-item pairs are in both the ")
    assert {names[again], names[into]} < set(str(caught.value).split(" part; ")[0].split())
