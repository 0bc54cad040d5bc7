"""FedDAE: the suite, whole networks under library optimisers as the naive loop, and the sizes that were published."""

from __future__ import annotations

import copy
import json
import math
from itertools import pairwise
from typing import Any, cast

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import fedrec
from fedrec.errors import FedrecError
from fedrec.federation.clients import ClientData
from fedrec.federation.contract import Down, State, Ups
from fedrec.federation.simulator import Simulator
from fedrec.federation.stages import parse_stages
from fedrec.methods.personal.feddae import FedDAE
from fedrec.random import Purpose, fold_tensor, normal, stream, uniform
from fedrec.testing import MethodTests, add_one_item, all_scores, assert_close, run, tiny_world
from fedrec.training.autoencoder import DECODER, GATE, OWN, SHARED
from fedrec_studies.variants.feddae import FedDAEVariants
from methods.naive_base import by_index, linear, mean, stacked, taking_part

SMALL = {"dim": 3, "layers": 2, "lr": 0.02, "lr_server": 0.03, "weight_decay": 1e-3, "epochs": 2}


def layers(method: FedDAE, data: ClientData, part: str) -> nn.ModuleList:
    """Linear layers with the method's initial values."""
    initial, found = method.network.initial(data.world, part), nn.ModuleList()
    for k in range(len(initial) // 2):
        weight, bias = initial[f"{part}weight{k}"], initial[f"{part}bias{k}"]
        found.append(linear(weight.T, bias))
    return found


def tower(parts: nn.ModuleList, x: Tensor) -> Tensor:
    for k, layer in enumerate(parts):
        x = layer(x if k == 0 else x.tanh())
    return x


class Net(nn.Module):
    """One user's autoencoder with both encoders whole."""

    def __init__(self, method: FedDAE, data: ClientData, number: int) -> None:
        super().__init__()
        self.method, self.seed, self.number = method, data.world.seed, number
        self.own, self.gate = layers(method, data, OWN), layers(method, data, GATE)
        self.x = torch.zeros(data.world.items, dtype=torch.float64)
        self.x[torch.from_numpy(data.chunk(np.array([number])).items)] = 1

    def keys(self, purpose: Purpose, when: tuple[int, int], site: int) -> Tensor:
        return fold_tensor(stream(self.seed, purpose, *when, site), torch.tensor(self.number))

    def dropped(self, x: Tensor, when: tuple[int, int] | None, site: int) -> Tensor:
        if when is None:
            return x
        draws = uniform(fold_tensor(self.keys(Purpose.DROPOUT, when, site), torch.arange(len(x))))
        return x * (draws >= self.method.dropout) / (1 - self.method.dropout)

    def latent(self, shared: nn.ModuleList, when: tuple[int, int] | None) -> tuple[Tensor, Tensor, Tensor]:
        """z, mu and sigma^2 of the mixture."""
        unit = self.x / max(float(self.x.norm()), 1e-12)
        weights = self.gate[1](self.dropped(self.gate[0](self.x).relu(), when, 2)).softmax(0)
        z, mean, variance = (torch.zeros(self.method.dim, dtype=torch.float64) for _ in range(3))
        for site, (encoder, weight) in enumerate(zip((self.own, shared), weights, strict=True)):
            mu, log = tower(encoder, self.dropped(unit, when, site)).chunk(2)
            noise = torch.zeros(()) if when is None else self.noise(when, site)
            z = z + weight * (mu + noise * (log / 2).exp())
            mean, variance = mean + weight * mu, variance + weight**2 * log.exp()
        return z, mean, variance

    def noise(self, when: tuple[int, int], site: int) -> Tensor:
        return normal(self.keys(Purpose.NOISE, when, site), torch.arange(self.method.dim))

    def loss(self, shared: nn.ModuleList, decoder: nn.ModuleList, beta: float, when: tuple[int, int]) -> Tensor:
        z, mean, variance = self.latent(shared, when)
        kl = 0.5 * (mean**2 + variance - 1 - variance.log()).sum()
        return -(self.x * tower(decoder, z).log_softmax(0)).sum() + beta * kl


def train(net: Net, shared: nn.ModuleList, decoder: nn.ModuleList, round: int) -> list[Tensor]:
    """All epochs of one client; the gradient that it sends, summed over epochs."""
    method, common = net.method, [*shared.parameters(), *decoder.parameters()]
    mine = [*net.own.parameters(), *net.gate.parameters()]
    steps = torch.optim.Adam(mine, lr=method.lr, weight_decay=method.weight_decay)
    for parameter in common:
        parameter.grad = None
    for epoch in range(method.epochs):
        steps.zero_grad()
        net.loss(shared, decoder, math.tanh(round / 10) * method.beta, (round, epoch)).backward()
        steps.step()
    return [cast(Tensor, parameter.grad) for parameter in common]


def train_released(net: Net, common: list[nn.ModuleList], round: int) -> list[Tensor]:
    """One client on copies of all that the server has; gradients are never cleared, and go up after every epoch."""
    method, gate = net.method, copy.deepcopy(net.gate)
    mine = [copy.deepcopy(parts) for parts in common]
    net.own, shared, decoder = mine
    sent = [parameter for parts in mine for parameter in parts.parameters()]
    steps = torch.optim.Adam([*sent, *net.gate.parameters()], lr=method.lr, weight_decay=method.weight_decay)
    total = [torch.zeros_like(parameter) for parameter in sent]
    for epoch in range(method.epochs):
        net.loss(shared, decoder, float(round == 0) * method.beta, (round, epoch)).backward()
        for sum_, parameter in zip(total, sent, strict=True):
            sum_ += cast(Tensor, parameter.grad)
        steps.step()
    net.gate = gate
    return total


def named(part: str, parts: nn.ModuleList) -> dict[str, Tensor]:
    found = {}
    for k, layer in enumerate(parts):
        found |= {f"{part}weight{k}": layer.weight.detach().T.clone(), f"{part}bias{k}": layer.bias.detach().clone()}
    return found


def reference(method: FedDAE, data: ClientData, rounds: int, met: dict[int, int] | None = None) -> dict[str, Tensor]:
    """Released: the server trains an own encoder too, which all clients load; their gates start anew every round.

    `met`: an item that a client knows by the time it scores.
    """
    world, released = data.world, getattr(method, "variant", "paper") == "released"
    own, shared, decoder = (layers(method, data, part) for part in (OWN, SHARED, DECODER))
    held = [own, shared, decoder] if released else [shared, decoder]
    common = [parameter for parts in held for parameter in parts.parameters()]
    server = torch.optim.Adam(common, lr=method.lr_server)
    nets = [Net(method, data, number) for number in range(world.clients)]
    for round in range(rounds):
        gradients = []
        for number in taking_part(data, round):
            if released:
                gradients.append(train_released(nets[number], held, round))
            else:
                gradients.append(train(nets[number], shared, decoder, round))
        for parameter, *each in zip(common, *gradients, strict=True):
            parameter.grad = mean(each)
        server.step()
    for net in nets if released else ():
        net.own = own
    for number, item in (met or {}).items():
        nets[number].x[item] = 1
    with torch.no_grad():
        scores = torch.stack([tower(decoder, net.latent(shared, None)[1]) for net in nets])
    found = {f"server.{name}": value for name, value in (named(SHARED, shared) | named(DECODER, decoder)).items()}
    if released:
        found |= {f"server.{name}": value for name, value in named(OWN, own).items()}
    else:
        for part in (OWN, GATE):
            each = stacked([named(part, net.own if part == OWN else net.gate) for net in nets])
            found |= {name: value for name, value in each.items() if name != f"client.{part}weight0"}
    return found | {"scores": by_index(data, scores)}


class FedDAETests(MethodTests):
    layouts = ("devices",)

    def reference(self, data: ClientData, rounds: int) -> dict[str, Tensor]:
        return reference(self.method, data, rounds)


class TestFedDAE(FedDAETests):
    method = FedDAE(**SMALL, beta=0.7)


class TestFedDAEReleased(FedDAETests):
    method = FedDAEVariants(**{**SMALL, "layers": 3, "epochs": 3}, variant="released")
    rounds = 2


@pytest.mark.parametrize("variant", ["paper", "released"])
def test_an_item_met_after_training_has_its_initial_rows(variant):
    """Without decay a row that nobody's input touches stays where it started, in a whole network too."""
    method, data, grown = FedDAEVariants(**{**SMALL, "weight_decay": 0.0}, variant=variant), tiny_world(), [0, 3, 4]
    known, added = add_one_item(data, grown)
    simulator = Simulator(method, data)
    for round in range(2):
        simulator.round(round)
    expected = reference(method, data, 2, dict(zip(grown, added.tolist(), strict=True)))["scores"]
    found = all_scores(simulator, 2, known)
    assert torch.allclose(found, expected, rtol=1e-9, atol=1e-9)
    assert not torch.allclose(found, all_scores(simulator, 2))


def test_sizes_are_the_published_ones():
    shapes = FedDAE().network.shapes(OWN, 1682)
    assert [shapes[f"weight{k}"] for k in range(3)] == [(1682, 768), (768, 512), (512, 512)]
    shapes = FedDAE().network.shapes(DECODER, 1682)
    assert [shapes[f"weight{k}"] for k in range(3)] == [(256, 512), (512, 768), (768, 1682)]
    small = FedDAE(**FedDAE.info.presets["small"])
    assert [small.network.shapes(OWN, 9)[f"weight{k}"] for k in range(2)] == [(9, 64), (64, 64)]
    assert [small.network.shapes(DECODER, 9)[f"weight{k}"] for k in range(2)] == [(32, 64), (64, 9)]
    assert small.network.shapes(GATE, 9)["weight0"] == (9, 32)


def test_beta_grows_or_is_gone():
    method = FedDAE(beta=2.0, anneal_cap=0.2)
    assert [method.strength(t) for t in (0, 1, 30)] == pytest.approx([0, 2 * math.tanh(0.1), 0.4])
    assert [FedDAEVariants(variant="released").strength(t) for t in (0, 1, 30)] == [1, 0, 0]


def test_bytes_are_shared_encoder_and_decoder_each_way():
    simulator = Simulator(FedDAE(**SMALL), tiny_world(dtype=torch.float32))
    for round in range(2):
        simulator.round(round)
    floats = 40 * 6 + 6 + 6 * 6 + 6 + 3 * 6 + 6 + 6 * 40 + 40
    assert (simulator.wire.ledger.up == 2 * 4 * floats).all()
    assert (simulator.wire.ledger.down == 2 * 4 * floats).all()


def test_released_has_one_own_encoder_which_the_server_trains():
    """It is never set back to where it started, and nothing of a client's own is kept."""
    method = FedDAEVariants(**SMALL, variant="released")
    data = tiny_world(dtype=torch.float32)
    simulator = Simulator(method, data)
    start = {name: value.clone() for name, value in simulator.server.items() if name.startswith(OWN)}
    assert start
    floats = 2 * (40 * 6 + 6 + 6 * 6 + 6) + 3 * 6 + 6 + 6 * 40 + 40
    for round in range(2):
        before = {name: simulator.server[name].clone() for name in start}
        simulator.round(round)
        assert all(not torch.equal(simulator.server[name], value) for name, value in before.items())
    assert not simulator.cohorts[0].state.per_client
    assert (simulator.wire.ledger.up == 2 * 4 * floats).all()
    down = method.broadcast(simulator.server, np.arange(12), 2)
    scores = method.score(State(), down, data.chunk(np.arange(12)), torch.arange(40))
    restarted = Down(shared=down.shared | start)
    assert not torch.allclose(method.score(State(), restarted, data.chunk(np.arange(12)), torch.arange(40)), scores)


@pytest.mark.parametrize("variant", ["paper", "released"])
def test_gradients_pass_stages_one_by_one(variant):
    data = tiny_world()
    loose = run(FedDAEVariants(**SMALL, variant=variant), data, 2, stages=parse_stages("clip=1e9"))
    assert_close(
        loose, run(FedDAEVariants(**SMALL, variant=variant), data, 2), 1e-9, "a clip that never strikes against none"
    )
    tight = run(FedDAEVariants(**SMALL, variant=variant), data, 2, stages=parse_stages("clip=0.01"))
    assert not torch.allclose(tight["scores"], loose["scores"])


def test_half_the_memory_is_nearly_the_same():
    data = tiny_world(dtype=torch.float32)
    whole, half = (Simulator(FedDAE(**SMALL, half=kind), data) for kind in (False, True))
    for simulator in (whole, half):
        simulator.round(0)
    kept, rough = whole.cohorts[0].state.per_client, half.cohorts[0].state.per_client
    assert all(2 * rough[name].nbytes == value.nbytes for name, value in kept.items())
    assert all(torch.allclose(rough[name].float(), value, atol=0.02) for name, value in kept.items())


def test_a_run_ends_when_the_loss_settles(tmp_path):
    """Also when it is resumed on the way, or after its end."""
    data = "synthetic@users=30+items=60+interactions=500+seed=1"
    often: dict[str, Any] = {**SMALL, "loss_stop": 0.05, "dropout": 0.0, "lr": 0.01, "lr_server": 0.01}
    summary = fedrec.run("feddae", data, out=tmp_path / "run", rounds=40, **often).summary
    records = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    losses = [record["loss"] for record in records]
    close = [abs(b - a) / (b + 1e-6) < 0.05 for a, b in pairwise(losses)]
    assert 2 < len(losses) < 40
    assert close[1:] == [False] * (len(close) - 2) + [True], "the first two rounds do not end a run"
    assert summary["stopped_early"]
    again = fedrec.run("feddae", data, out=tmp_path / "run", rounds=40, resume=True, **often).summary
    assert again["rounds_run"] == summary["rounds_run"] == len(losses)


def test_a_silent_round_changes_nothing():
    method = FedDAE(**SMALL)
    server = method.init_server(tiny_world().world)
    assert method.aggregate(server, Ups({}, {}, np.zeros(0, np.int64)), 0) is server


def test_several_users_per_client_are_refused():
    with pytest.raises(FedrecError, match="one user per client"):
        Simulator(FedDAE(**SMALL), tiny_world(silos=(5, 4, 3)))


@pytest.mark.parametrize("wrong", [{"layers": 1}, {"dropout": 1.0}, {"beta": -1.0}, {"anneal_cap": 2.0}])
def test_settings_out_of_range_are_refused(wrong):
    with pytest.raises(FedrecError, match="feddae"):
        FedDAE(**wrong)
