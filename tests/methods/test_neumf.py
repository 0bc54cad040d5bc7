"""Centralised NeuMF: the suite, and torch.nn in a plain loop."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from fedrec.federation.clients import ClientData
from fedrec.methods import CentralNeuMF
from fedrec.testing import MethodTests, tiny_world
from fedrec.training.samples import Samples


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
            self.tower += nn.Sequential(self.linear(dense[f"weight{layer}"], dense[f"bias{layer}"]), nn.ReLU())
        self.output = self.linear(dense["output"], dense["output_bias"])

    @staticmethod
    def linear(weight: torch.Tensor, bias: torch.Tensor) -> nn.Linear:
        made = nn.Linear(weight.shape[1], weight.shape[0], dtype=weight.dtype)
        made.load_state_dict({"weight": weight, "bias": bias})
        return made

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
            samples = Samples(data.chunk(np.array([0])), round, "bce", self.method.batch)
            for batch in samples.epoch(0):
                real = batch.valid[0]
                logits = model(batch.user[0][real], samples.item[batch.pos[0][real]])
                steps.zero_grad()
                F.binary_cross_entropy_with_logits(logits, batch.label[0][real]).backward()
                steps.step()
        pairs = torch.cartesian_prod(torch.arange(len(data.users)), torch.arange(data.world.items))
        with torch.no_grad():
            scores = model(pairs[:, 0], pairs[:, 1]).reshape(len(data.users), -1)
        return {"scores": scores[torch.from_numpy(np.argsort(data.users))]}


def test_start_of_the_output_layer():
    method, world = CentralNeuMF(dim=128, factors=64), tiny_world().world
    dense = method.init_model(world)
    assert dense["output"].abs().max().item() == pytest.approx((3 / 80) ** 0.5, rel=0.05)
    assert not dense["output_bias"].any()
    assert dense["item"].std().item() == pytest.approx(0.01, rel=0.05)
