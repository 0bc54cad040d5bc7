"""Moving towards an average similarity: every way of computing it is the released one, by automatic differentiation."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
import torch

from fedrec.methods.silo.similarity import (
    Descent,
    LowRank,
    distance,
    mean_factor,
    mean_matrix,
    shorten,
    shorten_matrix,
)
from methods.naive_silos import aligned

TABLE = torch.tensor([[1.0, 0], [0, 1], [1, 1]], dtype=torch.float64)
OTHERS = [torch.tensor(t, dtype=torch.float64) for t in ([[1, 0], [1, 0], [0, 1]], [[0, 1], [1, 1], [1, 0]])]


def tables(items=60, dims=(5, 3, 7, 5)):
    rng = np.random.default_rng(0)
    return [torch.from_numpy(0.3 * rng.normal(size=(items, dim))) for dim in dims]


def exact(found):
    return [shorten(table, table.shape[1])[:2] for table in found]


def test_worked_example():
    mean = sum(t @ t.T for t in OTHERS) / 2
    assert torch.equal(mean, torch.tensor([[1, 1, 0], [1, 1.5, 0.5], [0, 0.5, 1]], dtype=torch.float64))
    target, gram = LowRank.from_matrix(mean), TABLE.T @ TABLE
    pulled = target.times(TABLE)
    assert float(gram.square().sum()) == 10
    assert float((TABLE * pulled).sum()) == pytest.approx(5.5)
    assert float(target.square) == pytest.approx(6.75)
    assert float(distance(TABLE, gram, pulled, target.square)) == pytest.approx(2.397916, abs=1e-6)
    gradient = 4 * (TABLE @ gram - pulled)
    assert torch.allclose(gradient, torch.tensor([[4, 0], [-2, 0], [8, 6]], dtype=torch.float64))
    step = Descent(1, 0.1, 1e-6, "fro_norm", 3).align(TABLE, target)
    expected = torch.tensor([[0.916594, 0], [0.041703, 1.0], [0.833188, 0.874891]], dtype=torch.float64)
    assert torch.allclose(step, expected, atol=1e-5)
    literal = Descent(1, 1.0, 0.0, "mse_literal", 3).align(TABLE, target)
    expected = torch.tensor([[0.444444, 0], [-0.222222, 0], [0.888889, 0.666667]], dtype=torch.float64)
    assert torch.allclose(TABLE - literal, expected, atol=1e-6)
    norm = Descent(1, 1.0, 0.0, "fro_norm", 3).align(TABLE, target)
    expected = torch.tensor([[0.834058, 0], [-0.417029, 0], [1.668115, 1.251086]], dtype=torch.float64)
    assert torch.allclose(TABLE - norm, expected, atol=1e-6)
    same = Descent(1, 1.0, 0.0, "mse", 3).align(TABLE, target)
    assert torch.allclose(same, norm), "the first step of mse has the released length"


def test_all_ways_agree():
    """100 steps: autograd on the whole matrix, with the Gram matrix, with factors, within the subspace."""
    found = tables()
    mean = sum(t @ t.T for t in found) / len(found)
    descent = Descent(100, 0.1, 1e-3, "fro_norm", 60)
    target = mean_factor(exact(found), 20, 1, 4000)
    for start in (found[1], tables(dims=(9,))[0]):
        expected = aligned(start, mean, 100, 0.1, 1e-3)
        for name, way in {
            "gram": descent.align(start, LowRank.from_matrix(mean)),
            "eigenvectors": descent.align_within(start, LowRank.from_matrix(mean), complete=True),
            "factors": descent.align(start, target),
            "subspace": descent.align_within(start, target),
        }.items():
            assert torch.allclose(way, expected, rtol=1e-9, atol=1e-9), name
        assert float((expected - start).abs().max()) > 0.1


def test_several_tables_at_once_are_each_by_itself():
    found = torch.stack(tables(dims=(4, 4, 4)))
    descent = Descent(20, 0.1, 1e-3, "mse", 60)
    target = mean_factor(exact(found), 8, 1, 4000)
    together = descent.align_within(found, target)
    for one, mine in zip(found, together, strict=True):
        assert torch.allclose(descent.align_within(one, target), mine, atol=1e-12)


def test_noise_that_is_not_symmetric():
    start, other = tables(dims=(4, 6))
    noisy = other @ other.T + 0.01 * torch.from_numpy(np.random.default_rng(1).laplace(size=(60, 60)))
    descent, expected = Descent(30, 0.1, 1e-3, "fro_norm", 60), aligned(start, noisy, 30, 0.1, 1e-3)
    assert torch.allclose(descent.align(start, LowRank.from_matrix(noisy)), expected, atol=1e-10)
    assert torch.allclose(descent.align_within(start, LowRank.from_matrix(noisy), complete=True), expected, atol=1e-10)


def test_alignment_comes_closer():
    start, *others = tables()
    mean = sum(t @ t.T for t in others) / len(others)
    for kind in ("fro_norm", "mse"):
        moved = [start]
        for _ in range(3):
            moved.append(Descent(30, 0.05, 0.0, kind, 60).align(moved[-1], LowRank.from_matrix(mean)))
        gaps = [float(torch.linalg.norm(t @ t.T - mean)) for t in moved]
        assert all(b < a for a, b in pairwise(gaps)), kind


def test_shortened_upload():
    table = torch.tensor([[2.0, 1], [0, 1], [1, 0], [1, 2]], dtype=torch.float64)
    vectors, values, lost = shorten(table, 1)
    rows = torch.tensor([[4.5, 1.5, 1.5, 4.5], [1.5, 0.5, 0.5, 1.5]], dtype=torch.float64)
    again = (vectors * values) @ vectors.T
    assert torch.allclose(again, rows[[0, 1, 1, 0]])
    assert float(values[0]) == pytest.approx(10)
    whole = table @ table.T
    assert float(torch.linalg.norm(again - whole)) == pytest.approx(2)
    assert float(lost) == pytest.approx(2 / float(torch.linalg.norm(whole)))
    for cut in (shorten, shorten_matrix):
        vectors, values, lost = cut(table if cut is shorten else whole, 2)
        assert torch.allclose((vectors * values) @ vectors.T, whole, atol=1e-12)
        assert float(lost) < 1e-7


def test_a_rotated_table_sends_the_same():
    (table,) = tables(dims=(5,))
    turned = table @ torch.linalg.qr(torch.from_numpy(np.random.default_rng(3).normal(size=(5, 5))))[0]
    (v, s, _), (w, t, _) = shorten(table, 5), shorten(turned, 5)
    assert torch.allclose((v * s) @ v.T, (w * t) @ w.T, atol=1e-12)


def test_shortened_matrix_keeps_signs():
    matrix = torch.diag(torch.tensor([1.0, -3.0, 2.0], dtype=torch.float64))
    vectors, values, _ = shorten_matrix(matrix, 2)
    assert values.tolist() == [-3, 2]
    assert torch.allclose((vectors * values) @ vectors.T, torch.diag(torch.tensor([0, -3.0, 2.0], dtype=torch.float64)))


@pytest.mark.parametrize(("items", "whole"), [(60, 4000), (15, 4000), (60, 10)])
def test_mean_of_factors(items, whole):
    """From the columns, from the matrix, and by random projection: the best approximation and what it leaves out."""
    found = tables(items)
    mean = mean_matrix(exact(found))
    assert torch.allclose(mean, sum(t @ t.T for t in found) / 4, atol=1e-12)
    target = mean_factor(exact(found), 8, 1, whole)
    values = torch.linalg.eigvalsh(mean).flip(0)
    assert torch.allclose(target.vectors.T @ target.vectors, torch.eye(8).double(), atol=1e-9)
    close = 1e-9 if whole == 4000 else 1e-3
    assert torch.allclose(target.values, values[:8], rtol=close)
    assert float(target.tail) == pytest.approx(float(values[8:].square().sum()), rel=1e-9 if whole == 4000 else 0.5)
    assert torch.allclose(target.times(mean), target.vectors * target.values @ target.vectors.T @ mean, atol=1e-9)


def test_random_projection_is_exact_where_nothing_is_cut():
    found = tables(dims=(3, 4))
    target = mean_factor(exact(found), 10, 1, 1)
    assert torch.allclose(target.times(torch.eye(60).double()), mean_matrix(exact(found)), atol=1e-9)
    assert float(target.tail) < 1e-15


def test_order_of_silos_does_not_matter():
    found = tables()
    one, two = (mean_factor(exact(order), 20, 1, 4000) for order in (found, found[::-1]))
    eye = torch.eye(60).double()
    assert torch.allclose(one.times(eye), two.times(eye), atol=1e-12)


def test_a_table_that_is_already_there_stays_near():
    """The norm has a gradient of one length everywhere, so its descent trembles around the end."""
    (table,) = tables(dims=(4,))
    there = LowRank.from_matrix(table @ table.T)
    assert torch.allclose(Descent(100, 0.1, 0.0, "mse_literal", 60).align(table, there), table, atol=1e-12)
    for kind in ("fro_norm", "mse"):
        assert float((Descent(100, 0.1, 0.0, kind, 60).align(table, there) - table).abs().max()) < 0.1
