"""Cold-start baselines: the suite for each, a plain loop where the mathematics is their own, published numbers."""

from __future__ import annotations

from typing import ClassVar

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedrec.errors import FedrecError
from fedrec.experiment.params import build_method
from fedrec.federation.clients import ClientData
from fedrec.federation.contract import Method
from fedrec.federation.simulator import Simulator
from fedrec.methods import CsFedNCF, CsMF, CsNCF, CsPFedRec, FedDCN, FedMVMF, FedVBPR, IFedRecLAN, methods
from fedrec.methods.cold.feddcn import CROSS, cross
from fedrec.methods.cold.fedmvmf import fit_attributes, fit_cold_items, fit_users
from fedrec.methods.cold.fedvbpr import VBPR
from fedrec.methods.cold.neighbours import find_neighbours, neighbour_table, rows_with_neighbours
from fedrec.testing import MethodTests, tiny_world
from methods import naive
from methods.cold import COLD, attributes, with_attributes
from methods.naive_base import Draws, bce, by_index, descend, mean, taking_part
from methods.test_pfedrec import reference as pfedrec_reference

D = torch.float64
SMALL = {"dim": 4, "batch": 16}


def network(method: Method, p: dict[str, Tensor], user: Tensor, x: Tensor) -> Tensor:
    """One pair's logit, written as the papers draw it."""
    e = p["embed"] @ x + p["embed_bias"]
    if isinstance(method, FedDCN):
        start = torch.cat([user, e])
        deep = torch.relu(p["weight0"] @ start + p["bias0"])
        deep = torch.relu(p["weight1"] @ deep + p["bias1"])
        cross = start
        for layer in range(CROSS):
            cross = start * (cross @ p[f"cross{layer}"][0]) + p[f"cross_bias{layer}"] + cross
        return p["out"][0] @ torch.cat([cross, deep]) + p["out_bias"][0]
    if method.backbone == "linear":
        return p["weight0"][0] @ torch.tanh(e) + p["bias0"][0]
    pair = torch.cat([user, torch.tanh(e) if isinstance(method, IFedRecLAN) else e])
    return p["weight1"][0] @ torch.relu(p["weight0"] @ pair + p["bias0"]) + p["bias1"][0]


def rating(method: Method, p: dict[str, Tensor], user: Tensor, x: Tensor) -> Tensor:
    return torch.stack([network(method, p, user, row) for row in x])


def reference(method: Method, data: ClientData, rounds: int) -> dict[str, Tensor]:
    """One user per client: everyone trains whole copies, the shared ones are averaged."""
    world, x = data.world, attributes(data.world)
    server = {k: v for k, v in method.init_server(world).items() if k not in ("attributes", "warm")}
    state = method.init_clients(world, data.chunk(np.arange(world.clients)))
    own = [{k: v[c] for k, v in (state.per_client | state.per_user).items()} for c in range(world.clients)]
    for round in range(rounds):
        sent = []
        for number in taking_part(data, round):
            p = nn.ParameterDict({k: nn.Parameter(v.clone()) for k, v in (server | own[number]).items()})
            steps = torch.optim.SGD(p.parameters(), lr=method.lr)
            for batch in Draws(data, number, round, method.batch).epoch():
                logits = rating(method, p, p["user"], x[batch.item])
                descend(bce(logits, batch.label, saturate=method.trainer.saturation), p, steps)
            own[number] = {k: p[k].detach() for k in own[number]}
            sent.append({k: p[k].detach() for k in server})
        server = {k: mean([up[k] for up in sent]) for k in server}
    with torch.no_grad():
        scores = torch.stack([rating(method, server | mine, mine["user"], x[: world.items]) for mine in own])
    held = {f"server.{k}": v for k, v in server.items()}
    held |= {("user." if k == "user" else "client.") + k: torch.stack([mine[k] for mine in own]) for k in own[0]}
    return held | {"scores": by_index(data, scores)}


class ContentTests(MethodTests):
    layouts = ("devices",)
    rounds = 2

    def reference(self, data: ClientData, rounds: int) -> dict[str, Tensor]:
        return reference(self.method, data, rounds)


class TestCsFedNCF(ContentTests):
    method = with_attributes(CsFedNCF, **SMALL)


class TestFedDCN(ContentTests):
    method = with_attributes(FedDCN, **SMALL)


class TestIFedRecLAN(ContentTests):
    method = with_attributes(IFedRecLAN, **SMALL)


class TestLinearLAN(ContentTests):
    still = ("user.user",)  # the linear scorer has no user vector
    method = with_attributes(IFedRecLAN, **SMALL, backbone="linear")


class TestFedVBPR(MethodTests):
    method = with_attributes(FedVBPR, **SMALL)

    def reference(self, data: ClientData, rounds: int) -> dict[str, Tensor]:
        """One round of one user per client."""
        if not data.single:
            return {}
        world, x, method = data.world, attributes(data.world), self.method
        server = {k: v for k, v in method.init_server(world).items() if k not in ("attributes", "warm")}
        users = list(method.trainer.init_users(world, data.users))
        for round in range(rounds):
            sent = []
            for number in taking_part(data, round):
                p = nn.ParameterDict({k: nn.Parameter(v.clone()) for k, v in (server | {"u": users[number]}).items()})
                steps = torch.optim.SGD(p.parameters(), lr=method.lr)
                for batch in Draws(data, number, round, method.batch, "bpr").epoch():
                    loss = torch.zeros((), dtype=D)
                    for i, j in zip(batch.item, batch.other, strict=True):
                        apart = self.rated(p, i, x[i]) - self.rated(p, j, x[j])
                        size = p["u"].square().sum() + p["item"][i].square().sum() + p["item"][j].square().sum()
                        loss = loss - F.logsigmoid(apart) + method.l2 * size
                    dense = p["visual"].square().sum() + p["beta"].square().sum()
                    descend(loss / len(batch.item) + method.weight_decay_dense / 2 * dense, p, steps)
                users[number] = p["u"].detach()
                sent.append({k: p[k].detach() for k in server})
            server = {k: mean([up[k] for up in sent]) for k in server}
        return {f"server.{k}": v for k, v in server.items()} | {"user.user": torch.stack(users)}

    def rated(self, p: dict[str, Tensor], item: int, x: Tensor) -> Tensor:
        row = p["item"][item]
        return row[2] + p["u"][:2] @ row[:2] + p["u"][2:] @ (p["visual"] @ x) + p["beta"][0] @ x


class TestCsPFedRec(MethodTests):
    method = with_attributes(CsPFedRec, **SMALL, lr=0.3, item_rate_scale=0.1, init_std=0.3, neighbours=3)

    def reference(self, data: ClientData, rounds: int) -> dict[str, Tensor]:
        return pfedrec_reference(self.method, data, rounds)


class TestCsMF(MethodTests):
    method = with_attributes(CsMF, **SMALL, lr=0.05, neighbours=3)

    def reference(self, data: ClientData, rounds: int) -> dict[str, Tensor]:
        return naive.local(self.method, data, rounds)


class TestCsNCF(MethodTests):
    method = with_attributes(CsNCF, **SMALL, lr=0.02)
    rounds = 2

    def reference(self, data: ClientData, rounds: int) -> dict[str, Tensor]:
        """One model, pair by pair; Adam starts anew every epoch."""
        world, x, method = data.world, attributes(data.world), self.method
        start = {k: v for k, v in method.init_server(world).items() if k not in ("attributes", "warm")}
        start["user"] = method.trainer.init_users(world, data.users)
        p = nn.ParameterDict({k: nn.Parameter(v.clone()) for k, v in start.items()})
        for round in range(rounds):
            steps = torch.optim.Adam(p.parameters(), lr=method.lr)
            for batch in Draws(data, 0, round, method.batch).epoch():
                pairs = zip(batch.user, batch.item, strict=True)
                logits = torch.stack([network(method, p, p["user"][u], x[i]) for u, i in pairs])
                descend(bce(logits, batch.label), p, steps)
        end = {k: v.detach() for k, v in p.items()}
        scores = torch.stack([rating(method, end, user, x[: world.items]) for user in end["user"]])
        held = {f"server.{k}": v for k, v in end.items() if k != "user"} | {"user.user": end["user"]}
        return held | {"scores": by_index(data, scores)}


@pytest.mark.parametrize(("method", "silos"), [(TestCsPFedRec.method, None), (TestCsMF.method, (12,))])
def test_a_new_item_scores_as_the_mean_of_its_neighbours(method: Method, silos: tuple[int, ...] | None):
    """Both scores are linear in the item's row, so the mean row has the mean of the neighbours' scores."""
    data = tiny_world(silos=silos)
    simulator = Simulator(method, data)
    for round in range(2):
        simulator.round(round)
    warm, cold = (
        torch.cat([part for _, part in simulator.scores(2, items)])
        for items in (torch.arange(40), torch.arange(40, 40 + COLD))
    )
    x = attributes(data.world)
    for place, row in enumerate(x[40:]):
        near = F.cosine_similarity(row[None], x[:40]).argsort(descending=True)[:3]
        assert torch.allclose(cold[:, place], warm[:, near].mean(1))


class TestFedMVMF(MethodTests):
    method = with_attributes(FedMVMF, dim=4)
    random: ClassVar[bool] = True
    sampled_rows_only = False

    def reference(self, data: ClientData, rounds: int) -> dict[str, Tensor]:
        """Client after client, a gradient for every item."""
        world, m, x = data.world, self.method, attributes(data.world)
        start = m.init_server(world)
        table, factors = nn.Parameter(start["item"].clone()), start["factors"]
        adam, users = torch.optim.Adam([table], lr=m.lr_server), torch.zeros(len(data.users), 4, dtype=D)
        eye, warm = torch.eye(4, dtype=D), x[: world.items]
        for round in range(rounds):
            q, gradient = table.detach().clone(), torch.zeros_like(table)
            for number in taking_part(data, round):
                for place in range(data.client_ptr[number], data.client_ptr[number + 1]):
                    liked = torch.zeros(world.items, dtype=D)
                    liked[torch.from_numpy(data.items[data.user_ptr[place] : data.user_ptr[place + 1]])] = 1
                    c = torch.diag(1 + m.confidence * liked)
                    p = torch.linalg.inv(q.T @ c @ q + m.ridge * eye) @ q.T @ c @ liked
                    users[place] = p
                    for i in range(world.items):
                        gradient[i] += -2 * c[i, i] * (liked[i] - p @ q[i]) * p
            for i in range(world.items):
                gradient[i] += -2 * m.attribute_weight * factors @ (warm[i] - factors.T @ q[i]) + 2 * m.ridge * q[i]
            table.grad = gradient
            adam.step()
            q = table.detach()
            factors = torch.linalg.inv(q.T @ q + m.ridge / m.attribute_weight * eye) @ q.T @ warm
        return {"server.item": table.detach(), "server.factors": factors, "user.user": users}


def test_closed_forms_by_hand():
    q = torch.tensor([[1, 0], [0, 1], [1, 1]], dtype=D)
    data = ClientData.build(
        tiny_world(3, per_user=(1,)).world,
        np.array([0, 0]),
        np.array([0, 2]),
        users=np.array([0]),
        client_ptr=np.array([0, 1]),
    )
    p = fit_users(q, data.chunk(np.array([0])), 1.0, 0.1)
    assert torch.allclose(p[0], torch.tensor([0.964409, 0.022962], dtype=D), atol=1e-6)
    v = fit_attributes(q, torch.tensor([[1, 0, 1], [0, 1, 0], [1, 1, 1]], dtype=D), 0.1, 1.0)
    expected = [[0.938416, 0.029326, 0.938416], [0.029326, 0.938416, 0.029326]]
    assert torch.allclose(v, torch.tensor(expected, dtype=D), atol=1e-6)
    cold = fit_cold_items(v, torch.tensor([[1, 0, 0]], dtype=D), 0.1, 1.0)[0]
    assert torch.allclose(cold, torch.tensor([0.504509, -0.012548], dtype=D), atol=1e-6)
    assert (p[0] @ cold).item() == pytest.approx(0.486265, abs=1e-6)


def test_cross_layers_by_hand():
    x0 = torch.tensor([1.0, 2], dtype=D)
    weights = [torch.tensor([0.5, -0.25], dtype=D), torch.tensor([1, 0.5], dtype=D)]
    biases = [torch.tensor([0.1, 0], dtype=D), torch.zeros(2, dtype=D)]
    for layers, expected in ((1, [1.1, 2]), (2, [3.2, 6.2])):
        dots = [(x0 @ weight)[None] for weight in weights[:layers]]
        a, b = cross(dots, weights[:layers], biases[:layers])
        assert torch.allclose(a * x0 + b, torch.tensor(expected, dtype=D))


def test_vbpr_by_hand():
    x = [0.5, 1, -0.5]
    dense = {"visual": torch.tensor([[1, 0, 2], [0, 1, 1]], dtype=D), "beta": torch.tensor([[0.2, 0, 0.4]], dtype=D)}
    user = torch.tensor([[1, 0, 1, -1]], dtype=D)
    items = torch.tensor([[0.5, 2, 0.1, *x], [0, 0, 0, *x]], dtype=D)
    assert torch.allclose(VBPR(4).scores(user, items, dense)[0], torch.tensor([-0.5, -1.1], dtype=D))


def test_neighbours_by_hand():
    x = torch.tensor([[1, 0], [0, 1], [1, 1], [2, 1]], dtype=D)
    assert find_neighbours(x, 3, torch.tensor([3]), 3).tolist() == [[2, 0, 1]]
    near = neighbour_table(x, 3, 2)["near"]
    table = torch.tensor([[1, 0], [0, 1], [2, 2]], dtype=D)
    rows = rows_with_neighbours(table, near, torch.tensor([3, 1]))
    assert torch.equal(rows, torch.tensor([[1.5, 1], [0, 1]], dtype=D))


@pytest.mark.parametrize("name", [name for name, cls in methods().items() if cls().disclosure.attributes != "none"])
def test_new_items_are_scored_and_can_be_added(name):
    """Also after training; items with equal attributes tie exactly; without attributes it says what is missing."""
    cls = methods()[name]
    small = {"dim": 4} | ({"align": 0.0} if name == "ifedrec" else {})
    method = build_method(name, params=small)
    data = tiny_world(silos=(12,)) if cls.info.centralised else tiny_world()
    with pytest.raises(FedrecError, match="needs item attributes"):
        Simulator(method, data)
    x = attributes(data.world)
    simulator = Simulator(method, data, attributes=x)
    simulator.round(0)
    cold = torch.arange(40, 40 + COLD)
    scores = torch.cat([part for _, part in simulator.scores(1, cold)])
    assert scores.shape == (12, COLD)
    assert torch.equal(scores[:, -1], scores[:, -2])
    simulator.server = method.with_items(simulator.server, x[41:43])
    more = torch.cat([part for _, part in simulator.scores(1, torch.arange(40, 42 + COLD))])
    assert torch.allclose(more[:, :COLD], scores)
    assert torch.equal(more[:, -2:], more[:, 1:3])
