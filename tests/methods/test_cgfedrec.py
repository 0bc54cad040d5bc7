"""CGFedRec: the suite, two optimisers per client as the naive loop, published figures, and what its variants become."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

from fedrec.errors import FedrecError
from fedrec.experiment.observers import observer_of
from fedrec.experiment.observers.labels import label_agreement
from fedrec.federation.clients import ClientData, Forbidden
from fedrec.federation.contract import Down, State
from fedrec.federation.noise import Laplace
from fedrec.federation.simulator import Simulator
from fedrec.kernels import count_products
from fedrec.methods import PFedRec
from fedrec.methods.cluster import contrastive
from fedrec.methods.cluster.cgfedrec import CGFedRec
from fedrec.methods.cluster.kmeans import kmeans, random_labels
from fedrec.random import Purpose, fold, stream
from fedrec.testing import MethodTests, assert_close, run, tiny_world
from methods import naive
from methods.naive_base import bce, descend, draws, mean, taking_part
from methods.test_contrast import LABELS, TABLE, plain

SMALL = {"dim": 4, "init_std": 0.5, "batch": 16, "lr": 0.3, "item_rate_scale": 0.1, "clusters": 4}
STRONG = {**SMALL, "contrast_weight": 0.3, "temperature": 0.3}


def train(
    method: CGFedRec, client: naive.Client, data: ClientData, number: int, round: int, labels: Tensor | None
) -> None:
    """For every batch: forward, step on the scorer; forward again, step on the table (or both after one forward)."""
    drawn, rates = draws(method, data, number, round), method.trainer.rates
    scorer = torch.optim.SGD(client.layers.parameters(), lr=rates["dense"])
    table = torch.optim.SGD([client.item], lr=rates["item"])
    turns = [[scorer], [table]] if method.update == "sequential" else [[scorer, table]]
    for epoch in range(method.epochs):
        for count, batch in enumerate(drawn.epoch(epoch)):
            for turn in turns:
                loss = bce(client(batch.user, batch.item), batch.label)
                if labels is not None and (method.con_every == "batch" or count == 0):
                    contrast = plain(client.item, labels, method.temperature, method.supcon)
                    loss = loss + method.contrast_weight * contrast
                descend(loss, client, *turn)


def clustered(method: CGFedRec, mean: Tensor, seed: int, round: int, last: Tensor | None) -> tuple[Tensor, Tensor]:
    key = fold(stream(seed, Purpose.CLUSTER), round)
    if method.variant in ("ERC", "RC"):
        return random_labels(len(mean), method.clusters, key), mean
    return kmeans(mean, method.clusters, key, centres=last)


def reference(method: CGFedRec, data: ClientData, rounds: int) -> dict[str, Tensor]:
    world, method = data.world, method.for_world(data.world)
    federation, labels, centres = naive.Federation(method, data), None, None
    common, clients = federation.server["item"], federation.clients
    for round in range(rounds):
        chosen = taking_part(data, round)
        for number in chosen:
            if method.variant in ("E", "EC", "ERC"):
                clients[number].item.data = common.clone()
            train(method, clients[number], data, number, round, labels)
        tables = {k: clients[k].item.detach() for k in chosen}
        if method.upload == "full":
            common = mean(list(tables.values()))
        else:
            common = common.clone()
            for i in range(world.items):
                ends = data.user_ptr[data.client_ptr]
                rows = [table[i] for k, table in tables.items() if i in data.items[ends[k] : ends[k + 1]]]
                common[i] = mean(rows) if rows else common[i]
        if method.variant not in ("E", "local"):
            labels, centres = clustered(method, common, world.seed, round, centres if method.warm_start else None)
    server = {"server.item": common} if method.variant != "local" else {}
    return server | federation.own() | {"scores": federation.scores(received=False)}


class CGFedRecTests(MethodTests):
    sampled_rows_only = False  # the contrast moves all of them
    rounds = 2

    def reference(self, data: ClientData, rounds: int) -> dict[str, Tensor]:
        return reference(self.method, data, rounds)


class TestCGFedRec(CGFedRecTests):
    method = CGFedRec(**STRONG)


class TestCGFedRecScorer(CGFedRecTests):
    method = CGFedRec(**STRONG, backbone="scorer", supcon="paper", update="simultaneous", warm_start=True)


class TestCGFedRecMixed(CGFedRecTests):
    method = CGFedRec(**STRONG, variant="EC", upload="interacted", con_every="epoch")


@pytest.mark.parametrize("variant", ["E", "ERC", "RC", "local"])
def test_variants_against_the_naive_loop(variant):
    method, data = CGFedRec(**STRONG, variant=variant), tiny_world(participation=0.5)
    expected = reference(method, data, 2)
    found = run(method, data, 2)
    assert_close({name: found[name] for name in expected}, expected, 1e-9, variant)


COMPILED = {**STRONG, "dim": 20, "item_rate_scale": 0.02}  # rows of more than one vector, in steps that do not diverge


@pytest.mark.parametrize(
    "settings",
    [{}, {"update": "simultaneous", "supcon": "paper"}, {"con_every": "epoch"}, {"variant": "EC"}],
    ids=lambda settings: " ".join(settings) or "usual",
)
def test_compiled_training_is_the_naive_loop(settings, monkeypatch):
    """In single precision, with several tiles; under EC all clients begin with one table."""
    method, options = CGFedRec(**COMPILED, **settings), {"items": 70, "participation": 0.5, "empty": True}
    expected = reference(method, tiny_world(**options), 3)
    single = tiny_world(**options, dtype=torch.float32)
    monkeypatch.setattr(contrastive, "Contrastive", None)  # training in torch would fail
    found = run(method, single, 3)
    assert_close({name: found[name].double() for name in expected}, expected, 2e-5, "compiled against the naive loop")


def test_a_common_start_is_evaluated_once():
    tables = torch.randn(5, 9, 4, generator=torch.Generator().manual_seed(2))
    assert not contrastive.equal_tables(tables).any()
    tables[3] = tables[1]
    tables[4, 0] = tables[1, 0]
    assert contrastive.equal_tables(tables).tolist() == [False, True, False, True, False]


def test_products_are_counted():
    """Of every table once, however many clients begin with it."""
    method, data = CGFedRec(**COMPILED, epochs=1, variant="EC"), tiny_world(dtype=torch.float32)
    simulator = Simulator(method, data)
    simulator.round(0)
    with count_products() as counted:
        simulator.round(1)
    batches = int((-(-data.positives * 5 // method.batch)).sum())
    assert sum(counted) == 3 * 40 * 40 * 20 * (batches - len(data.clients) + 1)


def test_the_mean_table_alone_is_pfedrec():
    data, own = tiny_world(participation=0.5), {**SMALL, "epochs": 2}
    del own["clusters"]
    theirs = run(PFedRec(**own), data, 3)
    mine = run(CGFedRec(**SMALL, variant="E"), data, 3)
    assert_close({name: mine[name] for name in theirs}, theirs, 1e-12, "E against pfedrec")


@pytest.mark.parametrize("settings", [{"variant": "RC", "contrast_weight": 0.0}, {"variant": "local"}])
def test_random_labels_without_weight_are_local(settings):
    data = tiny_world()
    method = CGFedRec(**SMALL, **settings)
    rates = {"lr": 0.3, "lr_item": method.for_world(data.world).lr_item}
    alone = run(naive.LocalInTurn(backbone="linear", dim=4, init_std=0.5, batch=16, epochs=2, **rates), data, 3)
    mine = run(method, data, 3)
    assert_close({name: mine[name] for name in alone}, alone, 1e-12, "against local")


@pytest.mark.parametrize("update", ["simultaneous", "sequential"])
def test_joint_step_by_hand(update):
    """Item 0 liked, item 4 not; rates of 1, so that what moved is the gradient."""
    forbidden = Forbidden(np.zeros(3, dtype=int), np.array([1, 2, 3]))
    data = ClientData.build(
        tiny_world(5, per_user=(1,)).world,
        np.array([0]),
        np.array([0]),
        users=np.array([0]),
        client_ptr=np.array([0, 1]),
        negatives=1,
        forbidden=forbidden,
    )
    method = CGFedRec(
        dim=2, lr=1.0, lr_item=1.0, epochs=1, update=update, contrast_weight=0.1, temperature=0.5, supcon="paper"
    )
    omega = torch.tensor([[[0.5, -0.5]]]).double()
    head = {"weight0": omega.clone(), "bias0": torch.zeros(1, 1).double()}
    state = State({**head, "item": TABLE[None].clone()}, {"user": torch.zeros(1, 0).double()})
    chunk = data.chunk(np.array([0]))
    new, _ = method.local(state, Down(shared={"labels": LABELS.to(torch.uint8)}), chunk, 1)
    moved = TABLE - new.per_client["item"][0]
    assert torch.allclose(omega - new.per_client["weight0"], torch.tensor([-0.188770, -2.310355]).double(), atol=1e-6)
    assert float(-new.per_client["bias0"]) == pytest.approx(0.273301, abs=1e-6)
    assert torch.allclose(moved[3], torch.tensor([0, 0.073583]).double(), atol=1e-6)
    expected = torch.tensor([[-0.094385, 0.042495], [0.245744, -0.231035]]).double()
    assert torch.allclose(moved[[0, 4]], expected, atol=1e-6) == (update == "simultaneous")
    total, contrast = (tuple(map(float, chunk.observed[name])) for name in ("loss", "contrastive"))
    assert total[0] / total[1] == pytest.approx(1.526483, abs=1e-6)
    assert total[0] / total[1] + 0.1 * contrast[0] / contrast[1] == pytest.approx(1.621817, abs=1e-6)


def test_bytes_are_those_of_the_formulae():
    """Down one byte per item, up a table: 1 - 1/(4 d) of the download is saved, half of that of the round trip."""
    data = tiny_world(1682, dtype=torch.float32)
    simulator = Simulator(CGFedRec(clusters=50, contrast_weight=0.0), data)
    for round in range(2):
        simulator.round(round)
    first, second = simulator.wire.ledger.rounds[0], simulator.wire.ledger.rounds[1]
    table, labels = 1682 * 32 * 4, 1682
    assert first["down"] == 0, "there are no labels before the first mean"
    assert second["up"] == 12 * table == 12 * 215_296
    assert second["down"] == 12 * labels
    assert 1 - second["down"] / second["up"] == 0.9921875
    assert 1 - (second["down"] + second["up"]) / (2 * second["up"]) == 0.49609375
    many = CGFedRec(clusters=300).init_server(data.world)["labels"]
    assert many.element_size() == 2, "more than 256 labels need a second byte"


def test_released_item_rates():
    world = replace(tiny_world().world, items=1682)
    assert CGFedRec().for_world(world).trainer.rates["item"] == pytest.approx(13_456)


def test_noise_reaches_the_labels_alone():
    """The own table of a client stays clean; the mean that is clustered does not."""
    data, method = tiny_world(), CGFedRec(**STRONG)
    clean, noised = Simulator(method, data), Simulator(method, data, (Laplace(5.0),))
    clean.round(0)
    noised.round(0)
    assert torch.equal(clean.cohorts[0].state.per_client["item"], noised.cohorts[0].state.per_client["item"])
    assert not torch.allclose(clean.server["item"], noised.server["item"], atol=0.5)
    assert label_agreement(clean, 0) == 1
    assert label_agreement(noised, 0) < 0.8
    assert observer_of(noised.method).figures(noised, 0) == {"label_agreement": label_agreement(noised, 0)}
    assert not observer_of(clean.method).figures(clean, 0), "without noise there is nothing to compare"
    assert noised.wire.ledger.up.sum() == clean.wire.ledger.up.sum()


@pytest.mark.parametrize("wrong", [{"clusters": 0}, {"temperature": 0.0}, {"contrast_weight": -1.0}])
def test_what_cannot_be_is_refused(wrong):
    with pytest.raises(FedrecError, match=next(iter(wrong))):
        CGFedRec(**wrong)
