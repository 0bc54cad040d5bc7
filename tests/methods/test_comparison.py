"""The setting in which the methods that aggregate tables are compared, and what it asks of each of them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from fedrec.errors import FedrecError
from fedrec.experiment.params import build_method
from fedrec.federation.simulator import Simulator
from fedrec.methods import FedAvg, FedCA, FedFast, FedMF
from fedrec.methods.comparison import ALONE
from fedrec.testing import MethodTests, assert_close, run, tiny_world
from methods import naive

FAMILY = ("local", "fedmf", "fedavg", "fedatt", "fedfast", "perfedrec", "pfedgraph", "pfedrec")
ADAM = {"dim": 4, "init": "uniform", "batch": 16, "lr": 0.05, "epochs": 5, "optimiser": "adam"}


@pytest.mark.parametrize("name", FAMILY)
def test_all_train_alike(name):
    method, own = build_method(name, preset="fedca"), FedCA()
    setting = {key: getattr(own, key) for key in ALONE}
    published = {"dim": 16, "optimiser": "adam", "lr": 0.01, "epochs": 10, "batch": 256, "rounds": 100}
    assert setting == {**published, "init": "uniform", "weight_decay_dense": 1e-3}
    assert {key: getattr(method, key) for key in ALONE} == setting
    assert method.trainer.rates == own.trainer.rates
    assert method.backbone == "mf"
    assert getattr(method, "clusters", 10) == 10
    assert torch.equal(method.trainer.init_items(tiny_world().world), own.trainer.init_items(tiny_world().world))
    if name != "local":
        assert len(method.plan(tiny_world().world, method.init_server(tiny_world().world), 0).uploads()) == 7
    if "ncf" in method.info.backbones:
        assert build_method(name, preset="fedca", backbone="ncf").trainer.rates == own.trainer.rates


@pytest.mark.parametrize("name", [*FAMILY[3:7]])
def test_some_train_so_by_default(name):
    assert {key: getattr(build_method(name), key) for key in ALONE} == dict(ALONE)


class Part(MethodTests):
    """All train, six of ten are averaged, and everybody starts from that."""

    def reference(self, data, rounds):
        federation = naive.Federation(self.method, data)
        for round in range(rounds):
            plan = self.method.plan(data.world, {}, round)
            for number in plan.train:
                federation.clients[number] = federation.model(federation.clients[number].user.detach())
                naive.train(self.method, federation.clients[number], data, int(number), round)
            alike = self.method.client_weight(data.chunk(plan.train)) is None
            size = [1.0 if alike else data.positives[k] for k in plan.uploads()]
            tables = [
                s / sum(size) * federation.clients[k].item.detach() for s, k in zip(size, plan.uploads(), strict=True)
            ]
            federation.server["item"] = torch.stack(tables).sum(0)
        server = {"server.item": federation.server["item"]}
        return {"user.user": federation.users(), "scores": federation.scores(received=True), **server}


class TestPartOfFedMF(Part):
    method = FedMF(**ADAM, aggregated_fraction=0.6, early_exit=0.08)


class TestPartOfFedAvg(Part):
    method = FedAvg(**ADAM | {"optimiser": "sgd", "lr": 1.0}, aggregated_fraction=0.6, early_exit=0.08)


def test_delegates_are_drawn_evenly_among_those_who_train():
    world, label = tiny_world().world, torch.tensor([0] * 8 + [1] * 4)
    method = FedFast(clusters=2, aggregated_fraction=0.5)
    for round in range(5):
        plan = method.plan(world, {"label": label}, round)
        assert len(plan.train) == 12
        assert np.bincount(label.numpy()[plan.uploads()]).tolist() == [3, 3]


@pytest.mark.parametrize("optimiser", ["sgd", "adam"])
def test_early_exit_stops_clients_one_by_one(optimiser):
    """The kernel and torch stop the same clients after the same epochs, some early and some not."""
    method = FedMF(**ADAM | {"epochs": 8, "optimiser": optimiser, "lr": 0.1 if optimiser == "adam" else 3.0})
    seen = []
    for threshold in (0.0, 0.08, 0.9):
        some = replace(method, early_exit=threshold)
        both = [Simulator(some, tiny_world(empty=True, compiled=compiled)) for compiled in (True, False)]
        logs = [simulator.round(0) for simulator in both]
        assert logs[0].observed["loss"] == pytest.approx(logs[1].observed["loss"], rel=1e-9)
        assert torch.allclose(both[0].server["item"], both[1].server["item"], atol=1e-10)
        chunk = both[0].data.chunk(np.arange(12))
        some.local(
            both[0].client_side._take(both[0].cohorts[0], np.arange(12)),
            some.broadcast(both[0].server, chunk.clients, 1),
            chunk,
            1,
        )
        seen.append(chunk.observed["loss"][1] / chunk.sample_counts().sum())
    assert seen[0] == 8
    assert 2 < seen[1] < 8
    assert seen[2] == 2, "at the earliest after the second epoch"


def test_early_exit_looks_at_the_mean_since_the_round_began():
    """Equal losses in the last two epochs are no reason to stop: their running means still move."""
    from fedrec.training.descent import has_settled

    means = torch.tensor([0.70, 0.60, 0.59, 0.59]).double().cumsum(0) / torch.arange(1, 5)
    assert torch.allclose(means, torch.tensor([0.70, 0.65, 0.63, 0.62]).double())
    change = (means.diff() / (means[:-1] + 1e-5)).abs()
    assert torch.allclose(change, torch.tensor([0.0714, 0.0308, 0.0159]).double(), atol=5e-5)
    assert not has_settled(means[:-1], means[1:], 1e-4).any()
    assert has_settled(means[:-1], means[1:], 0.0160).tolist() == [False, False, True]


def test_a_part_below_zero_is_refused():
    with pytest.raises(FedrecError, match="aggregated_fraction"):
        FedMF(aggregated_fraction=1.5)


def test_nobody_outside_the_part_is_heard():
    data = tiny_world()
    method = FedMF(**ADAM, aggregated_fraction=0.5)
    simulator = Simulator(method, data)
    simulator.round(0)
    sent = np.flatnonzero(simulator.wire.ledger.up)
    assert np.array_equal(sent, method.plan(data.world, {}, 0).uploads())
    whole = run(replace(method, aggregated_fraction=1.0), data, 1)
    assert_close({"user": run(method, data, 1)["user.user"]}, {"user": whole["user.user"]}, 1e-12, "all train")
