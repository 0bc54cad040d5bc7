"""Heater and GAR: the suite, their losses by hand, and an epoch against modules and optimisers of torch."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedrec.errors import FedrecError
from fedrec.federation.clients import Chunk, ClientData
from fedrec.methods import GAR, Heater
from fedrec.methods.cold.gar import generator_loss, recommender_loss
from fedrec.methods.cold.heater import choose_half, draw_samples, loss_of, mix_experts, standardise
from fedrec.methods.cold.networks import drop_out, positives, shuffle_batches
from fedrec.methods.cold.pretrained import Pretrained
from fedrec.random import Purpose, fold, stream
from fedrec.testing import MethodTests, run, tiny_world
from fedrec.training.samples import negatives
from methods.cold import WIDTH, attributes, with_attributes

D = torch.float64
SMALL = {"dim": 4, "batch": 16, "pretrain_epochs": 3}


def t(*values: object) -> Tensor:
    return torch.tensor(values, dtype=D)


def loaded(layer: nn.Linear, w: dict[str, Tensor], name: str) -> nn.Linear:
    layer.weight.data, layer.bias.data = w[name].clone(), w[name + "_bias"].clone()
    return layer


def linear(w: dict[str, Tensor], name: str) -> nn.Linear:
    return loaded(nn.Linear(*w[name].shape[::-1], dtype=D), w, name)


def factors(method: Pretrained, chunk: Chunk) -> tuple[Tensor, Tensor]:
    state = method.pretrain(chunk)
    return state.per_user["user"], state.per_client["item"][0]


class TestHeater(MethodTests):
    method = with_attributes(Heater, **SMALL, lr=0.1, decay=0.5)
    rounds = 2

    def reference(self, data: ClientData, rounds: int) -> dict[str, Tensor]:
        world, chunk = data.world, data.chunk(np.array([0]))
        w, x = self.method.init_server(world), attributes(world)
        towers = {
            side: nn.Sequential(linear(w, side + "1"), nn.BatchNorm1d(4, dtype=D), nn.Tanh(), linear(w, side + "2"))
            for side in ("user", "item")
        }
        experts, gates = linear(w, "experts"), linear(w, "gates")
        modules = nn.ModuleList([*towers.values(), experts, gates])
        matrices = [p for m in modules.modules() if isinstance(m, nn.Linear) for p in m.parameters()]
        u, v = factors(self.method, chunk)
        steps = torch.optim.SGD(modules.parameters(), lr=self.method.lr, momentum=0.9)

        def made(a: Tensor) -> Tensor:
            gate, opinion = torch.tanh(gates(a)), torch.tanh(experts(a))
            return torch.tanh(sum(gate[:, k : k + 1] * opinion[:, 4 * k : 4 * k + 4] for k in range(5)))

        for round in range(rounds):
            user, item, label = draw_samples(chunk, round)
            for number, part in enumerate(shuffle_batches(chunk, round, len(user), self.method.batch)):
                i, own = item[part], made(x[item[part]])
                as_new = choose_half(fold(stream(world.seed, Purpose.DROPOUT, round), number), part)
                seen = torch.stack([own[k] if as_new[k] else v[i[k]] for k in range(len(part))])
                score = (towers["user"](u[user[part]]) * towers["item"](seen)).sum(1)
                loss = F.mse_loss(score, label[part]) + 1e-4 * (own - v[i]).square().sum()
                loss = loss + 1e-4 * sum(p.square().sum() for p in matrices)
                steps.zero_grad()
                loss.backward()
                steps.step()
        modules.eval()
        with torch.no_grad():
            scores = towers["user"](u) @ towers["item"](made(x[: world.items])).T
        return {"scores": scores[np.argsort(data.users)], "server.experts": experts.weight.detach()}


class TestGAR(MethodTests):
    method = with_attributes(GAR, **SMALL, lr=0.05)
    rounds = 2


class Undropped(MethodTests):
    method = with_attributes(GAR, **SMALL, lr=0.05, drop_generator=0.0, drop_recommender=0.0)
    rounds = 2
    tolerance = 1e-7  # biases before a batch norm have no gradient but rounding, which Adam scales up

    def reference(self, data: ClientData, rounds: int) -> dict[str, Tensor]:
        world, chunk = data.world, data.chunk(np.array([0]))
        w, x = self.method.init_server(world), attributes(world)
        norm = lambda: nn.BatchNorm1d(4, dtype=D)  # noqa: E731
        g = nn.Sequential(linear(w, "generator1"), norm(), nn.Tanh(), linear(w, "generator2"))
        towers = nn.ModuleDict(
            {
                side: nn.Sequential(norm(), linear(w, side + "1"), norm(), nn.Tanh(), linear(w, side + "2"))
                for side in ("user", "item")
            }
        )
        steps = [torch.optim.Adam(module.parameters(), lr=self.method.lr) for module in (towers, g)]
        u, v = factors(self.method, chunk)
        owner, liked = positives(chunk)
        for round in range(rounds):
            other = negatives(chunk, round)
            for part in shuffle_batches(chunk, round, other.numel(), self.method.batch):
                at = part // other.shape[1]
                p, i, j = u[owner[at]], liked[at], other.flatten()[part]
                for step, module in zip(steps, (towers, g), strict=True):
                    frozen = g if module is towers else towers
                    kept = {name: value.clone() for name, value in frozen.named_buffers()}
                    made = g(x[i])
                    user = towers["user"](p)
                    known = (user * towers["item"](v[i])).sum(1)
                    if module is towers:
                        apart = (user * towers["item"](v[j])).sum(1)
                        new = (user * towers["item"](made.detach())).sum(1)
                        loss = -torch.log(torch.sigmoid(known - 0.9 * new - 0.1 * apart)).mean()
                    else:
                        new = (user * towers["item"](made)).sum(1)
                        loss = -0.95 * torch.log(torch.sigmoid(new - known)).mean()
                        loss = loss + 0.05 * (made - v[i]).abs().mean()
                    loss = loss + 1e-3 * sum(q.square().sum() for q in module.parameters() if q.dim() == 2)
                    module.zero_grad()
                    loss.backward()
                    step.step()
                    for name, value in frozen.named_buffers():
                        value.copy_(kept[name])
        g.eval(), towers.eval()
        with torch.no_grad():
            scores = towers["user"](u) @ towers["item"](g(x[: world.items])).T
        return {"scores": scores[np.argsort(data.users)], "server.generator1": g[0].weight.detach()}


def test_gar_without_dropout_is_what_modules_do():
    Undropped().test_reference_gives_the_same()


def test_the_mixture_by_hand():
    """Two coordinates, one attribute: all experts say tanh(1) and tanh(-1), gates tanh(.5) x 2 and 0."""
    w = {
        "experts": t(1.0, -1.0).repeat(5)[:, None],
        "experts_bias": torch.zeros(10, dtype=D),
        "gates": t(0.5, 0.5, 0.0, 0.0, 0.0)[:, None],
        "gates_bias": torch.zeros(5, dtype=D),
    }
    made = np.tanh(2 * np.tanh(0.5) * np.tanh(1))
    assert torch.allclose(mix_experts(t([1.0]), w), t([made, -made]))


def test_heaters_loss_by_hand():
    """Two pairs, one column: batch norm makes both sides -1 and 1, so the scores are tanh(1)^2 each."""
    one, zero = torch.ones(1, dtype=D), torch.zeros(1, dtype=D)
    w = {
        "experts": torch.zeros(5, 1, dtype=D),
        "experts_bias": torch.zeros(5, dtype=D),
        "gates": torch.zeros(5, 1, dtype=D),
        "gates_bias": torch.zeros(5, dtype=D),
    }
    for side in ("user", "item"):
        w |= {side + k: one[:, None] for k in "12"} | {f"{side}{k}_bias": zero for k in "12"}
        w |= {
            side + ".norm" + k: v.clone()
            for k, v in {".scale": one, ".shift": zero, ".mean": zero, ".variance": one}.items()
        }
    user, item, x = t([1.0], [3.0]), t([0.5], [2.0]), t([1.0], [1.0])
    as_new, label = torch.tensor([True, False]), t(1.0, 0.0)
    score = np.tanh(1) ** 2  # v^ is 0 and stands for the first item: 0 and 2 become -1 and 1
    expected = ((score - 1) ** 2 + score**2) / 2 + 0.1 * (0.25 + 4) + 0.01 * 4
    assert float(loss_of(w, user, item, x, as_new, label, 0.1, 0.01)) == pytest.approx(expected, abs=1e-4)
    assert w["user.norm.mean"].item() == pytest.approx(0.1 * 2)  # a tenth of the way


def test_the_adversaries_by_hand():
    known, other, made = t(1.0), t(-1.0), t(0.5)
    assert float(recommender_loss(known, other, made, 0.1)) == pytest.approx(np.log1p(np.exp(-0.65)))
    loss = generator_loss(known, made, t([1.0, 0.0]), t([0.0, 0.5]), 0.05)
    assert float(loss) == pytest.approx(0.95 * np.log1p(np.exp(0.5)) + 0.05 * 0.75)


def test_factors_as_heater_sees_them():
    found = standardise(t([0.0], [0.0], [0.0], [4.0]), 1.0)
    assert torch.allclose(found[:, 0], t(*[-1 / 3**0.5] * 3, 1.0))
    assert torch.equal(standardise(t([2.0], [2.0]), 1.0), t([0.0], [0.0]))


def test_dropout_keeps_the_mean():
    x = drop_out(torch.ones(200, 200), 0.25, 5)
    assert x.unique().tolist() == pytest.approx([0, 4 / 3])
    assert float(x.mean()) == pytest.approx(1, abs=0.02)
    assert not torch.equal(x, drop_out(torch.ones(200, 200), 0.25, 6))


def test_heaters_negatives_may_be_anything():
    chunk = tiny_world(silos=(12,)).chunk(np.array([0]))
    user, item, label = draw_samples(chunk, 0)
    assert len(item) == 5 * len(chunk.items)
    own = set(zip(*(part.tolist() for part in positives(chunk)), strict=True))
    drawn = set(zip(user[label == 0].tolist(), item[label == 0].tolist(), strict=True))
    assert own & drawn
    assert drawn - own
    assert int(choose_half(3, torch.arange(7)).sum()) == 3


def test_pretraining_happens_once():
    """More epochs, other factors; a second round leaves them as they are."""
    data = tiny_world(silos=(12,))
    first, second = (run(with_attributes(Heater, **SMALL), data, rounds) for rounds in (1, 2))
    assert torch.equal(first["client.item"], second["client.item"])
    longer = run(with_attributes(Heater, **{**SMALL, "pretrain_epochs": 4}), data, 1)
    assert not torch.equal(first["client.item"], longer["client.item"])
    assert first["server.experts"].shape == (20, WIDTH)


@pytest.mark.parametrize(
    ("cls", "wrong"),
    [
        (Heater, {"momentum": 1.0}),
        (Heater, {"decay": 0.0}),
        (Heater, {"pretrain_epochs": -1}),
        (GAR, {"alpha": 1.5}),
        (GAR, {"drop_recommender": 1.0}),
        (GAR, {"batch": 1}),
        (GAR, {"lr": 0.0}),
    ],
)
def test_values_out_of_range_are_refused(cls, wrong):
    with pytest.raises(FedrecError, match=f"{next(iter(wrong))}=.* does not fit {cls.info.name}"):
        cls(**wrong)
