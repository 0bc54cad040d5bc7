"""Powers of e that a loop computes for many numbers at once."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("numba")
from numba import njit

from fedrec.kernels.exponential import LOWEST, exp_below
from fedrec.kernels.mf import FACTORS, FAST, bce_slopes


@njit(**FAST)
def _powers(x):
    found = np.empty_like(x)
    for j in range(len(x)):
        found[j] = exp_below(x[j])
    return found


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_powers_are_exact_to_their_last_places(dtype):
    x = -np.linspace(0, -LOWEST, 100_003).astype(dtype)
    wanted = np.exp(x.astype(np.float64))
    assert np.abs(_powers(x) / wanted - 1).max() < 2 * np.finfo(dtype).eps


def test_what_is_beyond_stays_positive_and_what_is_no_number_stays_none():
    low, none, one = _powers(np.array([-1e30, np.nan, 0.0], dtype=np.float32))
    assert 0 < low < 1e-37
    assert np.isnan(none)
    assert one == 1


@pytest.mark.parametrize("count", [1, 100, FACTORS, 3 * FACTORS + 5])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_slopes_and_loss_of_a_batch(count, dtype):
    batch = np.random.default_rng(0).permutation(count).astype(np.uint32)
    x = np.random.default_rng(1).normal(scale=20, size=count).astype(dtype)
    liked, exact = batch < count // 3, x.astype(np.float64)
    slope = x.copy()
    loss = bce_slopes(batch, count // 3, slope)
    wanted = np.where(liked, -1 / (1 + np.exp(exact)), 1 / (1 + np.exp(-exact)))
    assert np.allclose(slope, wanted, rtol=4 * np.finfo(dtype).eps, atol=1e-37)  # small ones too
    assert np.isclose(loss, np.logaddexp(0, np.where(liked, -exact, exact)).sum(), rtol=1e-6)


def test_a_loss_that_is_no_number_shows():
    logits = np.array([1.0, np.nan, -1.0] * 20, dtype=np.float32)
    assert np.isnan(bce_slopes(np.arange(60, dtype=np.uint32), 30, logits))
