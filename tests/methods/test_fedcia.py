"""FedCIA against a naive federation of silos, and its filters against the paper's worked numbers."""

from __future__ import annotations

import inspect
import re
from dataclasses import replace

import numpy as np
import pytest
import torch

from fedrec.errors import FedrecError
from fedrec.experiment.params import build_method
from fedrec.federation.clients import ClientData
from fedrec.federation.contract import World
from fedrec.federation.simulator import Simulator
from fedrec.methods import FedCIA
from fedrec.methods.silo import fedcia
from fedrec.models.gfcf import GFCF
from fedrec.testing import MethodTests, all_scores, run, tiny_world
from methods.naive_silos import Federation

MF = {"dim": 3, "batch": 7, "weight_decay": 0.01, "lr": 0.05, "align_steps": 20}
GCN = MF | {"backbone": "lightgcn", "loss": "bpr", "layers": 2}
FILTER = {"backbone": "gfcf", "frequencies": 2, "batch": 7, "beta": 3.0}


class CIATests(MethodTests):
    rounds = 2
    rotates = ("server.vectors",)

    def reference(self, data: ClientData, rounds: int) -> dict[str, torch.Tensor]:
        naive = Federation(self.method, data)
        naive.similarity(rounds)
        mark = {name: f"@{name}" if self.method.blocks else "" for name in naive.server}
        users = {f"user.user{mark[name]}": naive.users(name) for name in mark}
        items = {f"client.item{mark[name]}": naive.stacked("item", name) for name in mark}
        return users | items | {"scores": naive.scores()}


class TestWhole(CIATests):
    method = FedCIA(**MF, noise=0)


class TestSubspace(CIATests):
    method = FedCIA(**GCN, mode="subspace")


class TestBlocks(CIATests):
    method = FedCIA(batch=7, blocks="mf:3+lightgcn:2+mlp:4:0.05", layers=2, align_steps=20, mode="lowrank")


class TestNoise(MethodTests):
    method = FedCIA(**MF, noise=0.01)


def filters(data: ClientData, method: FedCIA) -> torch.Tensor:
    """A_k F_k + beta A_k mean(F), all matrices whole."""
    rows = [data.chunk(np.array([k])).matrix() for k in range(data.world.clients)]
    own = [GFCF(method.frequencies, method.ideal_weight).fit(part).dense() for part in rows]
    mean = sum(own) / len(own)
    scores = [part @ (mine + method.beta * mean) for part, mine in zip(rows, own, strict=True)]
    return torch.from_numpy(np.concatenate(scores)[np.argsort(data.users)].round(9))


class FilterTests(MethodTests):
    random = False
    rounds = 1
    layouts = ("silos",)

    def reference(self, data: ClientData, rounds: int) -> dict[str, torch.Tensor]:
        return {"scores": filters(data, self.method)}


class TestFilters(FilterTests):
    method = FedCIA(**FILTER, noise=0)


class TestFilterFactors(FilterTests):
    method = FedCIA(**FILTER, mode="subspace", rank=5)


def world_of(rows, clients, items=5):
    user = np.repeat(np.arange(len(rows)), [len(row) for row in rows])
    world = World(items=items, clients=len(clients) - 1, dtype=torch.float64)
    return ClientData.build(
        world, user, np.concatenate(rows), users=np.arange(len(rows)), client_ptr=np.array(clients), negatives=1
    )


ROWS = [[0, 1], [0, 2], [1, 2, 3], [0, 3]]


@pytest.mark.parametrize("mode", [{"noise": 0.0}, {"mode": "subspace", "rank": 4}])
def test_two_silos(mode):
    """The worked example: two silos of two users, s = 1, w = 0.3, beta = 2."""
    data = world_of(ROWS, [0, 2, 4])
    method = FedCIA(backbone="gfcf", frequencies=1, ideal_weight=0.3, beta=2.0, **mode)
    simulator = Simulator(method, data)
    simulator.round(0)
    scores = all_scores(simulator, 1)
    expected = [[2.927107, 2.46044, 1.46044, 0.829256, 0], [2.927107, 1.46044, 2.46044, 0.829256, 0]]
    assert torch.allclose(scores[:2], torch.tensor(expected, dtype=torch.float64), atol=1e-6)
    unseen = scores.scatter(1, torch.tensor([[0, 1], [0, 2]]), -torch.inf)
    assert unseen[:2].topk(2).indices.tolist() == [[2, 3], [1, 3]]


def test_average_of_single_users():
    """Theorem 1: one user per client, linear part only: the mean is A' D_U^-1 A / N."""
    data = world_of(ROWS, [0, 1, 2, 3, 4])
    simulator = Simulator(FedCIA(backbone="gfcf", ideal_weight=0.0, noise=0.0), data)
    simulator.round(0)
    found = simulator.server["filter"]
    rows = data.chunk(np.arange(4)).matrix().toarray()
    assert np.allclose(found, rows.T @ np.diag(1 / rows.sum(1)) @ rows / 4)
    assert found[0].tolist() == pytest.approx([0.375, 0.125, 0.125, 0.125, 0])
    assert [float(found[1, 1]), float(found[1, 2])] == pytest.approx([0.208333, 0.083333], abs=1e-6)


def test_modes_are_the_same_method():
    data = tiny_world(silos=(5, 4, 3))
    whole, *others = (
        run(FedCIA(**MF, **mode), data, 3)["scores"]
        for mode in ({"noise": 0.0}, {"mode": "lowrank"}, {"mode": "subspace"}, {"noise": 0.0, "rank": 40})
    )
    for other in others:
        assert torch.allclose(other, whole, rtol=1e-9, atol=1e-9)


def test_factors_of_large_silos_are_exact():
    """As many columns as the largest silo has users, here more than the usual number where that is not known."""
    rng, users = np.random.default_rng(3), 150
    rows = [rng.choice(200, 12, replace=False) for _ in range(2 * users)]
    data = world_of(rows, [0, users, 2 * users], items=200)
    data = replace(data, world=replace(data.world, most_users=users))
    method = FedCIA(backbone="gfcf", frequencies=140, beta=3.0, mode="subspace")
    simulator = Simulator(method, data)
    simulator.round(0)
    assert simulator.server["vectors"].shape == (2, 200, users)
    assert torch.allclose(all_scores(simulator, 1), filters(data, method), atol=1e-8)
    short = Simulator(replace(method, rank=128), data)
    short.round(0)
    assert not torch.allclose(all_scores(short, 1), filters(data, method), atol=1e-3)


def test_shorter_uploads_cost_less_and_lose_something():
    data = tiny_world(silos=(5, 4, 3), dtype=torch.float32)
    sizes, errors = {}, {}
    for rank in (0, 1, 2):
        simulator = Simulator(FedCIA(**MF, mode="subspace", rank=rank), data)
        errors[rank] = simulator.round(0).observed["upload_error"]
        sizes[rank] = int(simulator.wire.ledger.up[0])
    assert sizes == {0: 4 * (40 * 3 + 3), 1: 4 * (40 + 1), 2: 4 * (40 * 2 + 2)}
    assert errors[0] == pytest.approx(0, abs=1e-6)
    assert 0 < errors[2] < errors[1] < 1
    whole = Simulator(FedCIA(**MF), data)
    whole.round(0)
    assert whole.wire.ledger.up.tolist() == [4 * 40 * 40] * 3
    assert whole.wire.ledger.down.tolist() == [4 * (40 * 40 + 40 + 1)] * 3


def test_noise():
    """Of the scale asked for, fresh every round, other for every client; symmetric on request."""
    data = tiny_world(silos=(5, 4, 3))
    method = FedCIA(**MF, noise=0.01)
    chunk = data.chunk(np.arange(3))
    nothing = torch.zeros(3, 40, 40, dtype=torch.float64)
    draws = torch.stack([method.form.add_noise(nothing, chunk, round) for round in range(2)]).flatten(0, 1)
    assert float(draws.std()) == pytest.approx(0.01 * 2**0.5, rel=0.05)
    correlation = np.corrcoef(draws.flatten(1).numpy()) - np.eye(6)
    assert np.abs(correlation).max() < 0.1
    assert not torch.equal(draws[0], draws[0].T)
    even = replace(method, noise_symmetric=True).form.add_noise(nothing, chunk, 0)
    assert torch.equal(even, even.mT)
    assert torch.equal(even.triu(), draws[:3].triu())
    assert method.form.noise_scale(data.world) == 0.01
    assert FedCIA().form.noise_scale(data.world) == 0.001
    assert FedCIA().form.noise_scale(World(items=5000, clients=3)) == 0.0


def test_no_matrix_of_all_items_beyond_four_thousand():
    world = World(items=4001, clients=3)
    assert FedCIA().form.mode_in(world) == "subspace"
    assert FedCIA().form.mode_in(World(items=4000, clients=3)) == "dense_gram"
    for backbone in ("mf", "gfcf"):
        server = FedCIA(backbone=backbone, dim=4, rank=4).init_server(world)
        assert max(value.numel() for value in server.values()) <= 3 * 4001 * 12
    with pytest.raises(FedrecError, match="noise=0"):
        FedCIA(noise=0.1).init_server(world)


def test_silos_of_different_width_align_to_one_similarity():
    """After alignment the blocks' similarities lie closer together than before."""
    data = tiny_world(silos=(5, 4, 3))

    def spread(steps):
        method = FedCIA(batch=40, blocks="mf:6+mf:5+mf:4", noise=0.0, align_steps=steps)
        outcome = run(method, data, 2)
        found = [value[0] @ value[0].T for name, value in outcome.items() if name.startswith("client.item@")]
        assert len(found) == 3
        return float(torch.linalg.norm(found[0] - found[1]) + torch.linalg.norm(found[1] - found[2]))

    assert spread(100) < 0.6 * spread(0)


def test_networks_and_users_stay_private():
    method = FedCIA(backbone="mlp", loss="bce", dim=3, batch=7, noise=0.0)
    data = tiny_world(silos=(5, 4, 3))
    simulator = Simulator(method, data)
    simulator.round(0)
    assert set(simulator.server) == {"vectors", "values", "tail"}
    weights = simulator.cohorts[0].state.per_client["weight0"]
    assert not torch.equal(weights[0], weights[1])


def test_order_of_silos_does_not_matter():
    """With whole epochs in one batch and triples drawn by the client's number, only the filters can show it."""
    data = world_of(ROWS, [0, 2, 4])
    other = ClientData.build(
        data.world,
        np.repeat(np.arange(4), [2, 2, 3, 2]),
        np.concatenate(ROWS),
        users=np.array([2, 3, 0, 1]),
        client_ptr=np.array([0, 2, 4]),
        negatives=1,
    )
    method = FedCIA(backbone="gfcf", noise=0.0)
    assert torch.allclose(run(method, data, 1)["scores"], run(method, other, 1)["scores"], atol=1e-9)


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"noise": -1.0}, "noise"),
        ({"mode": "subspace", "noise": 0.1}, "dense_gram"),
        ({"align_lr": -0.1}, "align_lr"),
        ({"rank": -1}, "rank"),
        ({"beta": -1.0}, "beta"),
    ],
)
def test_bad_settings_are_refused(params, message):
    with pytest.raises(FedrecError, match=message):
        FedCIA(**params)


def test_presets_and_backbones():
    assert build_method("fedcia", preset="paper").loss == "bpr"
    assert build_method("CIA", preset="released") == FedCIA()
    made = build_method("fedcia", backbone="gfcf")
    assert made.rounds == 1
    assert "dense_gram" in made.remarks(World(items=100, clients=2))[0]


def test_equations_are_cited_by_the_numbers_that_the_paper_gives_them():
    """It numbers six: the last is the alignment, and those of C_k and C_s have no number."""
    cited = re.findall(r"^ *(.*?) +\(equations? ([\d, ]+)\)", fedcia.__doc__, flags=re.MULTILINE)
    numbers = {int(number) for _, several in cited for number in several.split(",")}
    assert max(numbers) == 6
    assert [words[:3] for words, number in cited if number == "6"] == ["E_k"]
    source = inspect.getsource(fedcia)
    assert {int(number) for number in re.findall(r"[Ee]quations? (\d+)", source)} <= set(range(1, 7))
