"""Local, and centralised matrix factorisation, which is local training of one client that holds everybody."""

from __future__ import annotations

import pytest
import torch

from fedrec.federation.clients import ClientData
from fedrec.federation.simulator import Simulator
from fedrec.methods import CentralMF, Local
from fedrec.testing import MethodTests, assert_close, run, tiny_world
from methods import naive

MF = {"dim": 4, "init_std": 0.3, "batch": 16}
NCF = {"backbone": "ncf", "dim": 4, "init_std": 0.3, "batch": 16}


class LocalTests(MethodTests):
    def reference(self, data: ClientData, rounds: int) -> dict[str, torch.Tensor]:
        return naive.local(self.method, data, rounds)


class TestLocal(LocalTests):
    method = Local(**MF, lr=1.0)


class TestLocalNcf(LocalTests):
    method = Local(**NCF, lr=0.05, lr_item=0.02, lr_dense=0.01, optimiser="adam", loss="bpr", epochs=2)
    still = ("client.bias2",)  # the last bias cancels in a difference


class TestCentralMF(LocalTests):
    method = CentralMF(**MF, lr=0.02)


@pytest.mark.parametrize("optimiser", ["sgd", "adam"])
@pytest.mark.parametrize("loss", ["bce", "bpr"])
@pytest.mark.parametrize("backbone", [MF, NCF])
def test_local_is_the_naive_loop(backbone, loss, optimiser):
    method = Local(**backbone, lr=0.5 if optimiser == "sgd" else 0.05, loss=loss, optimiser=optimiser)
    data = tiny_world(participation=0.5, empty=True)
    assert_close(run(method, data, 3, memory=1 << 15), naive.local(method, data, 3), 1e-9, "naive loop")


@pytest.mark.parametrize("optimiser", ["sgd", "adam"])
@pytest.mark.parametrize("loss", ["bce", "bpr"])
def test_centralised_is_the_naive_loop(loss, optimiser):
    method = CentralMF(**MF, lr=0.5 if optimiser == "sgd" else 0.05, loss=loss, optimiser=optimiser)
    data = tiny_world(silos=(12,))
    assert_close(run(method, data, 3), naive.local(method, data, 3), 1e-9, "naive loop")


def test_nothing_is_exchanged():
    simulator = Simulator(Local(**MF), tiny_world())
    simulator.round(0)
    assert simulator.wire.ledger.up.sum() == simulator.wire.ledger.down.sum() == 0
    assert simulator.server == {}


def test_silos_score_each_with_its_own_model():
    """Users of one silo share a table; another silo's table does not reach them."""
    data = tiny_world(silos=(5, 4, 3))
    simulator = Simulator(Local(**MF, lr=1.0), data)
    simulator.round(0)
    state = simulator.cohorts[0].state
    ((users, scores),) = simulator.scores(1)
    owner = [0] * 5 + [1] * 4 + [2] * 3
    expected = torch.stack([state.per_client["item"][c] @ state.per_user["user"][k] for k, c in enumerate(owner)])
    assert users.tolist() == data.users.tolist()
    assert torch.allclose(scores, expected, atol=1e-12)
    assert not torch.equal(state.per_client["item"][0], state.per_client["item"][1])
