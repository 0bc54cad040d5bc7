"""Intrinsics of the contrastive kernel against numpy: every entry, also where products are replaced by sums."""

from __future__ import annotations

import os
import subprocess
import sys

import numpy as np
import pytest
from numba import njit

from fedrec.kernels.bounds import TILE
from fedrec.kernels.contrast import aligned_zeros, set_pairs
from fedrec.kernels.contrast_products import BESIDE, HELD, TALL, add_both, add_sums, attract, set_powers, square_of
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
    x, pairs = numbers(2 * LANES, TILE), np.zeros(TILE, np.float32)  # rows of both kinds, as columns
    set_pairs(x.ravel(), pairs)
    wide = BESIDE * LANES
    own, more = pairs[:TALL], pairs[TALL : TALL + wide] - np.float32(5)
    found = np.zeros(TALL * TILE, np.float32)
    _powers(found, x.ravel(), own, more, np.float32(lowest), 2 * LANES)
    exact = x[:, :TALL].T.astype(np.float64) @ x[:, TALL : TALL + wide] - 5
    assert (exact < -6.5).any(), "some are held"
    assert np.allclose(found.reshape(TALL, TILE)[:, :wide], np.exp2(np.maximum(exact, lowest)), rtol=1e-5)


@njit(fastmath=False)
def _both_single(c, z, w, count):
    add_both(c, 0, HELD * LANES, LANES, z, w, 0, count, 1)


@njit(fastmath=False)
def _both_double(c, z, w, count):
    add_both(c, 0, HELD // 2 * 2 * LANES, 2 * LANES, z, w, 0, count, 2)


@pytest.mark.parametrize(("add", "beside"), [(_both_single, 1), (_both_double, 2)])
def test_both_rows_take_the_other_beyond_their_own_direction(add, beside):
    count, rows = 7, HELD // beside
    z, w = numbers(rows + count, beside * LANES), numbers(rows, TILE)
    c = np.zeros(z.size, np.float32)
    add(c, z.ravel(), w.ravel(), count)
    weights = np.zeros((len(z), len(z)))
    weights[:rows, rows:] = w[:, :count]
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


@njit(fastmath=False)
def _attract(pull, z, at, friends, mates, two, unit, by, width):
    return attract(pull, z, at, friends, mates, two, unit, by, width)


def test_friends_join_and_what_is_along_the_row_leaves():
    width = 3 * LANES
    pull, z, unit, friends = numbers(5, width), numbers(4, width), numbers(4, width), numbers(6, width)
    found, two, by = pull.flatten(), np.float32(0.3), np.float32(1.7)
    alike = _attract(found, z.ravel(), 2 * width, friends.ravel(), 4 * width, two, unit.ravel(), by, width)
    slope = pull[2] - two * (friends[4] - z[2])
    pull[2] = by * (slope - (slope @ unit[2]) * unit[2])
    assert np.allclose(found.reshape(pull.shape), pull, atol=1e-4), "no other row moves"
    assert alike == pytest.approx(float(z[2] @ (friends[4] - z[2])), rel=1e-5)


@njit(fastmath=False)
def _square(x, at, width):
    return square_of(x, at, width)


def test_square_of_a_row():
    x = numbers(5 * LANES)
    part = x[LANES : 4 * LANES]
    assert _square(x, LANES, 3 * LANES) == pytest.approx(float(part @ part), rel=1e-6)


@pytest.mark.parametrize("count", [1, 16, 1000])
def test_rooms_begin_with_a_line_of_the_cache(count):
    rooms = [aligned_zeros(count) for _ in range(5)]
    assert all(room.ctypes.data % 64 == 0 and len(room) == count and not room.any() for room in rooms)


def test_a_user_may_forbid_wide_vectors():
    """Code for registers that are not there would end the process."""
    code = "from fedrec.kernels import vectors; print(vectors._FOLDS)"
    told = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        env=os.environ | {"NUMBA_ENABLE_AVX": "0"},
    )
    assert told.stdout.strip() == "False"
