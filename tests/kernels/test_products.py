"""Intrinsics of the contrastive kernel against numpy: every entry, also where products are replaced by sums."""

from __future__ import annotations

import numpy as np
import pytest
from numba import njit

from fedrec.kernels.bounds import TILE
from fedrec.kernels.contrast import own_pairs
from fedrec.kernels.contrast_products import TALL, add_both, add_sums, set_powers
from fedrec.kernels.products import ROWS, add_products
from fedrec.kernels.vectors import LANES


def numbers(*shape: int) -> np.ndarray:
    return np.random.default_rng(sum(shape)).standard_normal(shape).astype(np.float32)


@njit
def _products(c, a, b, count):
    add_products(c, 0, LANES, a, 0, count, 1, b, 0, LANES, count)


def test_products_are_added():
    a, b, c = numbers(ROWS, 5), numbers(5, LANES), numbers(ROWS, LANES)
    found = c.flatten()
    _products(found, a.ravel(), b.ravel(), 5)
    assert np.allclose(found.reshape(c.shape), c + a @ b, rtol=1e-5, atol=1e-6)


@njit(fastmath=False)
def _powers(e, x, own, more, lowest, count):
    set_powers(e, 0, x, 0, TALL, own, 0, more, 0, lowest, count)


@pytest.mark.parametrize("lowest", [-100.0, -6.5])
def test_powers_of_two_of_dot_products(lowest):
    x = numbers(2 * LANES, TILE)  # rows of the first kind, then of the second, as columns
    pairs = np.array([own_pairs(np.ascontiguousarray(column)) for column in x.T], np.float32)
    own, more = pairs[:TALL], pairs[TALL : TALL + LANES] - np.float32(5)
    found = np.zeros(TALL * TILE, np.float32)
    _powers(found, x.ravel(), own, more, np.float32(lowest), 2 * LANES)
    exact = x[:, :TALL].T.astype(np.float64) @ x[:, TALL : TALL + LANES] - 5
    assert (exact < -6.5).any(), "some are held"
    assert np.allclose(found.reshape(TALL, TILE)[:, :LANES], np.exp2(np.maximum(exact, lowest)), rtol=1e-5)


@njit(fastmath=False)
def _both(c, z, w, count):
    add_both(c, 0, ROWS * LANES, LANES, z, w, 0, count)


def test_both_rows_take_the_other_beyond_their_own_direction():
    count = 7
    z, w, c = numbers(ROWS + count, LANES), numbers(ROWS, TILE), np.zeros((ROWS + count) * LANES, np.float32)
    _both(c, z.ravel(), w.ravel(), count)
    weights = np.zeros((len(z), len(z)))
    weights[:ROWS, ROWS:] = w[:, :count]
    weights += weights.T
    direction = z / np.linalg.norm(z, axis=1, keepdims=True)

    def across(rows: np.ndarray) -> np.ndarray:
        return rows - (rows * direction).sum(1, keepdims=True) * direction

    assert np.allclose(across(c.reshape(z.shape)), across(weights @ z), atol=1e-5)


@njit(fastmath=False)
def _sums(rows, columns, e):
    add_sums(rows, columns, 0, e)


def test_sums_of_a_tile():
    e, rows, columns = numbers(TILE, TILE), np.zeros((TILE, LANES), np.float32), np.ones(TILE, np.float32)
    found = rows.ravel()
    _sums(found, columns, e.ravel())
    assert np.allclose(found.reshape(rows.shape).sum(1), e.sum(1), atol=1e-4)
    assert np.allclose(columns, 1 + e.sum(0), atol=1e-4)
