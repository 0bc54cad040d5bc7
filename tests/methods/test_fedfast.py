"""FedFast: the suite, the naive loop, a row by hand, who is drawn, and what subordinates learn."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

from fedrec.federation.clients import ClientData
from fedrec.federation.contract import Ups, participants
from fedrec.federation.simulator import Simulator
from fedrec.methods import FedFast, Local
from fedrec.methods.average.fedfast import merge_rows
from fedrec.methods.average.profiles import cluster
from fedrec.random import Purpose, fold, stream
from fedrec.testing import MethodTests, assert_close, run, tiny_world
from methods import naive

MF = {**naive.SGD, "dim": 4, "init_std": 0.3, "batch": 16, "lr": 1.0}
NCF = {**MF, "backbone": "ncf", "lr": 0.5, "lr_dense": 0.2}


def profile(data: ClientData, number: int, table: Tensor) -> Tensor:
    users = range(data.client_ptr[number], data.client_ptr[number + 1])
    mine = [table[i] for k in users for i in data.items[data.user_ptr[k] : data.user_ptr[k + 1]]]
    return torch.stack(mine).mean(0) if mine else torch.zeros_like(table[0])


def merged(table: Tensor, tables: list[Tensor]) -> Tensor:
    """Row after row."""
    new = table.clone()
    for i in range(len(table)):
        moved = [(float((t[i] - table[i]).abs().sum()), t[i]) for t in tables]
        if sum(far for far, _ in moved):
            new[i] = sum(far * row for far, row in moved) / sum(far for far, _ in moved)
    return new


def delegated(method: FedFast, data: ClientData, rounds: int) -> dict[str, Tensor]:
    federation = naive.Federation(method, data)
    clients, world = federation.clients, data.world
    known: dict[int, Tensor] = {}
    label = torch.full((world.clients,), method.clusters)
    for round in range(rounds):
        chosen = method.plan(world, {"label": label}, round).train
        change = {}
        for number in chosen:
            before = clients[number].user.detach().clone()
            clients[number] = federation.model(before)
            naive.train(method, clients[number], data, int(number), round)
            change[number] = (clients[number].user.detach() - before).mean(0)
            known[number] = profile(data, number, clients[number].item.detach())
        sizes = torch.tensor([float(data.positives[k]) for k in chosen]).double()
        tables = [clients[k].item.detach() for k in chosen]
        dense = [clients[k].dense() for k in chosen]
        for name in federation.server:
            if name == "item":
                federation.server[name] = merged(federation.server[name], tables)
            else:
                shares = sizes / sizes.sum()
                federation.server[name] = sum(s * up[name] for s, up in zip(shares, dense, strict=True))
        for k in range(world.clients if method.user_propagation else 0):
            mine = [change[d] for d in chosen if label[d] == label[k]]
            if k not in chosen and label[k] < method.clusters and mine:
                factor = method.propagation * method.propagation_decay**round
                clients[k].user.data += factor * torch.stack(mine).mean(0)
        numbers = sorted(known)
        found = cluster(
            torch.stack([known[k] for k in numbers]), method.clusters, fold(stream(world.seed, Purpose.CLUSTER), round)
        )
        label[numbers] = found
    result = {f"server.{name}": value for name, value in federation.server.items()}
    result |= {"user.user": federation.users(), "server.label": label}
    if method.score_with == "local":
        result |= federation.own()
    return result | {"scores": federation.scores(received=method.score_with == "received")}


class FedFastTests(MethodTests):
    def reference(self, data: ClientData, rounds: int) -> dict[str, Tensor]:
        return delegated(self.method, data, rounds)


class TestFedFast(FedFastTests):
    method = FedFast(**MF, clusters=3)


class TestFedFastUsers(FedFastTests):
    method = FedFast(**MF, clusters=3, user_propagation=True, propagation=0.5, score_with="local")


class TestFedFastNcf(FedFastTests):
    method = FedFast(**NCF, clusters=2)


def test_a_row_by_hand():
    table = torch.zeros(2, 2).double()
    tables = torch.tensor([[[0.2, 0.2], [0, 0]], [[-0.1, 0], [0, 0]]]).double()
    assert torch.allclose(merge_rows(table, tables), torch.tensor([[0.14, 0.16], [0, 0]]).double())


def test_without_profiles_clients_are_drawn_uniformly():
    world = tiny_world(participation=0.5).world
    method = FedFast(**MF)
    assert np.array_equal(method.plan(world, method.init_server(world), 0).train, participants(world, 0, 0.5))


def test_clusters_send_the_same_number_as_far_as_they_have_them():
    world = replace(tiny_world().world, participation=0.5)
    label = torch.tensor([0] * 7 + [1] + [2] * 4)
    drawn = [FedFast(clusters=3).plan(world, {"label": label}, round).train for round in range(50)]
    assert all(Counter(label[train].tolist()) == {0: 2, 1: 1, 2: 2} for train in drawn)
    assert set(np.concatenate(drawn).tolist()) == set(range(12))
    everyone = FedFast(clusters=3).plan(replace(world, participation=1.0), {"label": label}, 0).train
    assert everyone.tolist() == list(range(12))


def test_subordinates_follow_and_others_do_not():
    data = tiny_world(participation=0.5)
    method = FedFast(**MF, clusters=2, user_propagation=True)
    simulator = Simulator(method, data)
    simulator.round(0)
    label, before = simulator.server["label"].tolist(), simulator.cohorts[0].state.per_user["user"].clone()
    plan = method.plan(data.world, simulator.server, 1)
    simulator.round(1)
    after = simulator.cohorts[0].state.per_user["user"]
    moved = set((after != before).any(1).nonzero().flatten().tolist())
    led = {label[k] for k in plan.train} - {2}
    subordinates = {k for k in range(12) if label[k] in led and k not in plan.train}
    assert subordinates
    assert moved == set(plan.train.tolist()) | subordinates


@pytest.mark.parametrize("backbone", [MF, NCF])
@pytest.mark.parametrize("silo", [False, True])
def test_one_client_is_local(backbone, silo):
    data = tiny_world(silos=(12,)) if silo else tiny_world(per_user=(15,))
    alone, federated = run(Local(**backbone), data, 3), run(FedFast(**backbone, score_with="local"), data, 3)
    assert_close({name: federated[name] for name in alone}, alone, 1e-9, "one client against local")


def test_bytes_are_a_table_each_way_and_a_profile_up():
    simulator = Simulator(FedFast(**MF), tiny_world(dtype=torch.float32))
    for round in range(2):
        simulator.round(round)
    assert (simulator.wire.ledger.down == 2 * 4 * 40 * 4).all()
    assert (simulator.wire.ledger.up == 2 * 4 * (40 * 4 + 4)).all()
    network = Simulator(FedFast(**NCF), tiny_world(dtype=torch.float32))
    network.round(0)
    weights = FedFast(**NCF).trainer.init_dense(network.world)
    floats = 40 * 4 + sum(v.numel() for v in weights.values())
    assert (network.wire.ledger.down == 4 * floats).all()
    assert (network.wire.ledger.up == 4 * (floats + 4 + len(weights))).all(), "a size goes with every mean"


def test_order_of_clients_does_not_matter():
    data = tiny_world()
    order = np.random.default_rng(3).permutation(12)
    user = np.repeat(data.users, np.diff(data.user_ptr))
    moved = ClientData.build(data.world, user, data.history, users=data.users[order], client_ptr=data.client_ptr)
    method = FedFast(**MF | {"batch": 256}, clusters=3)
    here, there = run(method, data, 3), run(method, moved, 3)
    same = ("server.item", "scores")
    assert_close({n: there[n] for n in same}, {n: here[n] for n in same}, 1e-9, "clients in another order")


def test_a_silent_round_changes_nothing():
    method, world = FedFast(**MF), tiny_world().world
    server = method.init_server(world)
    assert_close(method.aggregate(server, Ups({}, {}, np.zeros(0, np.int64)), 0), server, 0, "nobody sent anything")
