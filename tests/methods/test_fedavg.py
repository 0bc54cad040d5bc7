"""FedMF and FedAvg: all checks of the suite, and the naive loop, for each loss, optimiser and backbone."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

import fedrec
from fedrec.federation.accumulator import Accumulator
from fedrec.federation.clients import ClientData
from fedrec.federation.contract import Down, Mean, Rows
from fedrec.federation.simulator import Simulator
from fedrec.methods import FedAvg, FedMF, Local
from fedrec.testing import MethodTests, assert_close, run, tiny_world
from methods import naive

MF = {"dim": 4, "init_std": 0.3, "batch": 16}
NCF = {"backbone": "ncf", "dim": 4, "init_std": 0.3, "batch": 16}


class FedMFTests(MethodTests):
    def reference(self, data: ClientData, rounds: int) -> dict[str, torch.Tensor]:
        return naive.fedavg(self.method, data, rounds, weighted=False)


class FedAvgTests(MethodTests):
    def reference(self, data: ClientData, rounds: int) -> dict[str, torch.Tensor]:
        return naive.fedavg(self.method, data, rounds, weighted=True)


class TestFedMF(FedMFTests):
    method = FedMF(**MF, lr=1.0)


class TestFedMFBprAdam(FedMFTests):
    method = FedMF(**MF, lr=0.05, lr_item=0.02, loss="bpr", optimiser="adam", epochs=2)


class TestFedAvg(FedAvgTests):
    method = FedAvg(**MF, lr=0.5, lr_item=1.5, epochs=2, reduction="sum")


class TestFedAvgNcf(FedAvgTests):
    method = FedAvg(**NCF, lr=0.5, lr_item=1.5, lr_dense=0.2, weight_decay_dense=0.01)


class TestFedAvgNcfBprAdam(FedAvgTests):
    method = FedAvg(**NCF, lr=0.05, lr_dense=0.01, loss="bpr", optimiser="adam", epochs=2, weight_decay_dense=0.01)


class TestFedAvgOwnModel(MethodTests):
    method = FedAvg(**NCF, lr=0.5, score_with="local")

    def reference(self, data: ClientData, rounds: int) -> dict[str, torch.Tensor]:
        return naive.fedavg_own(self.method, data, rounds, weighted=True)


@pytest.mark.parametrize("optimiser", ["sgd", "adam"])
@pytest.mark.parametrize("loss", ["bce", "bpr"])
@pytest.mark.parametrize("compiled", [True, False])
@pytest.mark.parametrize(("method", "weighted"), [(FedMF, False), (FedAvg, True)])
def test_matrix_factorisation_is_the_naive_loop(method, weighted, compiled, loss, optimiser):
    chosen = method(**MF, lr=1.0 if optimiser == "sgd" else 0.05, loss=loss, optimiser=optimiser)
    data = tiny_world(participation=0.5, compiled=compiled, empty=True)
    expected = naive.fedavg(chosen, data, 3, weighted)
    assert_close(run(chosen, data, 3, memory=1 << 15), expected, 1e-9, "naive loop")


@pytest.mark.parametrize("optimiser", ["sgd", "adam"])
@pytest.mark.parametrize("loss", ["bce", "bpr"])
@pytest.mark.parametrize("compiled", [True, False])
def test_ncf_is_the_naive_loop(compiled, loss, optimiser):
    chosen = FedAvg(**NCF, lr=0.5 if optimiser == "sgd" else 0.05, loss=loss, optimiser=optimiser)
    data = tiny_world(participation=0.5, compiled=compiled)
    assert_close(run(chosen, data, 3, memory=1 << 15), naive.fedavg(chosen, data, 3, True), 1e-9, "naive loop")


@pytest.mark.parametrize("compiled", [True, False])
@pytest.mark.parametrize("method", [FedMF(**MF, lr=1.0), FedAvg(**NCF, lr=0.5)])
def test_float32_follows_float64(method, compiled):
    exact = run(method, tiny_world(), 3)
    rough = run(method, tiny_world(dtype=torch.float32, compiled=compiled), 3)
    assert rough["server.item"].dtype == torch.float32
    assert_close(rough, exact, 1e-5, "float32 against float64")


@pytest.mark.parametrize(
    "method", [FedMF(**MF, score_with="local"), FedAvg(**MF, score_with="local"), FedAvg(**NCF, score_with="local")]
)
@pytest.mark.parametrize("silo", [False, True])
def test_one_client_is_local(method, silo):
    """Whatever it averages, a client that is alone trains as if there were no federation."""
    method = replace(method, lr=0.5)
    data = tiny_world(silos=(12,)) if silo else tiny_world(per_user=(15,))
    assert data.world.clients == 1
    own = ("backbone", "dim", "init_std", "batch", "lr")
    alone = run(Local(**{name: getattr(method, name) for name in own}), data, 3)
    federated = run(method, data, 3)
    assert_close({name: federated[name] for name in alone}, alone, 1e-9, "one client against local")


def test_equal_sizes_make_fedavg_the_plain_mean():
    data = tiny_world(per_user=[5] * 12)
    assert_close(run(FedAvg(**MF, lr=1.0), data, 3), run(FedMF(**MF, lr=1.0), data, 3), 1e-12, "equal sizes")
    uneven = tiny_world()
    plain, weighted = run(FedMF(**MF, lr=1.0), uneven, 3), run(FedAvg(**MF, lr=1.0), uneven, 3)
    assert not torch.allclose(plain["server.item"], weighted["server.item"], atol=1e-4)


@pytest.mark.parametrize("method", [FedMF(**MF | {"batch": 256}, lr=1.0), FedAvg(**NCF | {"batch": 256}, lr=0.5)])
def test_order_of_clients_does_not_matter(method):
    """With one batch per client (the order of samples goes by the number of the client) nothing depends on it."""
    data = tiny_world()
    order = np.random.default_rng(3).permutation(12)
    user = np.repeat(data.users, np.diff(data.user_ptr))
    moved = ClientData.build(data.world, user, data.history, users=data.users[order], client_ptr=data.client_ptr)
    here, there = run(method, data, 3), run(method, moved, 3)
    here["user.user"] = here["user.user"][torch.from_numpy(order)]
    assert_close(there, here, 1e-9, "clients in another order")


def test_summed_steps_against_averaged_tables():
    """Two clients, a common row 0, gradients 1 and 3, rate 0.1: the mean of the stepped rows is -0.2."""
    base = torch.zeros(1, 1, dtype=torch.float64)
    stepped = torch.tensor([[-0.1], [-0.3]], dtype=torch.float64)
    rows = Rows(base, torch.tensor([0, 1]), torch.tensor([0, 0]), stepped, 2)
    accumulator = Accumulator()
    accumulator.add({"item": Mean(rows)}, np.array([0, 1]), "all")
    server = FedMF(dim=1).aggregate({"item": base}, accumulator.update().ups(torch.float64), 0)
    assert server["item"].item() == pytest.approx(-0.2)


def test_summed_gradients_are_averaging_at_a_rate_n_times_larger():
    """One step, full batch: the mean of stepped tables moves by the summed gradients over n."""
    data = tiny_world()
    batch = MF | {"batch": 256}
    start = FedMF(**batch).trainer.init_items(data.world)
    slow, fast = (run(FedMF(**batch, lr=rate), data, 1)["server.item"] - start for rate in (0.1, 1.2))
    assert_close({"item": 12 * slow}, {"item": fast}, 1e-9, "twelve clients")


def test_a_client_that_stays_away_keeps_its_vector():
    data = tiny_world(participation=0.25)
    simulator = Simulator(FedMF(**MF, lr=1.0), data)
    before = simulator.cohorts[0].state.per_user["user"].clone()
    simulator.round(0)
    moved = (simulator.cohorts[0].state.per_user["user"] != before).any(1)
    assert int(moved.sum()) == 3


def test_received_tensors_are_what_clients_score_with():
    data = tiny_world(silos=(5, 4, 3))
    method = FedAvg(**NCF)
    server = method.init_server(data.world)
    chunk = data.chunk(np.array([1]))
    state = method.init_clients(data.world, chunk)
    zero = {name: torch.zeros_like(value) for name, value in server.items()} | {"bias2": torch.tensor([0.25]).double()}
    scores = method.score(state, Down(shared=zero), chunk, torch.arange(3))
    assert torch.equal(scores, torch.full((4, 3), 0.25, dtype=torch.float64))


def test_equal_shares_are_the_plain_mean_of_fedmf() -> None:
    results = [
        fedrec.run(name, "synthetic@users=50+items=200", rounds=8, lr=20.0, dim=4, **more)
        for name, more in (("fedmf", {}), ("fedavg", {"shares": "equal"}), ("fedavg", {}))
    ]
    first, same, other = (result.evaluation.per_user["ndcg@10"] for result in results)
    assert np.array_equal(first, same)
    assert not np.array_equal(first, other)
