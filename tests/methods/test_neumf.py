"""Centralised NeuMF: the suite, and torch.nn in a plain loop."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from fedrec.federation.clients import ClientData
from fedrec.methods import CentralNeuMF
from fedrec.testing import MethodTests, tiny_world
from methods.naive_base import Draws, bce, by_index, descend, linear


class Plain(nn.Module):
    """Four tables, a tower, an output."""

    def __init__(self, method: CentralNeuMF, data: ClientData) -> None:
        super().__init__()
        world, left = data.world, method.factors
        user, dense = method.trainer.init_users(world, data.users), method.init_model(world)
        item = dense.pop("item")
        parts = user[:, :left], item[:, :left], user[:, left:], item[:, left:]
        self.p_gmf, self.q_gmf, self.p_mlp, self.q_mlp = (nn.Parameter(part.clone()) for part in parts)
        self.tower = nn.Sequential()
        for layer in range(method.layers):
            self.tower += nn.Sequential(linear(dense[f"weight{layer}"], dense[f"bias{layer}"]), nn.ReLU())
        self.output = linear(dense["output"], dense["output_bias"])

    def forward(self, user: torch.Tensor, item: torch.Tensor) -> torch.Tensor:
        tower = self.tower(torch.cat([self.p_mlp[user], self.q_mlp[item]], 1))
        return self.output(torch.cat([self.p_gmf[user] * self.q_gmf[item], tower], 1))[:, 0]


class TestNeuMF(MethodTests):
    method = CentralNeuMF(dim=10, factors=4, layers=2, batch=32, init_std=0.3, lr=0.01)

    def reference(self, data: ClientData, rounds: int) -> dict[str, torch.Tensor]:
        """One round is one epoch, which Adam begins afresh."""
        model = Plain(self.method, data)
        for round in range(rounds):
            steps = torch.optim.Adam(model.parameters(), lr=self.method.lr)
            for batch in Draws(data, 0, round, self.method.batch).epoch():
                descend(bce(model(batch.user, batch.item), batch.label), model, steps)
        pairs = torch.cartesian_prod(torch.arange(len(data.users)), torch.arange(data.world.items))
        with torch.no_grad():
            scores = model(pairs[:, 0], pairs[:, 1]).reshape(len(data.users), -1)
        return {"scores": by_index(data, scores)}


def test_start_of_the_output_layer():
    method, world = CentralNeuMF(dim=128, factors=64), tiny_world().world
    dense = method.init_model(world)
    assert dense["output"].abs().max().item() == pytest.approx((3 / 80) ** 0.5, rel=0.05)
    assert not dense["output_bias"].any()
    assert dense["item"].std().item() == pytest.approx(0.01, rel=0.05)
