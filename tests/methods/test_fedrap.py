"""FedRAP: the suite, whole tables under library optimisers as the naive loop, and the published loss by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedrec.errors import FedrecError
from fedrec.experiment.params import build_method
from fedrec.federation.clients import ClientData
from fedrec.federation.simulator import Simulator
from fedrec.methods.personal.fedrap import OWN, FedRAP
from fedrec.testing import MethodTests, assert_close, run, tiny_world
from fedrec.training.samples import Samples
from methods.naive_base import bce, by_index, descend, draws, mean, stacked, taking_part

SMALL = {"dim": 4, "init_std": 0.5, "batch": 16, "lr": 0.3, "lr_item": 2.0, "epochs": 3, "weight_decay": 0.01}


class Client(nn.Module):
    def __init__(self, method: FedRAP, data: ClientData) -> None:
        super().__init__()
        dense = method.trainer.init_dense(data.world)
        self.own = nn.Parameter(method.trainer.init_table(data.world, OWN))
        self.shared = nn.Parameter(method.trainer.init_items(data.world))
        self.weight = nn.Parameter(dense["weight0"].clone())
        self.bias = nn.Parameter(dense["bias0"].clone())

    def forward(self, item: Tensor) -> Tensor:
        return ((self.own[item] + self.shared[item]) * self.weight).sum(-1) + self.bias

    def loss(self, item: Tensor, label: Tensor, apart: float, sparse: float, regular: str) -> Tensor:
        own, shared = self.own[item], self.shared[item]
        loss = bce(self(item), label) - apart * F.mse_loss(own, shared)
        if regular == "none":
            return loss
        if regular == "max":
            return loss + sparse * shared.abs().max()
        if regular == "nuclear":
            values = torch.linalg.svdvals(shared)
            return loss + sparse * values[values > 1e-9].sum()
        return loss + sparse * (shared.abs().mean() if regular == "l1" else shared.pow(2).mean())


def train(method: FedRAP, client: Client, data: ClientData, number: int, round: int) -> None:
    drawn = draws(method, data, number, round)
    grown = math.tanh(round / 10) if method.anneal == "paper" else 1
    groups = [
        {"params": [client.weight, client.bias], "lr": method.lr * method.round_decay**round},
        {"params": [client.own, client.shared], "lr": method.lr_item * method.round_decay**round},
    ]
    steps = torch.optim.SGD(groups, weight_decay=method.weight_decay)
    slower = torch.optim.lr_scheduler.ExponentialLR(steps, method.batch_decay)
    losses: list[tuple[float, int]] = []
    mean = 0.0
    for epoch in range(method.epochs):
        for batch in drawn.epoch(epoch):
            loss = client.loss(batch.item, batch.label, method.apart * grown, method.sparse * grown, method.regular)
            losses.append((float(loss), len(batch.item)))
            descend(loss, client, steps)
            slower.step()
        before, mean = mean, sum(loss * n for loss, n in losses) / max(1, sum(n for _, n in losses))
        if epoch and abs(mean - before) / abs(before + 1e-5) < method.early_exit:
            break


def reference(method: FedRAP, data: ClientData, rounds: int) -> dict[str, Tensor]:
    world, shared = data.world, method.trainer.init_items(data.world)
    clients = [Client(method, data) for _ in range(world.clients)]
    for round in range(rounds):
        chosen = taking_part(data, round)
        for number in chosen:
            clients[number].shared.data = shared.clone()
            train(method, clients[number], data, number, round)
        shared = mean([clients[number].shared.detach() for number in chosen])
    for client in clients:
        client.shared.data = shared
    with torch.no_grad():
        scores = [client(torch.arange(world.items)) for client in clients]
    owner = np.repeat(np.arange(world.clients), np.diff(data.client_ptr))
    held = [{"own": client.own, "weight0": client.weight, "bias0": client.bias} for client in clients]
    return {"server.item": shared, "scores": by_index(data, torch.stack([scores[k] for k in owner])), **stacked(held)}


class FedRAPTests(MethodTests):
    sampled_rows_only = False  # weight decay

    def reference(self, data: ClientData, rounds: int) -> dict[str, Tensor]:
        return reference(self.method, data, rounds)


class TestFedRAP(FedRAPTests):
    method = FedRAP(**SMALL)


class TestFedRAPReleased(FedRAPTests):
    method = FedRAP(**{**SMALL, "weight_decay": 0.0}, anneal="released", regular="l2", early_exit=0.02)
    sampled_rows_only = True
    rounds = 2


@pytest.mark.parametrize("regular", ["nuclear", "max"])
def test_norms_of_all_rows_of_a_batch(regular):
    """The last client's batch has fewer rows than the table is wide."""
    method, data = FedRAP(**{**SMALL, "dim": 6}, anneal="released", regular=regular), tiny_world()
    found, expected = run(method, data, 2), reference(method, data, 2)
    assert_close({name: found[name] for name in expected}, expected, 1e-9, regular)
    without = run(FedRAP(**{**SMALL, "dim": 6}, anneal="released", regular="none"), data, 2)
    assert not torch.allclose(found["scores"], without["scores"], atol=1e-3)


def by_hand() -> Client:
    """Two items: C = [[1, 0], [0, 2]], D = [[0, 1], [1, 0]], w = (1, -1), b = 0."""
    client = Client(FedRAP(dim=2), tiny_world(2, per_user=(1,)))
    client.shared.data = torch.tensor([[1.0, 0], [0, 2]]).double()
    client.own.data = torch.tensor([[0.0, 1], [1, 0]]).double()
    client.weight.data, client.bias.data = torch.tensor([[1.0, -1]]).double(), torch.zeros(1).double()
    return client


def test_one_step_by_hand():
    """One positive (item 0) and one negative (item 1) in a batch: the published loss, and its gradient."""
    client, method = by_hand(), FedRAP(dim=2, lr=0.1, lr_item=0.2, epochs=1, weight_decay=0.0, anneal="released")
    item, label = torch.tensor([0, 1]), torch.tensor([1.0, 0]).double()
    assert torch.sigmoid(client(item)).tolist() == pytest.approx([0.5, 0.268941], abs=1e-6)
    assert float(client.loss(item, label, 0, 0, "l1")) == pytest.approx(0.503204, abs=1e-6)
    whole = client.loss(item, label, 0.1, 0.1, "l1")
    assert float(whole) == pytest.approx(0.403204, abs=1e-6)
    whole.backward()
    data = ClientData.build(
        tiny_world(2, per_user=(1,)).world,
        np.array([0]),
        np.array([0]),
        users=np.array([0]),
        client_ptr=np.array([0, 1]),
        negatives=1,
    )
    simulator = Simulator(method, data)
    simulator.server["item"] = client.shared.detach().clone()
    held = simulator.cohorts[0].state.per_client
    held["own"][0], held["weight0"][0], held["bias0"][0] = client.own.data, client.weight.data, client.bias.data
    log = simulator.round(0)
    assert log.observed["loss"] == pytest.approx(0.403204, abs=1e-6)
    assert torch.allclose(held["own"][0], client.own - 0.2 * client.own.grad)
    assert torch.allclose(simulator.server["item"], client.shared - 0.2 * client.shared.grad)
    assert torch.allclose(held["weight0"][0], client.weight - 0.1 * client.weight.grad)


def test_coefficients_grow_and_rates_fall():
    method = FedRAP(apart=1.0, sparse=2.0, lr_item=100.0)
    grown = [method.for_round(t).apart for t in (0, 1, 5, 10, 20)]
    assert grown == pytest.approx([0, 0.0997, 0.4621, 0.7616, 0.9640], abs=5e-5)
    assert method.for_round(5).sparse == pytest.approx(2 * 0.4621, abs=1e-4)
    assert method.for_round(2).trainer.rates == pytest.approx(
        {"user": 0.5 * 0.97**2, "dense": 0.5 * 0.97**2, "item": 100 * 0.97**2}
    )
    assert FedRAP(anneal="released").for_round(0).apart == 0.1


def test_in_cgfedrecs_comparison_it_has_the_common_settings_of_that_code():
    """Two epochs of batches of 256, and no l2: a row without samples stays where it was."""
    method = build_method("fedrap", preset="cgfedrec", params={"dim": 4})
    assert (method.epochs, method.batch, method.lr_item, method.round_decay) == (2, 256, 100.0, 1.0)
    data = tiny_world(500)
    simulator = Simulator(method, data)
    start = simulator.server["item"].clone()
    simulator.round(0)
    drawn = np.unique(Samples(data.chunk(np.arange(12)), 0, "bce", 256).item.numpy())
    untouched = np.setdiff1d(np.arange(500), drawn)
    assert len(untouched)
    assert torch.allclose(simulator.server["item"][untouched], start[untouched], rtol=0, atol=1e-12)


def test_early_exit_spares_epochs():
    data = tiny_world()
    free, stopped = (run(FedRAP(**{**SMALL, "epochs": 6}, early_exit=e), data, 2)["scores"] for e in (0.0, 0.5))
    short = run(FedRAP(**{**SMALL, "epochs": 2}), data, 2)["scores"]
    assert torch.allclose(stopped, short, atol=1e-12), "the first check comes after the second epoch"
    assert not torch.allclose(stopped, free, atol=1e-3)


def test_bytes_are_one_table_each_way():
    simulator = Simulator(FedRAP(**SMALL), tiny_world(dtype=torch.float32))
    for round in range(2):
        simulator.round(round)
    assert (simulator.wire.ledger.up == 2 * 4 * 40 * 4).all()
    assert (simulator.wire.ledger.down == 2 * 4 * 40 * 4).all()


@pytest.mark.parametrize("wrong", [{"optimiser": "adam"}, {"loss": "bpr"}, {"round_decay": 0.0}, {"sparse": -1.0}])
def test_settings_out_of_range_are_refused(wrong):
    with pytest.raises(FedrecError, match="fedrap"):
        FedRAP(**wrong)
