"""iALS: all checks of the suite with a solver user by user beside it; every round lowers the printed loss."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise

import numpy as np
import pytest
import torch
from torch import Tensor

from fedrec.errors import FedrecError
from fedrec.experiment import limits
from fedrec.experiment.limits import require_room
from fedrec.federation.clients import ClientData
from fedrec.federation.simulator import Simulator
from fedrec.methods import IALS
from fedrec.methods.reference import ials
from fedrec.testing import MethodTests, run, tiny_world

SMALL = {"dim": 3, "l2": 0.05, "unobserved": 0.2, "frequency": 0.5}


def solved(table: np.ndarray, seen: np.ndarray, method: IALS) -> np.ndarray:
    """One system at a time; `seen` is binary, a row for each that is solved for."""
    found = np.zeros((len(seen), method.dim))
    for k, row in enumerate(seen):
        weight = row + method.unobserved
        decay = method.l2 * (row.sum() + method.unobserved * len(row)) ** method.frequency
        system = (table * weight[:, None]).T @ table + decay * np.eye(method.dim)
        found[k] = np.linalg.solve(system, table.T @ row)
    return found


def binary(data: ClientData, client: int) -> np.ndarray:
    return data.chunk(np.array([client])).matrix().toarray()


def loss(x: np.ndarray, users: np.ndarray, items: np.ndarray, method: IALS) -> float:
    scores = users @ items.T
    of_users = method.l2 * (x.sum(1) + method.unobserved * x.shape[1]) ** method.frequency
    of_items = method.l2 * (x.sum(0) + method.unobserved * x.shape[0]) ** method.frequency
    observed = (x * (scores - 1) ** 2).sum() + method.unobserved * (scores**2).sum()
    return float(observed + of_users @ (users**2).sum(1) + of_items @ (items**2).sum(1))


class TestIALS(MethodTests):
    method = IALS(**SMALL)

    def reference(self, data: ClientData, rounds: int) -> Mapping[str, Tensor]:
        tables, scores = [], torch.zeros(len(data.users), data.world.items, dtype=torch.float64)
        start = self.method.init_clients(data.world, data.chunk(data.clients)).per_client["item"]
        for client in data.clients.tolist():
            items, x = start[client].numpy(), binary(data, client)
            for _ in range(rounds):
                items = solved(solved(items, x, self.method), x.T, self.method)
            tables.append(torch.from_numpy(items))
            mine = data.users[data.client_ptr[client] : data.client_ptr[client + 1]]
            scores[mine] = torch.from_numpy(solved(items, x, self.method) @ items.T)
        return {"client.item": torch.stack(tables), "scores": scores}


@pytest.mark.parametrize("frequency", [0.0, 1.0])
def test_every_round_lowers_the_loss(frequency):
    data = tiny_world(silos=(12,))
    method = IALS(**SMALL | {"frequency": frequency})
    simulator, x, losses = Simulator(method, data), binary(data, 0), []
    for round in range(6):
        simulator.round(round)
        items = simulator.cohorts[0].state.per_client["item"][0].numpy()
        losses.append(loss(x, solved(items, x, method), items, method))
    assert all(after < before for before, after in pairwise(losses))


def test_systems_that_no_memory_holds_are_refused_before_any_work(monkeypatch):
    """The tables of so many factors would fit, 40 rows of them; a single system does not."""
    monkeypatch.setattr(limits, "memory_of", lambda device: 16 << 30)
    data = tiny_world(silos=(12,), dtype=torch.float32)
    with pytest.raises(FedrecError, match=r"^ials needs at least .*working memory .*lower dim \(100000\)"):
        require_room(IALS(dim=100_000), data)
    require_room(IALS(dim=10_000), data)


def test_the_size_of_blocks_does_not_matter(monkeypatch):
    data = tiny_world(silos=(12,), empty=True)
    whole = run(IALS(**SMALL), data, 2)
    monkeypatch.setattr(ials, "NUMBERS", 1)
    alone = run(IALS(**SMALL), data, 2)
    assert torch.allclose(whole["scores"], alone["scores"], atol=1e-12)
