"""pFedGraph: the suite, the naive loop with an independent solver, the published example, and its limits."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from fedrec.experiment.checkpoint import restore, tensors_of
from fedrec.federation.clients import ClientData
from fedrec.federation.simulator import Simulator
from fedrec.methods import Local, PFedGraph
from fedrec.methods.mixture.aggregation import inner_products
from fedrec.testing import MethodTests, assert_close, outcome, run, tiny_world
from methods import naive
from methods.naive_base import taking_part

MF = {**naive.SGD, "dim": 4, "init_std": 0.3, "batch": 16, "lr": 1.0}
NCF = {**MF, "backbone": "ncf", "lr": 0.5, "lr_dense": 0.2}


def on_simplex(point: Tensor) -> Tensor:
    """The projection by bisection on the threshold."""
    low, high = point.min() - 1, point.max()
    for _ in range(200):
        middle = (low + high) / 2
        low, high = (middle, high) if (point - middle).clamp(min=0).sum() > 1 else (low, middle)
    return (point - high).clamp(min=0)


def flat(model: dict[str, Tensor]) -> Tensor:
    return torch.cat([value.flatten() for value in model.values()])


def collaborate(method: PFedGraph, data: ClientData, rounds: int) -> naive.Federation:
    federation = naive.Federation(method, data)
    initial = {name: value.clone() for name, value in federation.server.items()}
    for round in range(rounds):
        chosen = taking_part(data, round)
        for number in chosen:
            naive.train(method, federation.clients[number], data, number, round)
        models = [federation.clients[k].lock() for k in chosen]
        changes = [flat(model) - flat(initial) for model in models]
        sizes = torch.tensor([float(data.positives[k]) for k in chosen]).double()
        for number, mine in zip(chosen, changes, strict=True):
            alike = torch.stack([F.cosine_similarity(mine, other, dim=0, eps=1e-30) for other in changes])
            alike[alike > 0.9] = 1
            weights = on_simplex(sizes / sizes.sum() + alike / (2 * method.size_weight))
            mixed = {n: sum(w * m[n] for w, m in zip(weights, models, strict=True)) for n in initial}
            user = federation.clients[number].user.detach()
            federation.clients[number] = federation.holding(user, mixed)
    return federation


class PFedGraphTests(MethodTests):
    def reference(self, data: ClientData, rounds: int) -> dict[str, Tensor]:
        federation = collaborate(self.method, data, rounds)
        return {"user.user": federation.users(), "scores": federation.scores(received=False), **federation.own()}


class TestPFedGraph(PFedGraphTests):
    method = PFedGraph(**MF)


class TestPFedGraphProximal(PFedGraphTests):
    method = PFedGraph(**MF, proximal=0.05, size_weight=0.3)


class TestPFedGraphNcf(PFedGraphTests):
    method = PFedGraph(**NCF | {"epochs": 2}, proximal=0.1)


def test_weights_by_hand():
    samples, alike = torch.tensor([50, 30, 20]), torch.tensor([[1.0, 0.5, -0.25]])
    weights = PFedGraph().graph(samples, alike)
    assert torch.allclose(weights, torch.tensor([[0.75625, 0.24375, 0]]).double())


def test_similarity_of_changes():
    change = torch.tensor([[1.0, 0], [0.95, 0.05], [0, 2], [-1, 0], [0, 0]]).double()
    start = torch.tensor([3.0, -1]).double()
    alike = PFedGraph().similarity(inner_products(start + change, less=start))
    assert alike[0].tolist() == [1, 1, 0, -1, 0], "above 0.9 is the same; nobody is like one who has not moved"
    assert torch.equal(alike, alike.T)


@pytest.mark.parametrize("backbone", [MF, NCF])
@pytest.mark.parametrize("silo", [False, True])
def test_one_client_is_local(backbone, silo):
    data = tiny_world(silos=(12,)) if silo else tiny_world(per_user=(15,))
    alone, federated = run(Local(**backbone), data, 3), run(PFedGraph(**backbone), data, 3)
    assert_close({name: federated[name] for name in alone}, alone, 1e-9, "one client against local")


def test_size_alone_is_one_model_for_all():
    found = run(PFedGraph(**MF, size_weight=1e9), tiny_world(), 2)["client.item"]
    assert torch.allclose(found, found[:1].expand_as(found), atol=1e-8)
    personal = run(PFedGraph(**MF), tiny_world(), 2)["client.item"]
    assert not torch.allclose(personal[0], personal[1], atol=1e-3)


def test_rows_nobody_drew_stay_with_everybody():
    data = tiny_world(items=2000)
    simulator = Simulator(PFedGraph(**MF), data)
    simulator.round(0)
    tables = simulator.cohorts[0].state.per_client["item"]
    same = torch.isclose(tables, simulator.server["initial.item"], rtol=0, atol=1e-12).all(0).all(1)
    assert 2000 - 5 * len(data.items) <= int(same.sum()) < 2000


@pytest.mark.parametrize("method", [PFedGraph(**MF), PFedGraph(**NCF)])
def test_bytes_are_the_model_each_way_and_a_number(method):
    simulator = Simulator(method, tiny_world(dtype=torch.float32))
    for round in range(2):
        simulator.round(round)
    floats = 40 * 4 + sum(v.numel() for v in method.trainer.init_dense(simulator.world).values())
    assert (simulator.wire.ledger.down == 2 * 4 * floats).all()
    assert (simulator.wire.ledger.up == 2 * 4 * (floats + 1)).all()


@pytest.mark.parametrize("participation", [1.0, 0.5, 0.01])
def test_a_checkpoint_fits_a_fresh_simulator(participation):
    data = tiny_world(participation=participation)
    old, fresh = Simulator(PFedGraph(**MF), data), Simulator(PFedGraph(**MF), data)
    for number in range(2):
        old.round(number)
    restore(fresh, {name: value.clone() for name, value in tensors_of(old).items()})
    assert_close(outcome(fresh, 2), outcome(old, 2), 0, "restored")
