"""PerFedRec: the suite, the naive loop, k-means on known clusters, and what one cluster or one client makes of it."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from fedrec.federation.clients import ClientData
from fedrec.federation.contract import Plan, Ups
from fedrec.federation.simulator import Simulator
from fedrec.methods import FedMF, Local, PerFedRec
from fedrec.methods.average.profiles import cluster, profiles
from fedrec.random import Purpose, fold, stream
from fedrec.testing import MethodTests, assert_close, run, tiny_world
from methods import naive

MF = {**naive.SGD, "dim": 4, "init_std": 0.3, "batch": 16, "lr": 1.0}
NCF = {**MF, "backbone": "ncf", "lr": 0.5, "lr_dense": 0.2}


def profile(data: ClientData, number: int, table: Tensor) -> Tensor:
    users = range(data.client_ptr[number], data.client_ptr[number + 1])
    mine = [table[i] for k in users for i in data.items[data.user_ptr[k] : data.user_ptr[k + 1]]]
    return torch.stack(mine).mean(0) if mine else torch.zeros_like(table[0])


def mean(models: list[dict[str, Tensor]]) -> dict[str, Tensor]:
    return {name: torch.stack([model[name] for model in models]).mean(0) for name in models[0]}


def clustered(method: PerFedRec, data: ClientData, rounds: int) -> dict[str, Tensor]:
    federation = naive.Federation(method, data)
    clients, world = federation.clients, data.world
    of_cluster = [dict(federation.server) for _ in clients]
    for round in range(rounds):
        plan = method.plan(world, {}, round)
        for number in plan.train:
            clients[number] = federation.holding(clients[number].user.detach(), of_cluster[number])
            naive.train(method, clients[number], data, int(number), round)
        models = {k: clients[k].lock() for k in plan.uploads()}
        points = [profile(data, k, models[k]["item"]) for k in models]
        if method.cluster_on == "table":
            points = [model["item"].flatten() for model in models.values()]
        label = cluster(torch.stack(points), method.clusters, fold(stream(world.seed, Purpose.CLUSTER), round)).tolist()
        for k, mine in zip(models, label, strict=True):
            of_cluster[k] = mean([models[other] for other, its in zip(models, label, strict=True) if its == mine])
        federation.server = mean(list(models.values()))
    found = {f"server.{name}": value for name, value in federation.server.items()}
    three = [federation.scores(received=False), federation.scores(received=True)]
    found |= {"user.user": federation.users(), **federation.own()}
    for k, client in enumerate(clients):
        clients[k] = federation.holding(client.user.detach(), of_cluster[k])
    three.append(federation.scores(received=False))
    theirs = {name.replace("client.", "client.cluster."): value for name, value in federation.own().items()}
    return found | theirs | {"scores": sum(three) / 3}


class PerFedRecTests(MethodTests):
    def reference(self, data: ClientData, rounds: int) -> dict[str, Tensor]:
        return clustered(self.method, data, rounds)


class TestPerFedRec(PerFedRecTests):
    method = PerFedRec(**MF, clusters=3)


class TestPerFedRecPart(PerFedRecTests):
    method = PerFedRec(**MF, clusters=2, aggregated_fraction=0.6, cluster_on="table")


class TestPerFedRecNcf(PerFedRecTests):
    method = PerFedRec(**NCF, clusters=3)


def test_k_means_finds_what_is_there():
    generator = torch.Generator().manual_seed(0)
    centres = torch.tensor([[0.0, 0], [10, 0], [0, 10], [10, 10]])
    points = centres.repeat_interleave(25, 0) + 0.1 * torch.randn(100, 2, generator=generator)
    for key in range(20):
        label = cluster(points, 4, key).reshape(4, 25)
        assert (label == label[:, :1]).all()
        assert label[:, 0].unique().numel() == 4
        order = torch.randperm(100, generator=generator)
        assert torch.equal(cluster(points[order], 4, key), label.flatten()[order]), "numbering must not matter"


def test_k_means_with_too_few_points():
    assert cluster(torch.zeros(5, 3), 2, 0).tolist() == [0] * 5
    assert sorted(cluster(torch.tensor([[0.0], [1.0], [5.0]]), 10, 0).tolist()) == [0, 1, 2]
    assert cluster(torch.tensor([[2.0]]), 3, 1).tolist() == [0]


def test_profile_is_the_mean_row_of_the_items():
    data = tiny_world(silos=(5, 4, 3), empty=True)
    tables = torch.randn(3, 40, 4, generator=torch.Generator().manual_seed(1)).double()
    expected = torch.stack([profile(data, k, tables[k]) for k in range(3)])
    assert torch.allclose(profiles(tables, data.chunk(np.arange(3))), expected)
    nobody = tiny_world(empty=True)
    assert profiles(torch.ones(12, 40, 4).double(), nobody.chunk(np.arange(12)))[-1].tolist() == [0] * 4


@pytest.mark.parametrize("backbone", [MF, NCF])
@pytest.mark.parametrize("silo", [False, True])
def test_one_client_is_local(backbone, silo):
    data = tiny_world(silos=(12,)) if silo else tiny_world(per_user=(15,))
    alone, federated = run(Local(**backbone), data, 3), run(PerFedRec(**backbone), data, 3)
    assert_close({name: federated[name] for name in alone}, alone, 1e-9, "one client against local")


def test_one_cluster_trains_as_fedmf():
    one, plain = run(PerFedRec(**MF, clusters=1), tiny_world(), 3), run(FedMF(**MF), tiny_world(), 3)
    assert_close({"item": one["server.item"]}, {"item": plain["server.item"]}, 1e-9, "one cluster")
    assert torch.allclose(one["client.cluster.item"], plain["server.item"].expand(12, -1, -1))
    many = run(PerFedRec(**MF, clusters=4), tiny_world(), 3)["client.cluster.item"]
    assert 1 < len({table.numpy().tobytes() for table in many}) <= 4


@pytest.mark.parametrize("method", [PerFedRec(**MF), PerFedRec(**NCF)])
def test_bytes_are_two_models_down_one_and_a_profile_up(method):
    simulator = Simulator(method, tiny_world(dtype=torch.float32))
    for round in range(2):
        simulator.round(round)
    floats = 40 * 4 + sum(v.numel() for v in method.trainer.init_dense(simulator.world).values())
    assert (simulator.wire.ledger.down == 2 * 4 * 2 * floats).all()
    assert (simulator.wire.ledger.up == 2 * 4 * (floats + 4)).all()


def test_the_others_keep_their_model_and_send_nothing():
    simulator = Simulator(PerFedRec(**MF, aggregated_fraction=0.5), tiny_world())
    start = simulator.cohorts[0].state.per_client["cluster.item"].clone()
    simulator.round(0)
    state = simulator.cohorts[0].state.per_client
    answered = (state["cluster.item"] != start).flatten(1).any(1).numpy()
    assert answered.sum() == 6
    assert ((simulator.wire.ledger.up > 0) == answered).all()
    assert (state["item"] != start).flatten(1).any(1).all(), "everybody trained"


def test_order_of_clients_does_not_matter():
    data = tiny_world()
    order = np.random.default_rng(3).permutation(12)
    user = np.repeat(data.users, np.diff(data.user_ptr))
    moved = ClientData.build(data.world, user, data.history, users=data.users[order], client_ptr=data.client_ptr)
    method = PerFedRec(**MF | {"batch": 256}, clusters=3)
    here, there = run(method, data, 3), run(method, moved, 3)
    same = ("server.item", "server.cluster.item", "scores")
    assert_close({n: there[n] for n in same}, {n: here[n] for n in same}, 1e-9, "clients in another order")


def test_a_silent_round_answers_nobody():
    method, world = PerFedRec(**MF), tiny_world().world
    silent = method.aggregate(method.init_server(world), Ups({}, {}, np.zeros(0, np.int64)), 0)
    nobody = np.zeros(0, np.int64)
    answer = method.answer(silent, Plan(np.arange(3)), nobody, 0)
    assert answer is not None
    assert answer.clients is not None
    assert not len(answer.clients)
