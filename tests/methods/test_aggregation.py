"""The mathematics of personalised aggregation: worked examples, and each function against the slow obvious way."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedrec.federation.stack import Stack
from fedrec.methods.mixture import aggregation
from fedrec.methods.mixture.aggregation import cosines, mix, simplex_project, square_distances


def tensor(values):
    return torch.from_numpy(np.array(values, dtype=np.float64))


def random(*shape, seed=0):
    return torch.from_numpy(np.random.default_rng(seed).normal(size=shape))


def close(found, expected, tolerance=1e-6):
    assert np.allclose(np.asarray(found), np.asarray(expected), rtol=0, atol=tolerance), (found, expected)


# -- projection --

rows = st.lists(st.floats(-5, 5), min_size=1, max_size=6)


@pytest.mark.parametrize(
    ("point", "nearest"),
    [
        ((0.4, 0.3, 0.2, 0.1), (0.4, 0.3, 0.2, 0.1)),
        ((1.5, 0.2, -0.3), (1, 0, 0)),
        ((0.6, 0.6, 0.1), (0.5, 0.5, 0)),
        ((-1, -1, -1, -1), (0.25, 0.25, 0.25, 0.25)),
        ((1, 0, 0), (1, 0, 0)),
        ((7,), (1,)),
    ],
)
def test_projection_examples(point, nearest):
    close(simplex_project(tensor([point])), [nearest], 1e-12)


@given(rows)
def test_projection_is_on_the_simplex(point):
    found = simplex_project(tensor([point]))
    assert bool((found >= 0).all())
    assert float(found.sum()) == pytest.approx(1, abs=1e-12)


def by_support(point):
    """The nearest feasible point among the best ones of every possible support."""
    best, nearest = math.inf, None
    for size in range(1, len(point) + 1):
        for support in itertools.combinations(range(len(point)), size):
            index = list(support)
            w = np.zeros(len(point))
            w[index] = point[index] - (point[index].sum() - 1) / size
            distance = ((w - point) ** 2).sum()
            if (w >= -1e-12).all() and distance < best:
                best, nearest = distance, w
    return nearest


@given(rows)
def test_projection_is_the_nearest_of_all_supports(point):
    close(simplex_project(tensor([point]))[0], by_support(np.array(point)), 1e-9)


@given(rows, st.floats(-100, 100))
def test_projection_ignores_constants(point, constant):
    close(simplex_project(tensor([point]) + constant), simplex_project(tensor([point])), 1e-12)


@given(rows)
def test_projection_twice_is_once(point):
    once = simplex_project(tensor([point]))
    close(simplex_project(once), once, 1e-12)


def test_projection_goes_row_by_row_in_float64():
    points = random(7, 30).float()
    together = simplex_project(points)
    assert together.dtype == torch.float64
    for point, found in zip(points, together, strict=True):
        assert torch.equal(simplex_project(point[None])[0], found)


def test_a_lead_of_one_takes_everything():
    close(simplex_project(tensor([[0.2, 1.2, -0.4], [0.2, 1.19, -0.4]])), [[0, 1, 0], [0.005, 0.995, 0]], 1e-12)


# -- distances --


def test_distances_are_those_of_the_differences(monkeypatch):
    tables = random(9, 11, 4)
    direct = (tables[:, None] - tables[None]).square().sum((2, 3))
    close(square_distances(tables), direct, 1e-10)
    rough = 100 + 0.01 * tables.float()  # most of it common to all: products of such rows alone would drown the rest
    direct = (rough[:, None].double() - rough[None].double()).square().sum((2, 3))
    close(square_distances(rough) / direct.mean(), direct / direct.mean(), 1e-5)
    tables = tables.float()
    direct = (tables[:, None].double() - tables[None].double()).square().sum((2, 3))
    close(square_distances(tables), direct, 1e-4)
    monkeypatch.setattr(aggregation, "BLOCK", 50)  # five columns at a time
    close(square_distances(tables), direct, 1e-4)


# -- mixtures --


def test_mixture_is_the_weighted_sum(monkeypatch):
    weights, tables = simplex_project(random(4, 4)), random(4, 6, 3)
    expected = torch.einsum("uv,vmd->umd", weights, tables)
    close(mix(weights, tables), expected, 1e-12)
    monkeypatch.setattr(aggregation, "BLOCK", 20)
    close(mix(weights, tables), expected, 1e-12)
    assert mix(weights, tables.float()).dtype == torch.float32


def test_uploads_in_parts_are_as_good_as_one_tensor(monkeypatch):
    """As they come in, unordered and in several tensors, compared and mixed a few columns at a time."""
    tables, weights = random(7, 6, 3), simplex_project(random(7, 7))
    order = torch.tensor([3, 0, 5, 6, 1, 4, 2])
    parts = Stack(np.arange(7), tuple(tables[order].split([2, 4, 1])), order.argsort())
    whole = cosines(tables), square_distances(tables), mix(weights, tables)
    for block in (aggregation.BLOCK, 20):
        monkeypatch.setattr(aggregation, "BLOCK", block)
        found = cosines(parts), square_distances(parts), mix(weights, parts)
        for mine, expected in zip(found, whole, strict=True):
            close(mine, expected, 1e-12)
        assert torch.equal(found[0], found[0].T)


def test_no_copy_of_all_uploads_is_made():
    """Beside the tables: their mixture, and blocks of columns."""
    tables = torch.zeros(40, 2000, 100)
    pointers = {part.untyped_storage().data_ptr() for part in Stack.wrap(tables).parts}
    assert pointers == {tables.untyped_storage().data_ptr()}
    assert Stack.wrap(tables).columns(slice(5)).untyped_storage().data_ptr() in pointers
