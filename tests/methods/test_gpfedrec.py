"""GPFedRec: the suite, whole tables under autograd as the naive loop, the graph by hand, and what it becomes."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from fedrec.errors import FedrecError
from fedrec.experiment.params import build_method
from fedrec.federation.clients import ClientData
from fedrec.federation.simulator import Simulator
from fedrec.methods.mixture.aggregation import cosines
from fedrec.methods.mixture.gpfedrec import GPFedRec
from fedrec.methods.reference.local import Local
from fedrec.testing import MethodTests, assert_close, run, tiny_world
from methods import naive
from methods.naive_base import bce, descend, draws, mean, taking_part

SMALL = {"dim": 4, "init_std": 0.5, "batch": 16}
NCF = {**SMALL, "dim": 8, "lr": 0.3, "lr_user": 0.5, "lr_item": 2.0, "regularisation": 5.0}
MF = {**SMALL, "backbone": "mf", "lr": 1.0, "lr_user": 0.7, "lr_item": 2.0, "regularisation": 20.0}
ALIVE = 4  # a seed under which the last hidden layer, two units wide here, is not dead


def train(method: GPFedRec, client: naive.Client, guide: Tensor, data: ClientData, number: int, round: int) -> None:
    drawn, steps = draws(method, data, number, round), naive.optimiser(method, client)
    for epoch in range(method.epochs):
        for batch in drawn.epoch(epoch):
            loss = bce(client(batch.user, batch.item), batch.label)
            descend(loss + method.regularisation * F.mse_loss(client.item, guide), client, steps)


def neighbours(method: GPFedRec, tables: list[Tensor]) -> list[list[int]]:
    """For every client, by two loops over clients."""
    alike = [[float(F.cosine_similarity(a.flatten(), b.flatten(), dim=0)) for b in tables] for a in tables]
    if method.graph == "released":
        alike = [[0.0 if u == v else 1 - c for v, c in enumerate(row)] for u, row in enumerate(alike)]
    average = sum(map(sum, alike)) / len(tables) ** 2
    found = []
    for u, row in enumerate(alike):
        if method.neighbours:
            near = sorted(range(len(row)), key=lambda v: -row[v])[: method.neighbours]
        else:
            near = [v for v, value in enumerate(row) if value > method.threshold * average]
        found.append(sorted({*near, u} if method.graph == "paper" or not near else near))
    return found


def reference(method: GPFedRec, data: ClientData, rounds: int) -> dict[str, Tensor]:
    world, method = data.world, method.for_world(data.world)
    federation = naive.Federation(method, data)
    common = federation.server["item"]
    guides = [common] * world.clients
    for round in range(rounds):
        chosen = taking_part(data, round)
        for number in chosen:
            federation.clients[number].item.data = common.clone()
            train(method, federation.clients[number], guides[number], data, number, round)
        tables = [federation.clients[number].item.detach() for number in chosen]
        near = neighbours(method, tables)
        for _ in range(method.layers):
            tables = [mean([tables[v] for v in near[u]]) for u in range(len(tables))]
        for number, table in zip(chosen, tables, strict=True):
            guides[number] = table
        common = mean(tables)
    server = {"server.item": common, "server.guide": torch.stack(guides)}
    return {"user.user": federation.users(), "scores": federation.scores(received=False), **federation.own(), **server}


class GPFedRecTests(MethodTests):
    def data(self, layout: str = "", **options: Any) -> ClientData:
        return super().data(layout, **{"seed": ALIVE} | options)

    def reference(self, data: ClientData, rounds: int) -> dict[str, Tensor]:
        return reference(self.method, data, rounds)


class TestGPFedRec(GPFedRecTests):
    method = GPFedRec(**NCF)


class TestGPFedRecReleased(GPFedRecTests):
    method = GPFedRec(**{**GPFedRec.info.presets["released"], **NCF}, layers=2, epochs=2)


class TestGPFedRecMf(GPFedRecTests):
    method = GPFedRec(**MF, neighbours=3)


FLAT = torch.tensor([[1, 0], [0.8, 0.6], [0, 1]]).double()[:, None]


@pytest.mark.parametrize(
    ("graph", "rows"),
    [
        ("released", [[0, 0, 1], [0, 0, 1], [1, 1, 0]]),
        ("paper", [[1, 1, 0], [1, 1, 0], [0, 0, 1]]),
    ],
)
def test_graph_by_hand(graph, rows):
    cosine = cosines(FLAT)
    assert float(cosine.mean()) == pytest.approx(0.644444, abs=1e-6)
    assert GPFedRec(graph=graph).adjacency(cosine).tolist() == rows


def test_nearest_neighbours_and_nobody():
    cosine = cosines(FLAT)
    assert GPFedRec(neighbours=2).adjacency(cosine).tolist()[2] == [0, 1, 1]
    assert GPFedRec(neighbours=1, graph="released").adjacency(cosine).tolist() == [[0, 0, 1], [0, 0, 1], [1, 0, 0]]
    assert torch.equal(GPFedRec(threshold=9, graph="released").adjacency(cosine), torch.eye(3).bool())


def test_released_clients_copy_one_user_vector():
    """The paper's start from vectors of their own."""
    for preset, distinct in (("released", 1), ("paper", 12)):
        state = Simulator(build_method("gpfedrec", preset=preset), tiny_world()).cohorts[0].state
        assert len(state.per_user["user"].unique(dim=0)) == distinct


def test_released_rates():
    rates = GPFedRec().for_world(tiny_world(1682).world).trainer.rates
    assert rates["dense"] == 0.1
    assert rates["user"] == pytest.approx(7.9)
    assert rates["item"] == pytest.approx(0.1 * 1682 * 80 - 0.1)
    assert GPFedRec().for_world(tiny_world(participation=0.5).world).trainer.rates["user"] == pytest.approx(15.9)


class LocalDeeper(Local):
    model = GPFedRec.model


@pytest.mark.parametrize("backbone", ["mf", "ncf"])
@pytest.mark.parametrize("silo", [False, True])
def test_one_client_is_local(backbone, silo):
    data = tiny_world(silos=(12,)) if silo else tiny_world(per_user=(15,))
    own = {**SMALL, "backbone": backbone, "lr": 0.3, "lr_item": 0.9}
    alone = run(LocalDeeper(**own), data, 3)
    federated = run(GPFedRec(**own, lr_user=0.3, regularisation=0.0), data, 3)
    assert_close({name: federated[name] for name in alone}, alone, 1e-9, "one client against local")


@pytest.mark.parametrize("compiled", [True, False])
def test_rows_without_samples_approach_the_guide(compiled):
    data = tiny_world(500, seed=ALIVE, compiled=compiled)
    simulator = Simulator(GPFedRec(**NCF), data)
    simulator.round(0)
    common, guide = simulator.server["item"].clone(), simulator.server["guide"].clone()
    simulator.round(1)
    own = simulator.cohorts[0].state.per_client["item"]
    left = (1 - 2 * 2.0 * 5.0 / (500 * 8)) ** -(-data.positives * 5 // 16)
    expected = guide + torch.from_numpy(left)[:, None, None] * (common - guide)
    away = (guide - common).abs().amax(-1) > 1e-9
    near = torch.isclose(own, expected, rtol=0, atol=1e-12).all(-1)
    assert bool((near & away).any(1).all()), "each client has rows that moved only towards its guide"
    roughly = torch.isclose(own, expected, rtol=0, atol=1e-7).all(-1)
    assert torch.equal(roughly & away, near & away), "no step is taken in single precision"


def test_bytes_are_two_tables_down_and_one_up():
    simulator = Simulator(GPFedRec(**NCF), tiny_world(dtype=torch.float32))
    for round in range(2):
        simulator.round(round)
    assert (simulator.wire.ledger.up == 2 * 4 * 40 * 8).all()
    assert (simulator.wire.ledger.down == 2 * 2 * 4 * 40 * 8).all()


@pytest.mark.parametrize("wrong", [{"optimiser": "adam"}, {"regularisation": -1.0}, {"layers": 0}])
def test_settings_out_of_range_are_refused(wrong):
    with pytest.raises(FedrecError, match="gpfedrec"):
        GPFedRec(**wrong)
