"""Local and FedAvg for silos, and the centralised graph methods."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from fedrec.errors import FedrecError
from fedrec.experiment.params import build_method
from fedrec.federation.accumulator import Accumulator
from fedrec.federation.clients import ClientData
from fedrec.federation.contract import Mean
from fedrec.federation.simulator import Simulator
from fedrec.methods import CentralGFCF, CentralLightGCN, FedAvg, Local
from fedrec.methods.silo.silo import SiloFedAvg, SiloLocal
from fedrec.testing import MethodTests, assert_close, run, tiny_world
from fedrec.training.triple_descent import TripleDescent
from fedrec.training.triples import Triples
from methods.naive_silos import Federation

MF = {"dim": 3, "batch": 7, "weight_decay": 0.01, "lr": 0.05}
MLP = MF | {"backbone": "mlp", "loss": "bce"}
GCN = MF | {"backbone": "lightgcn", "loss": "bpr", "layers": 2}


class SiloTests(MethodTests):
    rounds = 2
    sampled_rows_only = False  # their draws are triples


class LocalTests(SiloTests):
    def reference(self, data: ClientData, rounds: int) -> dict[str, torch.Tensor]:
        naive = Federation(self.method, data, own=True)
        naive.alone(rounds)
        return {"client.item": naive.stacked("item", "all"), "user.user": naive.users("all"), "scores": naive.scores()}


class FedAvgTests(SiloTests):
    def reference(self, data: ClientData, rounds: int) -> dict[str, torch.Tensor]:
        naive = Federation(self.method, data)
        naive.average(rounds)
        mark = {name: f"@{name}" if len(naive.server) > 1 else "" for name in naive.server}
        server = {f"server.{k}{mark[name]}": v for name, model in naive.server.items() for k, v in model.items()}
        return {f"user.user{mark[name]}": naive.users(name) for name in mark} | server | {"scores": naive.scores()}


class TestLocalMF(LocalTests):
    method = SiloLocal(**MF)


class TestLocalLightGCN(LocalTests):
    method = SiloLocal(**GCN, resample=True)


class TestFedAvgMLP(FedAvgTests):
    method = SiloFedAvg(**MLP, epochs=2)


class TestFedAvgNeuMF(SiloTests):
    method = SiloFedAvg(**MLP | {"backbone": "neumf", "dim": 4}, epochs=2)


class TestFedAvgBlocks(FedAvgTests):
    method = SiloFedAvg(batch=7, blocks="mf:3+lightgcn:2+mlp:4:0.05", layers=2)


class TestCentralLightGCN(LocalTests):
    method = CentralLightGCN(dim=3, batch=30, lr=0.05, weight_decay=0.01)


class TestLocalGFCF(SiloTests):
    method = SiloLocal(backbone="gfcf", frequencies=2, batch=7)
    random = False


class TestCentralGFCF(SiloTests):
    method = CentralGFCF(frequencies=3)
    random = False


@pytest.mark.parametrize(
    "method",
    [SiloFedAvg(**MF), SiloFedAvg(**GCN), SiloFedAvg(**MLP, reset_optimiser=True), SiloFedAvg(**MF | {"loss": "bpr"})],
)
def test_fedavg_is_the_naive_loop(method):
    data = tiny_world(silos=(5, 4, 3), empty=True)
    naive = Federation(method, data)
    naive.average(3)
    found = run(method, data, 3)
    expected = {"server.item": naive.server["all"]["item"], "scores": naive.scores()}
    assert_close({name: found[name] for name in expected}, expected, 1e-9, "naive loop")


@pytest.mark.parametrize("kind", [MF, GCN, MLP])
def test_one_silo_is_central_training(kind):
    """FedAvg of one client is training in one place, step by step."""
    data = tiny_world(silos=(12,))
    found = run(SiloFedAvg(**kind), data, 3)
    naive = Federation(SiloFedAvg(**kind), data)
    naive.alone(3)
    assert_close({"scores": found["scores"]}, {"scores": naive.scores()}, 1e-9, "one silo")


def test_weights_are_interactions():
    """Two silos of 3 and 1 interactions."""
    tables = torch.tensor([[[1.0, 0], [0, 2]], [[3, 2], [4, 0]]], dtype=torch.float64)
    accumulator = Accumulator()
    accumulator.add({"item": Mean(tables, torch.tensor([3, 1]))}, np.arange(2), "all")
    server = SiloFedAvg(dim=2).aggregate({"item": tables[0]}, accumulator.update().ups(torch.float64), 0)
    assert server["item"].tolist() == [[1.5, 0.5], [1, 1.5]]


def losses(loss, values, weight_decay=0.0, backbone="mf", rows=((0,), (1,))):
    """Loss and gradients for user 0 with liked item 0 and another item, on given values."""
    user, item, other = values
    users = np.repeat(np.arange(len(rows)), [len(row) for row in rows])
    world = tiny_world(items=len(item), per_user=(1,)).world
    data = ClientData.build(
        world, users, np.concatenate(rows), users=np.arange(len(rows)), client_ptr=np.array([0, len(rows)]), negatives=1
    )
    model = SiloFedAvg(loss=loss, dim=len(user[0]), backbone=backbone, layers=2).trainer.model
    leaves = {"user": torch.tensor(user).double(), "item": torch.tensor(item).double()[None]}
    descent = TripleDescent(model, data.chunk(np.array([0])), leaves, {}, loss, 0.0, weight_decay)
    batch = next(Triples(data.chunk(np.array([0])), 0).epoch(0, 0, 1))
    batch = type(batch)(
        torch.tensor([0]),
        torch.tensor([0]),
        torch.tensor([other]),
        torch.tensor([0]),
        torch.tensor([0]),
        torch.tensor([1]),
        1,
    )
    for leaf in leaves.values():
        leaf.requires_grad_()
    loss = descent.losses(leaves, batch).sum()
    return loss.item(), torch.autograd.grad(loss, [leaves["user"], leaves["item"]])


VALUES = [[[1.0, 2.0], [0.0, 0.0]], [[0.5, 1.0], [1.0, -1.0], [9.0, 9.0]], 1]


def test_losses_of_matrix_factorisation():
    loss, (user, item) = losses("mse_elem", VALUES)
    assert loss == pytest.approx(1.5625)
    assert torch.allclose(user[0], torch.tensor([0.375, 1.5]).double())
    assert torch.allclose(item[0, :2], torch.tensor([[-0.25, 1], [0.5, -2]]).double())
    loss, (user, item) = losses("bpr", VALUES)
    assert loss == pytest.approx(0.029750, abs=1e-6)
    assert torch.allclose(user[0], torch.tensor([0.014656, -0.058624]).double(), atol=1e-6)
    expected = torch.tensor([[-0.029312, -0.058624], [0.029312, 0.058624]]).double()
    assert torch.allclose(item[0, :2], expected, atol=1e-6)
    assert losses("mse_elem", VALUES, weight_decay=1.0)[0] - 1.5625 == pytest.approx(4.125)


def test_loss_of_graph_convolution():
    """Three items, two users, ego values of width one; the liked item is 0, the other one 2."""
    values = [[[0.1], [0.2]], [[0.3], [0.4], [0.5]], 2]
    loss, (user, item) = losses("bpr", values, 1e-3, "lightgcn", rows=((0, 1), (1, 2)))
    assert loss == pytest.approx(0.706530, abs=1e-6)
    assert torch.allclose(user[:, 0], torch.tensor([0.011257, 0.030574]).double(), atol=1e-6)
    assert torch.allclose(item[0, :, 0], torch.tensor([-0.038737, 0.010433, 0.054291]).double(), atol=1e-6)


def test_identical_silos_average_to_themselves():
    """The same rows in every silo, one common draw left out: the mean of equal tables is the table."""
    table = torch.rand(3, 5, 2, dtype=torch.float64)[:1].repeat(3, 1, 1)
    accumulator = Accumulator()
    accumulator.add({"item": Mean(table, torch.tensor([1, 5, 2]))}, np.arange(3), "all")
    assert torch.allclose(accumulator.update().ups(torch.float64)["item"], table[0], atol=1e-15)


def test_local_silos_start_apart_and_federated_ones_together():
    data = tiny_world(silos=(5, 4, 3))
    own = run(SiloLocal(**MF), data, 0)["client.item"]
    assert not torch.allclose(own[0], own[1], atol=0.01)
    assert float(own.std()) == pytest.approx(0.1, rel=0.2)


def test_ranking_by_the_sigmoid_ties_what_saturates():
    """Above 17 all items are equal in single precision, where the scores themselves are not."""
    data = tiny_world(silos=(5, 4, 3), dtype=torch.float32)
    scores, squashed = (run(SiloLocal(**MF, init_std=10, rank_by=by), data, 1)["scores"] for by in ("score", "sigmoid"))
    assert torch.equal(squashed, torch.sigmoid(scores))
    large = scores > 17
    assert large.sum() > 10
    assert (squashed[large] == 1).all()
    assert len(scores[large].unique()) > 10


def test_the_optimiser_remembers():
    data = tiny_world(silos=(5, 4, 3))
    kept, forgetful = (run(SiloFedAvg(**MF, reset_optimiser=reset), data, 2) for reset in (False, True))
    assert not torch.allclose(kept["server.item"], forgetful["server.item"], atol=1e-4)
    assert kept["client.adam.steps"].min() >= 2


def test_names_choose_the_kind():
    """One method to the user: the backbone, a preset or a parameter decides how clients train."""
    assert type(build_method("local")) is Local
    assert type(build_method("fedavg", backbone="ncf")) is FedAvg
    for made in (
        build_method("local", backbone="lightgcn"),
        build_method("IM", preset="silo"),
        build_method("local", params={"loss": "mse_elem", "weight_decay": 0.1}),
    ):
        assert type(made) is SiloLocal
    made = build_method("FedLightGCN")
    assert (type(made), made.loss, made.weight_decay) == (SiloFedAvg, "bpr", 1e-3)
    with pytest.raises(FedrecError, match="backbone"):
        build_method("fedavg", backbone="gfcf")


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"backbone": "gfcf", "rank_by": "sigmoid"}, "trained backbones"),
        ({"blocks": "mf"}, "backbone:dim"),
        ({"blocks": "mf:0"}, "backbone:dim"),
        ({"blocks": "mf:2:x"}, "backbone:dim"),
        ({"blocks": "gfcf:2"}, "gfcf"),
        ({"blocks": "nothing:2"}, "backbone"),
        ({"weight_decay": -1.0}, "weight_decay"),
        ({"backbone": "lightgcn", "loss": "mse_elem"}, "mse_elem"),
        ({"layers": -1}, "layers"),
    ],
)
def test_bad_settings_are_refused(params, message):
    with pytest.raises(FedrecError, match=message):
        SiloLocal(**params)


def test_permuting_items_permutes_the_filter():
    data, order = tiny_world(silos=(5, 4, 3)), np.random.default_rng(2).permutation(40)
    user = np.repeat(data.users, np.diff(data.user_ptr))
    moved = ClientData.build(data.world, user, order[data.history], users=data.users, client_ptr=data.client_ptr)
    here, there = (run(SiloLocal(backbone="gfcf"), d, 1)["scores"] for d in (data, moved))
    assert torch.equal(there[:, torch.from_numpy(order)], here)


def test_progress_reports_the_loss():
    log = Simulator(SiloFedAvg(**MF), tiny_world(silos=(5, 4, 3))).round(0)
    assert log.observed["loss"] == pytest.approx(0.5, abs=0.1)


def test_neumf_of_silos_is_that_of_the_released_code():
    """32 factors beside a tower with one hidden layer of 32, no penalty."""
    method = build_method("fedavg", backbone="neumf", preset="silo")
    shapes = method.trainer.model.dense_shapes()
    assert shapes == {"weight0": (32, 64), "bias0": (32,), "output": (1, 64), "output_bias": (1,)}
    assert (method.weight_decay, method.lr, method.loss) == (0.0, 0.001, "bce")
