"""Tests of the tests: calibrated where there is nothing, sharp where there is something, the same every time."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from fedrec.errors import FedrecError
from fedrec.evaluation.significance import holm, paired_bootstrap, paired_t, wilcoxon


def ndcg_like(rng: np.random.Generator, users: int) -> np.ndarray:
    """Mostly zeros, else a discount of one of ten positions, as leave-one-out gives it."""
    found = rng.random(users) < 0.2
    return found / np.log2(rng.integers(1, 11, users) + 1)


def test_p_is_uniform_where_there_is_no_difference() -> None:
    rng = np.random.default_rng(0)
    values = [
        paired_bootstrap(ndcg_like(rng, 400), ndcg_like(rng, 400), resamples=999, seed=trial).p for trial in range(500)
    ]
    assert stats.kstest(values, "uniform").pvalue > 0.01
    assert 0.02 < np.mean(np.array(values) < 0.05) < 0.09  # 0.05 and three standard errors
    assert 0.05 < np.mean(np.array(values) < 0.1) < 0.15


def test_the_interval_holds_the_truth_as_often_as_it_says() -> None:
    rng = np.random.default_rng(1)
    inside = 0
    for trial in range(300):
        base = ndcg_like(rng, 400)
        found = paired_bootstrap(base + rng.normal(0.03, 0.2, 400), base, resamples=999, seed=trial)
        inside += found.low <= 0.03 <= found.high
    assert 0.91 < inside / 300 < 0.985


@pytest.mark.parametrize(("shift", "least", "most"), [(0.0, 0.0, 0.12), (0.03, 0.6, 1.0), (0.06, 0.97, 1.0)])
def test_power_grows_with_the_difference(shift: float, least: float, most: float) -> None:
    rng = np.random.default_rng(2)
    found = []
    for trial in range(100):
        base = ndcg_like(rng, 400)
        found.append(paired_bootstrap(base + rng.normal(shift, 0.2, 400), base, resamples=499, seed=trial).p < 0.05)
    assert least <= np.mean(found) <= most


def test_it_agrees_with_resampling_users_one_by_one() -> None:
    rng = np.random.default_rng(3)
    a, b = ndcg_like(rng, 300), ndcg_like(rng, 300)
    found = paired_bootstrap(a, b)
    means = (a - b)[rng.integers(300, size=(10_000, 300))].mean(1)
    assert found.mean == pytest.approx((a - b).mean())
    assert (found.low, found.high) == pytest.approx(np.percentile(means, [2.5, 97.5]), abs=0.002)
    assert found.p == pytest.approx(2 * min((means <= 0).mean(), (means >= 0).mean()), abs=0.03)


def test_the_same_every_time_and_the_same_from_either_side() -> None:
    rng = np.random.default_rng(4)
    a, b = ndcg_like(rng, 200), ndcg_like(rng, 200)
    assert paired_bootstrap(a, b) == paired_bootstrap(a, b)
    assert paired_bootstrap(a, b) != paired_bootstrap(a, b, seed=1)
    there, back = paired_bootstrap(a, b), paired_bootstrap(b, a)
    assert (back.mean, back.low, back.high, back.p) == pytest.approx((-there.mean, -there.high, -there.low, there.p))


def test_no_difference_at_all() -> None:
    same = np.array([0.1, 0.5, 0.0])
    found = paired_bootstrap(same, same)
    assert (found.mean, found.low, found.high, found.p) == (0, 0, 0, 1)
    assert paired_t(same, same) is None
    assert wilcoxon(same, same) == 1


def test_many_users_in_several_chunks_and_one_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(5)
    a, b = rng.random(700), rng.random(700)
    whole = paired_bootstrap(a, b)
    monkeypatch.setattr("fedrec.evaluation.significance._DRAWS_AT_ONCE", 10_000)
    assert paired_bootstrap(a, b).low == pytest.approx(whole.low, abs=1e-9)
    assert paired_bootstrap(a[:1], b[:1]).low == pytest.approx(a[0] - b[0])


def test_holm_by_hand() -> None:
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.4, 0.9]) == pytest.approx([0.8, 0.9])
    assert holm([0.7, 0.6, 0.5]) == [1.0, 1.0, 1.0]
    assert holm([]) == []
    assert holm([0.2]) == [0.2]


def test_the_other_tests_are_scipys() -> None:
    rng = np.random.default_rng(6)
    a, b = rng.random(5), rng.random(5)
    assert paired_t(a, b) == pytest.approx(stats.ttest_rel(a, b).pvalue)
    assert paired_t(a[:1], b[:1]) is None
    assert paired_t(a + 0.5, a) is None  # the same difference in every seed: no deviation to compare it with
    a, b = ndcg_like(rng, 200), ndcg_like(rng, 200)
    assert wilcoxon(a, b) == pytest.approx(stats.wilcoxon(a, b).pvalue)


def test_other_users_are_refused() -> None:
    with pytest.raises(FedrecError, match="the same users"):
        paired_bootstrap(np.zeros(3), np.zeros(4))
    with pytest.raises(FedrecError, match="at least 1"):
        paired_bootstrap(np.zeros(3), np.zeros(3), resamples=0)
