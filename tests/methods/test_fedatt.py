"""FedAtt: the suite, the naive loop, the published step by hand, and what one client makes of it."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from fedrec.federation.clients import ClientData
from fedrec.federation.simulator import Simulator
from fedrec.methods import FedAtt, Local
from fedrec.testing import MethodTests, assert_close, run, tiny_world
from methods import naive
from methods.naive_base import taking_part

MF = {**naive.SGD, "dim": 4, "init_std": 0.3, "batch": 16, "lr": 1.0}
NCF = {**MF, "backbone": "ncf", "lr": 0.5, "lr_dense": 0.2}


def attentive(method: FedAtt, data: ClientData, rounds: int) -> naive.Federation:
    federation = naive.Federation(method, data)
    for round in range(rounds):
        chosen = taking_part(data, round)
        for number in chosen:
            federation.clients[number] = federation.model(federation.clients[number].user.detach())
            naive.train(method, federation.clients[number], data, number, round)
        uploads = [federation.clients[k].lock() for k in chosen]
        for name, weight in federation.server.items():
            far = []
            for up in uploads:
                change = weight - up[name]
                spectral = method.attention_norm == "spectral" and change.dim() == 2
                far.append(torch.linalg.svdvals(change).max() if spectral else change.square().sum().sqrt())
            far = torch.stack(far)
            if method.attention_scale == "mean":
                far = far / far.mean()
            share = far.exp() / far.exp().sum()
            pull = sum(a * (weight - up[name]) for a, up in zip(share, uploads, strict=True))
            federation.server[name] = weight - method.step * pull
    return federation


class FedAttTests(MethodTests):
    def reference(self, data: ClientData, rounds: int) -> dict[str, Tensor]:
        federation = attentive(self.method, data, rounds)
        found = {"user.user": federation.users(), **{f"server.{k}": v for k, v in federation.server.items()}}
        if self.method.score_with == "local":
            found |= federation.own()
        return found | {"scores": federation.scores(received=self.method.score_with == "received")}


class TestFedAtt(FedAttTests):
    method = FedAtt(**MF)


class TestFedAttSpectralOwn(FedAttTests):
    method = FedAtt(**MF, attention_norm="spectral", attention_scale="mean", score_with="local")


class TestFedAttNcf(FedAttTests):
    method = FedAtt(**NCF, attention_norm="spectral")


class TestFedAttNoise(MethodTests):
    method = FedAtt(**MF, noise_scale=0.01)
    sampled_rows_only = False


@pytest.mark.parametrize(
    ("norm", "shares", "expected"),
    [
        ("frobenius", (0.377541, 0.622459), (1.135915, 1.928171)),
        ("spectral", (0.354344, 0.645656), (1.127564, 1.944873)),
    ],
)
def test_one_step_by_hand(norm, shares, expected):
    weight = torch.eye(2).double()
    clients = weight + torch.stack([torch.tensor([0.3, 0.4]).diag(), torch.tensor([0.0, 1.0]).diag()]).double()
    method = FedAtt(attention_norm=norm)
    assert torch.allclose(method.attention(weight, clients), torch.tensor(shares).double(), atol=1e-6)
    assert torch.allclose(method.attend(weight, clients), torch.tensor(expected).double().diag(), atol=1e-6)


@pytest.mark.parametrize("backbone", [MF, NCF])
@pytest.mark.parametrize("silo", [False, True])
def test_one_client_is_local_with_a_whole_step(backbone, silo):
    data = tiny_world(silos=(12,)) if silo else tiny_world(per_user=(15,))
    alone = run(Local(**backbone), data, 3)
    federated = run(FedAtt(**backbone, step=1.0, score_with="local"), data, 3)
    assert_close({name: federated[name] for name in alone}, alone, 1e-9, "one client against local")
    overshot = run(FedAtt(**backbone, score_with="local"), data, 3)
    assert not torch.allclose(overshot["scores"], alone["scores"], atol=1e-3)


@pytest.mark.parametrize("method", [FedAtt(**MF), FedAtt(**NCF)])
def test_bytes_are_the_model_each_way(method):
    simulator = Simulator(method, tiny_world(dtype=torch.float32))
    simulator.round(0)
    floats = 40 * 4 + sum(v.numel() for v in method.trainer.init_dense(simulator.world).values())
    assert (simulator.wire.ledger.up == 4 * floats).all()
    assert (simulator.wire.ledger.down == 4 * floats).all()


def test_noise_has_its_scale_and_is_drawn_anew():
    data = tiny_world(items=500)
    clean, noisy = FedAtt(**MF, lr_item=0.0), FedAtt(**MF, lr_item=0.0, noise_scale=0.01)
    start = clean.trainer.init_items(data.world)
    assert torch.allclose(run(clean, data, 1)["server.item"], start)
    first, second = (run(noisy, data, rounds)["server.item"] for rounds in (1, 2))
    assert (first - start).std().item() == pytest.approx(0.01, rel=0.1)
    assert (second - start).std().item() == pytest.approx(0.01 * 2**0.5, rel=0.1)


def test_equal_distances_are_the_mean():
    weight = torch.zeros(3, 2).double()
    clients = torch.stack([weight + 1, weight - 1])
    assert torch.allclose(FedAtt(step=1.0).attend(weight, clients), weight)
    assert torch.allclose(FedAtt(attention_scale="mean").attention(weight, clients), torch.full((2,), 0.5).double())
