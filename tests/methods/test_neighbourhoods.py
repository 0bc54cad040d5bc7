"""Means over neighbours by steps from one neighbourhood to the next, against the product with the whole matrix."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from fedrec.federation import stack
from fedrec.federation.stack import Stack
from fedrec.methods.mixture import neighbourhoods
from fedrec.methods.mixture.neighbourhoods import Neighbourhoods, spanning_tree

CLIENTS = 40


def alike(seed: int, flips: float) -> np.ndarray:
    """Neighbourhoods that differ from one of five by some members; everybody has itself."""
    draw = np.random.default_rng(seed)
    near = (draw.random((5, CLIENTS)) < 0.7)[draw.integers(0, 5, CLIENTS)]
    return np.asarray((near ^ (draw.random(near.shape) < flips)) | np.eye(CLIENTS, dtype=bool))


@pytest.mark.parametrize("flips", [0.0, 0.05, 0.5])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("compiled", [True, False])
@pytest.mark.parametrize("parts", [1, 3])
def test_means_are_the_product_with_the_matrix(monkeypatch, flips, dtype, compiled, parts):
    if not compiled:
        monkeypatch.setattr(neighbourhoods, "find_kernel", lambda name, device: None)
    monkeypatch.setattr(stack, "RUN", 100 * CLIENTS)  # several runs of columns, where parts lie apart
    near, tables = torch.from_numpy(alike(0, flips)), torch.randn(CLIENTS, 130, 4, dtype=dtype)
    order = None if parts == 1 else torch.randperm(CLIENTS)
    stored = tables if order is None else tables[order.argsort()]
    wanted = torch.einsum("uv,vif->uif", near.double() / near.sum(1, keepdim=True), tables.double())
    mixed, mean = Neighbourhoods(near).means(Stack(np.arange(CLIENTS), stored.tensor_split(parts), order))
    close = 1e-12 if dtype == torch.float64 else 1e-6
    assert mixed.dtype == dtype
    assert (mixed - wanted).abs().max() < close
    assert (mean - wanted.mean(0)).abs().max() < close


def test_means_take_the_place_of_others():
    near, tables = torch.from_numpy(alike(1, 0.1)), torch.randn(CLIENTS, 7, 3)
    place = torch.full_like(tables, torch.nan)
    mixed, _ = Neighbourhoods(near).means(tables, place)
    assert mixed is place
    assert torch.equal(place, Neighbourhoods(near).means(tables)[0])


def test_tree_goes_by_the_fewest_changes():
    """No longer than any other way through all, and far shorter than from nobody each time where clients are alike."""
    near = alike(2, 0.02)
    order, parent = spanning_tree(near)
    assert sorted(order) == list(range(CLIENTS))
    place = np.append(np.argsort(order), -1)  # nobody comes first
    assert (place[parent] < place[:-1]).all()
    sets = np.vstack([near, np.zeros_like(near[:1])])
    steps = (near ^ sets[parent]).sum()
    in_a_row = near[0].sum() + (near[1:] ^ near[:-1]).sum()
    assert steps <= in_a_row
    assert steps < 0.3 * near.sum()
