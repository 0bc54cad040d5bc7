"""FedCA: all checks of the suite, the same one client at a time, and the methods that it contains as special cases."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from fedrec.errors import FedrecError
from fedrec.federation.contract import Down, State
from fedrec.federation.simulator import Simulator
from fedrec.methods import FedAvg, FedMF, Local
from fedrec.methods.mixture.fedca import FedCA
from fedrec.testing import assert_close, run, tiny_world
from methods.naive_fedca import MANY, MF, NCF, FedCATests


class TestFedCA(FedCATests):
    method = FedCA(**MF | MANY)


class TestNcf(FedCATests):
    method = FedCA(**NCF | MANY | {"early_exit": 0.05, "epochs": 4})


class TestEqualShares(FedCATests):
    method = FedCA(**MF | MANY, shares="equal")


# -- special cases --

ALONE = {"alpha": 0.0, "beta": 0.0, "interpolation": 0.0, "aggregated_fraction": 1.0}
TRAINING = {"dim": 4, "init_std": 0.3, "batch": 16, "lr": 0.05, "epochs": 2, "optimiser": "adam"}


def test_equal_shares_alone_are_fedmf():
    data = tiny_world(empty=True)
    mean = run(FedMF(**TRAINING), data, 3)
    composite = run(FedCA(**TRAINING, **ALONE, init="normal", shares="equal"), data, 3)
    for name in ("user.user", "scores"):
        assert_close({name: composite[name]}, {name: mean[name]}, 1e-9, "against FedMF")


@pytest.mark.parametrize("backbone", ["mf", "ncf"])
@pytest.mark.parametrize("participation", [1.0, 0.5])
def test_a_client_that_keeps_its_own_is_local(backbone, participation):
    common = {**TRAINING, "backbone": backbone}
    data = tiny_world(empty=True, participation=participation)
    method = FedCA(**common, init="normal", interpolation=1.0, weight_decay_dense=0.0)
    composite, alone = run(method, data, 3), run(Local(**common), data, 3)
    assert_close({name: composite[name] for name in alone}, alone, 0, "against Local")


def test_one_client_is_local():
    data, method = tiny_world(per_user=(15,)), FedCA(**TRAINING, init="normal")
    composite, alone = run(method, data, 3), run(Local(**TRAINING), data, 3)
    assert_close({name: composite[name] for name in alone}, alone, 1e-12, "one client")


@pytest.mark.parametrize("backbone", ["mf", "ncf"])
def test_shares_alone_are_fedavg(backbone):
    common = {**TRAINING, "backbone": backbone, "weight_decay_dense": 0.01}
    data = tiny_world(empty=True)
    average, composite = run(FedAvg(**common), data, 3), run(FedCA(**common, **ALONE, init="normal"), data, 3)
    for name in ("user.user", "scores"):
        assert_close({name: composite[name]}, {name: average[name]}, 1e-9, "against FedAvg")
    for table in composite["client.item"]:
        assert_close({"item": table}, {"item": average["server.item"]}, 1e-9, "every client has the mean")


# -- the steps --


def test_interpolation_example():
    method = FedCA(dim=2, interpolation=0.8)
    state = State({"item": torch.tensor([[[1.0, 2.0]]])})
    down = Down(own={"item": torch.tensor([[[3.0, -2.0]]])})
    chunk = tiny_world(per_user=(3,)).chunk(np.array([0]))
    mixed = method.receive(state, down, chunk, 0).per_client
    assert torch.allclose(mixed["item"], torch.tensor([[[1.4, 1.2]]]))


def test_all_train_and_a_part_is_aggregated():
    data = tiny_world()
    method = FedCA(**MF, aggregated_fraction=0.6)
    plans = [method.plan(data.world, {}, round) for round in range(6)]
    for plan in plans:
        assert len(plan.train) == 12
        assert len(plan.uploads()) == 7
        assert np.array_equal(plan.uploads(), np.unique(plan.uploads()))
    assert len({tuple(plan.uploads()) for plan in plans}) > 1, "drawn afresh in every round"
    assert len(replace(method, aggregated_fraction=0.01).plan(data.world, {}, 0).uploads()) == 1
    half = method.plan(replace(data.world, participation=0.5), {}, 0)
    assert len(half.uploads()) == 3
    assert set(half.uploads()) <= set(half.train)


def test_everybody_is_drawn_equally_often():
    world = tiny_world().world
    method = FedCA(aggregated_fraction=0.5)
    times = np.bincount(np.concatenate([method.plan(world, {}, round).uploads() for round in range(400)]))
    assert times.min() > 150
    assert times.max() < 250


def test_who_is_not_aggregated_keeps_its_own_table():
    data = tiny_world()
    method = FedCA(**MF, aggregated_fraction=0.5, interpolation=0.5)
    composite = Simulator(method, data)
    composite.round(0)
    alone = Simulator(replace(method, interpolation=1.0), data)
    alone.round(0)
    same = (
        (composite.cohorts[0].state.per_client["item"] == alone.cohorts[0].state.per_client["item"]).flatten(1).all(1)
    )
    outside = np.setdiff1d(np.arange(12), method.plan(data.world, {}, 0).uploads())
    assert torch.equal(same.nonzero().flatten(), torch.from_numpy(outside))


def test_bytes_example():
    """Table 7 on ML-100K in 64 bits: 210.25 KB down, 210.75 KB up, and here one number more, the sample count."""
    data = tiny_world(items=1682, per_user=(5, 3))
    simulator = Simulator(FedCA(aggregated_fraction=1.0, epochs=1), data)
    log = simulator.round(0)
    assert log.bytes_down == 2 * 215_296 == 2 * 210.25 * 1024
    assert log.bytes_up == 2 * (210.75 * 1024 + 8)


def test_the_uniform_start_has_its_range():
    world = tiny_world(items=500).world
    method = FedCA(dim=16)
    for start in (method.trainer.init_items(world), method.trainer.init_users(world, np.arange(200))):
        assert float(start.abs().max()) < 0.25
        assert float(start.abs().max()) > 0.24
        assert float(start.mean()) == pytest.approx(0, abs=0.01)
    assert len(method.trainer.init_users(world, np.arange(200)).unique(dim=0)) == 200


def test_float32_follows_float64():
    method = FedCA(**MF, **MANY)
    rough = run(method, tiny_world(dtype=torch.float32), 2)
    assert rough["client.item"].dtype == rough["server.mixed.item"].dtype == torch.float32
    assert_close({"scores": rough["scores"]}, {"scores": run(method, tiny_world(), 2)["scores"]}, 1e-3, "float32")


@pytest.mark.parametrize(
    "wrong",
    [
        {"alpha": -1.0},
        {"beta": -0.1},
        {"interpolation": 1.5},
        {"aggregated_fraction": 0.0},
        {"components": 0},
        {"early_exit": -1.0},
    ],
)
def test_settings_out_of_range_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(FedrecError, match=next(iter(wrong))):
        FedCA(**wrong)  # type: ignore[arg-type]
