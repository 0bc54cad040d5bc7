"""PFedRec: the suite, two optimisers per client as the naive loop, the published step by hand, and what it becomes."""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property

import numpy as np
import pytest
import torch
from torch import Tensor

from fedrec.errors import FedrecError
from fedrec.federation.clients import Chunk, ClientData, Forbidden
from fedrec.federation.contract import Down, State
from fedrec.federation.simulator import Simulator
from fedrec.methods import FedAvg, PFedRec
from fedrec.methods.reference.neumf import CentralNeuMF
from fedrec.testing import MethodTests, assert_close, run, tiny_world
from fedrec.training.local_training import LocalTrainer
from methods import naive
from methods.naive_base import bce, descend, draws, mean, taking_part

SMALL = {"dim": 4, "init_std": 0.3, "batch": 16}
LINEAR = {**SMALL, "lr": 0.3, "item_rate_scale": 0.1}


def steps(method: PFedRec, parameters: list[Tensor], rate: float) -> torch.optim.Optimizer:
    kind = torch.optim.Adam if method.optimiser == "adam" else torch.optim.SGD
    return kind(parameters, lr=rate)


def train(method: PFedRec, client: naive.Client, data: ClientData, number: int, round: int) -> None:
    """For every batch: forward, step on the head; forward again, step on the table."""
    drawn, rates = draws(method, data, number, round), method.trainer.rates
    head = steps(method, [client.user, *client.layers.parameters()], rates["user"])
    table = steps(method, [client.item], rates["item"])
    for epoch in range(method.epochs):
        for batch in drawn.epoch(epoch):
            for one in (head, table):
                logits = client(batch.user, batch.item)
                descend(bce(logits, batch.label, saturate=method.trainer.saturation), client, one)


def reference(method: PFedRec, data: ClientData, rounds: int) -> dict[str, Tensor]:
    method = method.for_world(data.world)
    federation = naive.Federation(method, data)
    clients, table = federation.clients, federation.server["item"]
    for round in range(rounds):
        chosen = taking_part(data, round)
        for number in chosen:
            clients[number].item.data = table.clone()
            train(method, clients[number], data, number, round)
        table = mean([clients[number].item.detach() for number in chosen])
    own = federation.own()
    if method.score_with == "received":
        del own["client.item"]
        for client in clients:
            client.item.data = table
    user = {"user.user": federation.users()} if method.model.has_user else {}
    return {"server.item": table, "scores": federation.scores(received=False), **own, **user}


class PFedRecTests(MethodTests):
    def reference(self, data: ClientData, rounds: int) -> dict[str, Tensor]:
        return reference(self.method, data, rounds)


class TestPFedRec(PFedRecTests):
    method = PFedRec(**LINEAR)


class TestPFedRecReceived(PFedRecTests):
    method = PFedRec(**LINEAR, score_with="received")


class TestPFedRecReplayed(PFedRecTests):
    method = PFedRec(**LINEAR, own_tables="replayed")

    def reference(self, data: ClientData, rounds: int) -> dict[str, Tensor]:
        found = reference(self.method, data, rounds)
        del found["client.item"]
        return found


class TestPFedRecReplayedMf(TestPFedRecReplayed):
    method = PFedRec(**SMALL, backbone="mf", lr=0.5, lr_item=2.0, own_tables="replayed", aggregated_fraction=1.0)


class TestPFedRecReplayedNcf(TestPFedRecReplayed):
    method = PFedRec(**SMALL, backbone="ncf", optimiser="sgd", lr=0.5, lr_item=2.0, own_tables="replayed")


class TestPFedRecMf(PFedRecTests):
    method = PFedRec(**SMALL, backbone="mf", lr=0.5, lr_item=2.0)


class TestPFedRecNoised(MethodTests):
    method = PFedRec(**LINEAR, dp="gradient", clip=0.5, noise=0.01)
    sampled_rows_only = False  # noise falls on all rows


class TestPFedRecNcf(PFedRecTests):
    method = PFedRec(**SMALL, backbone="ncf", optimiser="adam", lr=0.05, lr_item=0.02, epochs=2)


def step_by_hand(method: PFedRec) -> tuple[State, Chunk]:
    """One client, one batch: item 0 liked, item 1 (of the pool {1, 2} once item 2 is forbidden) not."""
    forbidden = Forbidden(np.array([0]), np.array([2]))
    data = ClientData.build(
        tiny_world(3, per_user=(1,)).world,
        np.array([0]),
        np.array([0]),
        users=np.array([0]),
        client_ptr=np.array([0, 1]),
        negatives=1,
        forbidden=forbidden,
    )
    chunk = data.chunk(np.array([0]))
    table = torch.tensor([[1.0, 0], [0, 1], [1, 1]], dtype=torch.float64)
    head = {"weight0": torch.tensor([[[0.5, -0.5]]]).double(), "bias0": torch.zeros(1, 1).double()}
    state = State({**head, "item": table[None].clone()}, {"user": torch.zeros(1, 0).double()})
    return method.local(state, Down(shared={"item": table}), chunk, 0)[0], chunk


def test_one_batch_by_hand():
    state, chunk = step_by_hand(PFedRec(dim=2, lr=0.1, item_rate_scale=2.0))
    expected = torch.tensor([[1.058080, -0.058080], [-0.058080, 1.058080], [1, 1]]).double()
    assert torch.allclose(state.per_client["item"][0], expected, atol=1e-6)
    assert torch.allclose(state.per_client["weight0"], torch.tensor([0.518877, -0.518877]).double(), atol=1e-6)
    assert abs(state.per_client["bias0"].item()) < 1e-12
    total, count = chunk.observed["loss"]
    assert float(total / count) == pytest.approx(0.474077, abs=1e-6)


class Simultaneous(PFedRec):
    @cached_property
    def trainer(self) -> LocalTrainer:
        return LocalTrainer(self)


def test_a_simultaneous_step_is_another_one():
    state, _ = step_by_hand(Simultaneous(dim=2, lr=0.1, item_rate_scale=2.0))
    expected = torch.tensor([[1.056631, -0.056631], [-0.056631, 1.056631], [1, 1]]).double()
    assert torch.allclose(state.per_client["item"][0], expected, atol=1e-6)


def test_noise_on_gradients_reaches_every_row_that_goes_up():
    """Also rows of items that nobody trained, or they would show which these are; without noise they stay."""
    data = tiny_world(200)
    moved = {}
    for dp in ("none", "gradient"):
        simulator = Simulator(PFedRec(**SMALL, lr=0.3, lr_item=2.0, dp=dp, clip=100.0, noise=0.05), data)
        before = simulator.server["item"].clone()
        simulator.round(0)
        moved[dp] = (simulator.server["item"] - before).abs().amax(1) > 0
    assert bool(moved["gradient"].all())
    assert not bool(moved["none"].all())


def test_noise_on_gradients_needs_plain_steps():
    with pytest.raises(FedrecError, match="optimiser=sgd"):
        PFedRec(**SMALL, backbone="mf", optimiser="adam", dp="gradient")


def test_the_sizes_of_fedrkgs_appendix():
    """C.2: PFedRec 32 -> 16 -> 1, FedNCF 64 -> 32 -> 1, NeuMF 64 -> 32 -> 16 -> 8 beside 32 factors; all by SGD."""
    own, common, central = (kind(**kind.info.presets["fedrkg"]) for kind in (PFedRec, FedAvg, CentralNeuMF))
    assert own.model.dense_shapes()["weight0"] == (16, 32)
    assert own.model.dense_shapes()["weight1"] == (1, 16)
    assert common.model.sizes() == [64, 32, 1]
    assert central.model.sizes() == [64, 32, 16, 8]
    assert central.model.factor_width() == 32
    assert {method.optimiser for method in (own, common, central)} == {"sgd"}
    assert {method.rounds for method in (own, common, central)} == {1000}
    assert FedAvg(backbone="ncf").model.sizes() == [64, 32, 16, 1], "without the preset as before"


def test_released_item_rates():
    world = tiny_world(1682).world
    assert PFedRec().for_world(world).trainer.rates["item"] == pytest.approx(13_456)
    assert PFedRec().for_world(replace(world, items=3706)).trainer.rates["item"] == pytest.approx(29_648)
    assert PFedRec(lr_item=0.5).for_world(world).trainer.rates["item"] == 0.5


@pytest.mark.parametrize("backbone", ["linear", "mf", "ncf"])
@pytest.mark.parametrize("silo", [False, True])
def test_one_client_is_local(backbone, silo):
    data = tiny_world(silos=(12,)) if silo else tiny_world(per_user=(15,))
    own = {**SMALL, "backbone": backbone, "lr": 0.3, "lr_item": 0.9}
    alone, federated = run(naive.LocalInTurn(**own), data, 3), run(PFedRec(**own), data, 3)
    assert_close({name: federated[name] for name in alone}, alone, 1e-9, "one client against local")


def test_bytes_are_one_table_each_way():
    data = tiny_world(dtype=torch.float32)
    simulator = Simulator(PFedRec(**LINEAR), data)
    for round in range(2):
        simulator.round(round)
    assert (simulator.wire.ledger.up == 2 * 4 * 40 * 4).all()
    assert (simulator.wire.ledger.down == 2 * 4 * 40 * 4).all()


def test_replayed_tables_take_no_memory():
    """And score as kept ones do, whatever part of the items is asked for."""
    data = tiny_world(participation=0.25)
    kept, again = (Simulator(PFedRec(**LINEAR, own_tables=how), data) for how in ("kept", "replayed"))
    for number in range(3):
        for simulator in (kept, again):
            simulator.round(number)
    assert "item" not in again.cohorts[0].state.per_client
    assert np.array_equal(kept.wire.ledger.down, again.wire.ledger.down)
    some = torch.tensor([7, 3, 39])
    for items in (None, some):
        left, right = (torch.cat([scores for _, scores in s.scores(3, items)]) for s in (kept, again))
        assert torch.allclose(left, right, atol=1e-12)


def test_own_tables_differ_and_the_absent_keep_theirs():
    data = tiny_world(participation=0.25)
    simulator = Simulator(PFedRec(**LINEAR), data)
    start = simulator.cohorts[0].state.per_client["item"].clone()
    simulator.round(0)
    moved = (simulator.cohorts[0].state.per_client["item"] != start).flatten(1).any(1)
    assert int(moved.sum()) == 3
    tables = simulator.cohorts[0].state.per_client["item"][moved]
    assert not torch.equal(tables[0], tables[1])
