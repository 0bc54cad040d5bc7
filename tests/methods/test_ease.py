from __future__ import annotations

import numpy as np
import torch

from fedrec.federation.clients import ClientData
from fedrec.methods import Ease
from fedrec.testing import MethodTests, run, tiny_world


def dense(data: ClientData) -> np.ndarray:
    x = np.zeros((len(data.users), data.world.items))
    for place in range(len(data.users)):
        x[place, data.items[data.user_ptr[place] : data.user_ptr[place + 1]]] = 1.0
    return x


class TestEase(MethodTests):
    method = Ease(l2=2.0)
    random = False
    rounds = 1

    def reference(self, data: ClientData, rounds: int) -> dict[str, torch.Tensor]:
        x = dense(data)
        p = np.linalg.inv(x.T @ x + 2.0 * np.eye(data.world.items))
        b = np.eye(data.world.items) - p @ np.diag(1 / np.diag(p))
        scores = (x @ b)[np.argsort(data.users)]
        return {"client.weight": torch.from_numpy(b)[None], "scores": torch.from_numpy(scores)}


def weights(data: ClientData, l2: float) -> np.ndarray:
    return run(Ease(l2=l2), data, 1)["client.weight"][0].numpy()


def test_solves_its_optimisation_problem():
    """Column by column, with the item itself left out, the weights solve a ridge regression; the diagonal is zero."""
    data = tiny_world(silos=(12,))
    x, b = dense(data), weights(data, 2.0)
    assert np.array_equal(np.diag(b), np.zeros(40))
    gradient = x.T @ (x @ b - x) + 2.0 * b
    np.fill_diagonal(gradient, 0.0)
    assert np.abs(gradient).max() < 1e-10
    assert np.abs(b).max() > 0.05


def test_no_small_change_is_better():
    data = tiny_world(silos=(12,))
    x, b = dense(data), weights(data, 2.0)

    def objective(w: np.ndarray) -> float:
        return float(((x - x @ w) ** 2).sum() + 2.0 * (w**2).sum())

    rng = np.random.default_rng(0)
    for _ in range(20):
        step = 1e-3 * rng.normal(size=b.shape)
        np.fill_diagonal(step, 0.0)
        assert objective(b + step) > objective(b)
