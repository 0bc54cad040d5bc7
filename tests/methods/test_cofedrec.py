"""CoFedRec: the suite, a naive loop with the contrast by autograd, the published elbow by hand, and what it becomes."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from fedrec.errors import FedrecError
from fedrec.federation.clients import ClientData
from fedrec.federation.simulator import Simulator
from fedrec.methods.cluster.cofedrec import CLIENT, CLUSTER, CoFedRec, elbow
from fedrec.methods.cluster.kmeans import kmeans
from fedrec.random import Purpose, fold, stream
from fedrec.testing import MethodTests, assert_close, run, tiny_world
from methods import naive
from methods.naive_base import bce, descend, draws, mean, taking_part

SMALL = {"dim": 4, "init_std": 0.5, "batch": 16, "lr": 0.3, "item_rate_scale": 0.1}


def contrast(table: Tensor, labels: Tensor, method: CoFedRec) -> Tensor:
    """With the whole matrix of pairs."""
    tau, floor = method.temperature, 1e-6 if method.supcon == "released" else 0.0
    z = F.normalize(table, dim=1)
    other = 1 - torch.eye(len(z), dtype=z.dtype)
    friend = (labels[:, None] == labels) * other
    exponent = z @ z.T / tau - 1 / tau
    log = exponent - ((exponent.exp() * other).sum(1, keepdim=True) + floor).log()
    each = -((friend * log).sum(1) / (friend.sum(1) + floor).clamp(min=floor or 1)).mean()
    return each * (tau / 0.5 if method.supcon == "released" else 1)


def train(
    method: CoFedRec, client: naive.Client, data: ClientData, number: int, round: int, labels: Tensor | None
) -> None:
    drawn = draws(method, data, number, round)
    head = torch.optim.SGD(client.layers.parameters(), lr=method.trainer.rates["dense"])
    table = torch.optim.SGD([client.item], lr=method.trainer.rates["item"])
    for epoch in range(method.epochs):
        for batch in drawn.epoch(epoch):
            for one in (head, table):
                loss = bce(client(batch.user, batch.item), batch.label)
                if labels is not None and one is table:  # the head has no part in the contrast
                    loss = loss + method.contrast_weight * contrast(client.item, labels, method)
                descend(loss, client, one)


def farthest(curve: list[float]) -> int:
    """By the distance of a point from a line in the plane."""
    rise, run = curve[-1] - curve[0], len(curve) - 1
    distance = [abs(rise * j - run * (y - curve[0])) / math.hypot(rise, run or 1) for j, y in enumerate(curve)]
    return max(range(len(curve)), key=lambda j: (round(distance[j], 12), -j))


def reference(method: CoFedRec, data: ClientData, rounds: int) -> dict[str, Tensor]:
    world, method, labels = data.world, method.for_world(data.world), None
    federation = naive.Federation(method, data)
    clients = federation.clients
    for round in range(rounds):
        chosen = taking_part(data, round)
        for number in chosen:
            train(method, clients[number], data, number, round, labels)
        tables = {number: clients[number].item.detach().clone() for number in chosen}
        key = fold(stream(world.seed, Purpose.CLUSTER), round)
        labels, _ = kmeans(mean(list(tables.values())), method.clusters, key)
        drawn = chosen[fold(key, CLIENT) % len(chosen)]
        names = sorted(set(labels.tolist()))
        rows = [i for i in range(world.items) if labels[i] == names[fold(key, CLUSTER) % len(names)]]
        like = {v: float(F.cosine_similarity(tables[drawn][rows], tables[v][rows]).sum()) for v in chosen}
        order = sorted(chosen, key=lambda v: -like[v])
        group = order[: farthest([like[v] for v in order]) + 1]
        for number in group:
            clients[number].item.data = mean([tables[v] for v in group])
    scores = federation.scores(received=False)
    return {"server.labels": labels.to(torch.uint8), "scores": scores, **federation.own()}


class CoFedRecTests(MethodTests):
    sampled_rows_only = False  # contrast moves all rows, and the server's table is that of another group every round

    def reference(self, data: ClientData, rounds: int) -> dict[str, Tensor]:
        return reference(self.method, data, rounds)


class TestCoFedRec(CoFedRecTests):
    method = CoFedRec(**SMALL, clusters=5, contrast_weight=0.5, temperature=0.5)


class TestCoFedRecPaper(CoFedRecTests):
    method = CoFedRec(**{**SMALL, "epochs": 1}, clusters=5, contrast_weight=0.2, temperature=0.5, supcon="paper")
    rounds = 2


def test_elbow_by_hand():
    curve = torch.tensor([5.0, 4.8, 4.6, 1.0, 0.9, 0.8]).double()
    assert elbow(curve) == 3
    assert elbow(curve[:1]) == elbow(curve[:2]) == 0
    assert elbow(torch.ones(4).double()) == 0, "the first of equals"


@pytest.mark.parametrize("length", range(3, 40))
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_rounding_decides_no_elbow(length: int, dtype: torch.dtype):
    """All points of a straight line are as far from its chord: not at all."""
    assert elbow(torch.arange(length - 1, -1, -1, dtype=dtype)) == 0


def as_local(data: ClientData, rounds: int) -> dict[str, Tensor]:
    item = SMALL["lr"] * 40 * SMALL["item_rate_scale"]
    return run(naive.LocalInTurn(backbone="linear", dim=4, init_std=0.5, batch=16, lr=0.3, lr_item=item), data, rounds)


@pytest.mark.parametrize("silo", [False, True])
def test_one_client_is_local(silo):
    data = tiny_world(silos=(12,)) if silo else tiny_world(per_user=(15,))
    alone, federated = as_local(data, 3), run(CoFedRec(**SMALL, contrast_weight=0.0, epochs=1), data, 3)
    assert_close({name: federated[name] for name in alone}, alone, 1e-9, "one client against local")


class Nobody(CoFedRec):
    def answer(self, server, plan, arrived, round):
        return None


def test_without_group_and_contrast_it_is_local():
    alone, federated = as_local(tiny_world(), 3), run(Nobody(**SMALL, contrast_weight=0.0, epochs=1), tiny_world(), 3)
    assert_close({name: federated[name] for name in alone}, alone, 1e-9, "no group against local")


def test_only_the_group_is_replaced_and_pays():
    data = tiny_world(dtype=torch.float32)
    simulator = Simulator(CoFedRec(**SMALL, clusters=5), data)
    paid = np.zeros(12, np.int64)
    for round in range(3):
        simulator.round(round)
        group = simulator.server["group"].numpy()
        paid += (40 if round else 0) + group * 40 * 4 * 4  # a byte per label, a table
        own = simulator.cohorts[0].state.per_client["item"]
        same = (own == simulator.server["item"]).all(2).all(1).numpy()
        assert np.array_equal(same, group)
        assert 0 < group.sum() < 12
    assert np.array_equal(simulator.wire.ledger.down, paid)
    assert (simulator.wire.ledger.up == 3 * 40 * 4 * 4).all()


def test_more_than_256_labels_take_two_bytes():
    assert CoFedRec(clusters=300).init_server(tiny_world().world)["labels"].element_size() == 2


@pytest.mark.parametrize("wrong", [{"clusters": 0}, {"temperature": 0.0}, {"contrast_weight": -1.0}])
def test_settings_out_of_range_are_refused(wrong):
    with pytest.raises(FedrecError, match="cofedrec"):
        CoFedRec(**wrong)
