"""FedOpt: all checks of the suite with a loop over clients beside it; and one gradient of all clients is full-batch
training with all data in one place."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from fedrec.errors import FedrecError
from fedrec.experiment.params import build_method
from fedrec.federation.clients import ClientData
from fedrec.federation.simulator import Simulator
from fedrec.federation.stages import parse_stages
from fedrec.methods import FedOpt
from fedrec.testing import MethodTests, all_scores, assert_close, run, tiny_world
from fedrec.training.next_item_training import AmongDrawn
from fedrec.training.sequences import pack
from methods import naive, naive_sequences
from methods.naive_base import Draws, by_index, taking_part

ALL = 10_000  # samples in a batch: more than anybody has
MF = {"dim": 4, "init_std": 0.3, "batch": 16, "lr": 0.5, "server_lr": 0.1}
SASREC = {"backbone": "sasrec", "dim": 4, "length": 5, "init_std": 0.3, "dropout": 0.0, "batch": 2, "server_lr": 0.1}


# -- one client at a time --


class Devices(naive.Federation):
    """Users and, with backbone linear, their heads stay; the rest is received every round."""

    def receive(self, number: int) -> None:
        old = self.clients[number]
        own = old.dense() if self.method.own_head else {}
        self.clients[number] = self.holding(old.user.detach(), self.server | own)

    def gradient_step(self, number: int, round: int) -> None:
        """Rate 1 for what is sent, so that the change is minus the gradient."""
        method, client = self.method, self.clients[number]
        rates = method.trainer.rates
        head = {"params": [*client.layers.parameters()], "lr": rates["dense"] if method.own_head else 1.0}
        groups = [{"params": [client.user], "lr": rates["user"]}, {"params": [client.item], "lr": 1.0}]
        steps = torch.optim.SGD([*groups, head] if client.layers else groups)
        for batch in Draws(self.data, number, round, ALL, method.loss).epoch():
            naive.descend(naive.loss_of(method, client, batch), client, steps)

    def scores(self, received: bool = True) -> Tensor:
        for number in range(len(self.clients)):
            self.receive(number)
        return super().scores(received=False)


class Sequences(naive_sequences.Federation):
    def receive(self, number: int) -> None:
        self.clients[number] = self.model(self.clients[number].user)

    def gradient_step(self, number: int, round: int) -> None:
        users = [u for u, history in enumerate(self.histories(number)) if len(history) > 1]
        if users:
            every = self.losses(number, round, users)
            mean = every.mean() if self.method.reduction == "mean" else every.sum()
            naive.descend(mean, self.clients[number], torch.optim.SGD(self.clients[number].parameters(), lr=1.0))

    def losses(self, number: int, round: int, users: list[int]) -> Tensor:
        if not self.method.sampled:
            return super().losses(number, round, users)
        method, client = self.method, self.clients[number]
        s = AmongDrawn(self.data.chunk(np.array([number])), round, "ce", ALL, method.length, method.sampled, "last")
        found = []
        for row, user in enumerate(s.user.tolist()):
            counts = s.log_weight[row] > -math.inf
            among, weight = s.item[s.among[row][counts]], s.log_weight[row][counts]
            history = self.histories(number)[user]
            states = client(history[:-1][-method.length :])
            for hidden, target in zip(states, history[1:][-method.length :], strict=True):
                rows = client.item[among] @ hidden
                found.append(((rows + weight).logsumexp(0) - client.item[target] @ hidden) * (user in users))
        return torch.stack([loss for loss in found if loss.requires_grad])


def server_optimiser(method: FedOpt, x: list[torch.nn.Parameter]) -> torch.optim.Optimizer:
    betas = (method.beta1, method.beta2)
    if method.server_optimiser == "sgd":
        return torch.optim.SGD(x, lr=method.server_lr, momentum=method.beta1)
    if method.server_optimiser == "adagrad":
        return torch.optim.Adagrad(x, lr=method.server_lr, eps=method.tau)
    return torch.optim.AdamW(x, lr=method.server_lr, betas=betas, eps=method.tau, weight_decay=method.server_decay)


def reference(method: FedOpt, data: ClientData, rounds: int, everybody_first: bool = False) -> dict[str, Tensor]:
    federation: Any = (Sequences if method.trainer.sequential else Devices)(method, data)
    shared = [name for name in federation.server if name == "item" or not method.own_head]
    x = {name: torch.nn.Parameter(federation.server[name].clone()) for name in shared}
    optimiser = server_optimiser(method, list(x.values()))
    seen: list[dict[str, Tensor]] = []  # the server's models so far
    for round in range(rounds):
        asked = data.clients.tolist() if everybody_first and round == 0 else taking_part(data, round)
        changes = [change_of(federation, number, round, shared) for number in asked]
        counts = [samples_of(data, number) if method.shares == "samples" else 1.0 for number in asked]
        weight = torch.tensor(counts, dtype=torch.float64)
        for name, value in x.items():
            every = torch.stack([change[name] for change in changes])
            value.grad = -torch.tensordot((weight / weight.sum()).to(every.dtype), every, 1)
        optimiser.step()
        seen.append({name: value.detach().clone() for name, value in x.items()})
        federation.server |= seen[-1]
    federation.server |= averaged(seen, method.averaging)
    return as_sent(method, seen[-1]) | {"scores": federation.scores(True)}


def samples_of(data: ClientData, number: int) -> float:
    """The items of a client's users, each with its negatives."""
    first, last = data.client_ptr[number : number + 2]
    return float((data.user_ptr[last] - data.user_ptr[first]) * (1 + data.negatives))


def averaged(models: list[dict[str, Tensor]], keep: float) -> dict[str, Tensor]:
    """All models in one mean; each counts `keep` times what the next one does."""
    ages = range(len(models) - 1, -1, -1)
    total = sum(keep**age for age in ages)
    return {
        name: sum(keep**age * model[name] for age, model in zip(ages, models, strict=True)) / total
        for name in models[-1]
    }


def as_sent(method: FedOpt, x: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The server's tensors by name: the weights of a sequential backbone are rows of one table."""
    if method.trainer.sequential:
        x = {"item": x["item"], "network": pack(method.model, dict(x))}
    return {f"server.{name}": value for name, value in x.items()}


def change_of(federation: Any, number: int, round: int, shared: list[str]) -> dict[str, Tensor]:
    method = federation.method
    federation.receive(number)
    (federation.gradient_step if method.sends == "gradient" else federation.train)(number, round)
    held = federation.clients[number].lock()
    change = {name: held[name] - federation.server[name] for name in shared}
    norm = math.sqrt(sum(float(value.square().sum()) for value in change.values()))
    factor = min(1.0, method.clip / norm) if method.clip and norm else 1.0
    return {name: factor * value for name, value in change.items()}


class FedOptTests(MethodTests):
    def reference(self, data: ClientData, rounds: int) -> Mapping[str, Tensor]:
        return reference(self.method, data, rounds)


class TestMf(FedOptTests):
    method = FedOpt(**MF)


class TestMfEpochs(FedOptTests):
    method = FedOpt(**MF, sends="change", epochs=2, server_optimiser="sgd", loss="bpr", beta1=0.5)


class TestMfClippedEpochs(FedOptTests):
    method = FedOpt(**MF, sends="change", clip=0.05, server_optimiser="adagrad", beta1=0.0)


class TestNcf(FedOptTests):
    method = FedOpt(**MF, backbone="ncf", clip=0.05, reduction="sum")


class TestLinear(FedOptTests):
    method = FedOpt(**MF, backbone="linear", server_optimiser="sgd")


class TestSasrec(FedOptTests):
    method = FedOpt(**SASREC, loss="ce", clip=0.5)
    sampled_rows_only = False


class TestSasrecAveraged(FedOptTests):
    method = FedOpt(**SASREC, loss="ce", clip=0.5, averaging=0.6)
    sampled_rows_only = False


class TestSasrecRandomCrop(FedOptTests):
    method = FedOpt(**SASREC, loss="ce", clip=0.5, crop="random")
    sampled_rows_only = False


class TestSasrecRandomCropEpochs(FedOptTests):
    method = FedOpt(
        **SASREC, loss="ce", sends="change", optimiser="adam", lr=0.02, crop="random", server_optimiser="sgd"
    )
    sampled_rows_only = False


class TestSasrecShares(FedOptTests):
    method = FedOpt(**SASREC, loss="ce", clip=0.5, shares="samples")
    sampled_rows_only = False


class TestMfAveraged(FedOptTests):
    method = FedOpt(**MF, server_optimiser="sgd", averaging=0.3)


class TestNcfAveragedEpochs(FedOptTests):
    method = FedOpt(**MF, backbone="ncf", sends="change", averaging=0.5)


class TestLigr(FedOptTests):
    method = FedOpt(**SASREC, loss="ce", clip=0.5, block_kind="ligr")
    sampled_rows_only = False


class TestLigrEpochs(FedOptTests):
    method = FedOpt(
        **SASREC,
        loss="ce",
        sends="change",
        optimiser="adam",
        lr=0.02,
        block_kind="ligr",
        heads=2,
        server_optimiser="sgd",
    )
    sampled_rows_only = False


class TestSasrecEpochs(FedOptTests):
    method = FedOpt(**SASREC, loss="ce", sends="change", optimiser="adam", lr=0.02, epochs=2)
    sampled_rows_only = False


class TestSasrecSampled(FedOptTests):
    method = FedOpt(**SASREC, loss="ce", sampled=6)
    sampled_rows_only = False


class TestSasrecBinary(FedOptTests):
    method = FedOpt(**SASREC, loss="bce", server_decay=0.1)
    sampled_rows_only = False  # decay moves every row


class TestYogi(MethodTests):
    method = FedOpt(**SASREC | {"dropout": 0.2}, loss="ce", server_optimiser="yogi", bias_correction=False, tau=0.01)
    sampled_rows_only = False


# -- all data in one place --


@pytest.mark.parametrize(
    "server",
    [
        {"server_optimiser": "sgd", "beta1": 0.0, "server_lr": 1.0},
        {"server_optimiser": "sgd", "server_lr": 0.3},
        {"server_optimiser": "adam", "server_lr": 0.05},
        {"server_optimiser": "adam", "server_lr": 0.05, "server_decay": 0.2},
    ],
)
def test_one_gradient_of_all_clients_is_full_batch_training(server):
    """SASRec, softmax over all items; the loss is averaged per user, then over users."""
    data = tiny_world(per_user=(3, 15, 2, 7, 2, 9, 4, 5, 3, 6, 2, 8))
    method = FedOpt(**SASREC | server, loss="ce")
    start = method.trainer.init_model(data.world)
    central = naive_sequences.Attentive(method.model, start.pop("item"), start, 0)
    steps = server_optimiser(method, list(central.parameters()))
    histories = [torch.from_numpy(h) for h in np.split(data.history, data.user_ptr[1:-1])]
    for _ in range(6):
        per_user = []
        for history in histories:
            states, targets = central(history[:-1][-5:]), history[1:][-5:]
            per_user.append(torch.nn.functional.cross_entropy(states @ central.item.T, targets))
        naive.descend(torch.stack(per_user).mean(), central, steps)
    found = run(method, data, 6)
    expected = as_sent(method, central.lock())
    expected["scores"] = by_index(data, torch.stack([central.scores(history) for history in histories]))
    assert_close({name: found[name] for name in expected}, expected, 1e-6, "centralised")


@pytest.mark.parametrize("server", ["sgd", "adam"])
@pytest.mark.parametrize("backbone", ["mf", "ncf"])
def test_one_gradient_of_factor_models_is_full_batch_training(server, backbone):
    """User vectors step at a rate of their own: a user's share of the mean over users is one of twelve."""
    data = tiny_world()
    method = FedOpt(**MF, backbone=backbone, server_optimiser=server)
    federation = naive.Federation(method, data)
    central = federation.model(federation.users())
    of_users = torch.optim.SGD([central.user], lr=12 * method.lr)
    of_server = server_optimiser(method, [p for p in central.parameters() if p is not central.user])
    for round in range(4):
        per_user = []
        for number in range(12):
            (batch,) = Draws(data, number, round, ALL).epoch()
            logits = central(batch.user + number, batch.item)
            per_user.append(torch.nn.functional.binary_cross_entropy_with_logits(logits, batch.label))
        naive.descend(torch.stack(per_user).mean(), central, of_users, of_server)
    found = run(method, data, 4)
    expected = {f"server.{name}": value for name, value in central.lock().items()}
    expected |= {"user.user": central.user.detach(), "scores": by_index(data, central.everything())}
    assert_close({name: found[name] for name in expected}, expected, 1e-6, "centralised")


# -- the softmax over drawn items --


@pytest.mark.parametrize("silos", [None, (5, 4, 3)])
def test_where_all_items_are_drawn_it_is_the_softmax_over_all(silos):
    data = tiny_world(silos=silos, empty=True)
    whole, drawn = (run(FedOpt(**SASREC, loss="ce", sampled=n), data, 3) for n in (0, 40))
    assert_close(drawn, whole, 1e-9, "drawn against all")


def test_the_sum_over_the_catalogue_is_estimated_without_bias():
    data = tiny_world()
    chunk, values = data.chunk(np.array([1])), torch.rand(40, dtype=torch.float64, generator=torch.Generator())
    found = []
    for round in range(400):
        s = AmongDrawn(chunk, round, "ce", ALL, 5, 6, "last")
        found.append(float((values[s.item[s.among[0]]] * s.log_weight[0].exp()).sum()))
    error = np.std(found) / math.sqrt(len(found))
    assert error > 0
    assert abs(np.mean(found) - float(values.sum())) < 4 * error


def test_only_rows_of_own_and_drawn_items_have_a_gradient():
    data = tiny_world(items=500)
    simulator = Simulator(FedOpt(**SASREC, loss="ce", sampled=6), data)
    start = simulator.server["item"].clone()
    simulator.round(0)
    moved = set((simulator.server["item"] != start).any(1).nonzero().flatten().tolist())
    drawn: set[int] = set()
    for number in range(12):
        s = AmongDrawn(data.chunk(np.array([number])), 0, "ce", ALL, 5, 6, "last")
        drawn |= set(s.item.tolist())
    assert moved
    assert moved <= drawn
    assert len(drawn) < 200


# -- clients, server, wire --


def test_yogi_is_the_papers_rule_in_plain_loops():
    data = tiny_world()
    method = FedOpt(**MF, server_optimiser="yogi", bias_correction=False, tau=0.01)
    plain = FedOpt(**MF | {"server_lr": 1.0}, server_optimiser="sgd", beta1=0.0)
    simulator = Simulator(method, data)
    m, v = 0.0, np.full((40, 4), 0.01**2)
    for round, d in enumerate(mean_changes(plain, simulator, 3)):
        m = 0.9 * m + 0.1 * d
        v = v - 0.01 * d**2 * np.sign(v - d**2)
        expected = simulator.server["item"].numpy() + 0.1 * m / (np.sqrt(v) + 0.01)
        simulator.round(round)
        np.testing.assert_allclose(simulator.server["item"].numpy(), expected, atol=1e-12)


def mean_changes(plain: FedOpt, simulator: Simulator, rounds: int) -> Iterator[np.ndarray]:
    """What all clients would change on average from where another simulation stands."""
    for round in range(rounds):
        other = Simulator(plain, simulator.data)
        other.server = other.server | {"item": simulator.server["item"].clone()}
        other.cohorts[0].state.per_user["user"].copy_(simulator.cohorts[0].state.per_user["user"])
        other.round(round)
        yield (other.server["item"] - simulator.server["item"]).numpy()


def test_no_change_is_longer_than_the_clip():
    data = tiny_world()
    method = FedOpt(**SASREC, loss="ce", clip=0.1)
    chunk, server = data.chunk(data.clients), method.init_server(data.world)
    state, down = method.init_clients(data.world, chunk), method.broadcast(server, data.clients, 0)
    _, payload = method.local(state, down, chunk, 0)
    square = sum(reduction.value.flatten(1).square().sum(1) for reduction in payload.values())
    norms = square.sqrt()
    assert float(norms.max()) == pytest.approx(0.1)
    assert not norms[data.positives < 2].any()


def test_eight_bits_change_little():
    data = tiny_world()
    method = FedOpt(**SASREC, loss="ce", clip=0.5, server_optimiser="sgd")
    exact = run(method, data, 3)["server.item"]
    rough = run(method, data, 3, stages=parse_stages("quantise=8"))["server.item"]
    gap = (rough - exact).abs().max()
    assert 0 < gap < 0.02 * (exact - method.trainer.init_items(data.world)).abs().max()


def test_clients_per_round():
    data = tiny_world()
    method = FedOpt(**MF, clients_per_round=5)
    sizes = {len(method.plan(data.world, {}, round).train) for round in range(4)}
    assert sizes == {5}
    assert len(FedOpt(**MF, clients_per_round=50).plan(data.world, {}, 0).train) == 12


def test_moments_stay_at_the_server():
    data = tiny_world()
    method = FedOpt(**MF)
    assert set(method.broadcast(method.init_server(data.world), data.clients, 0).shared) == {"item"}


def test_softmax_is_for_sequences():
    with pytest.raises(FedrecError, match="use bce or bpr with mf"):
        FedOpt(loss="ce")


OF_SEQUENCES = {
    "length": 20,
    "dropout": 0.5,
    "sampled": 6,
    "blocks": 1,
    "heads": 2,
    "block_kind": "ligr",
    "crop": "random",
    "personal_steps": 1,
    "personal_lr": 0.5,
}
OF_STEPS = {"epochs": 3, "early_exit": 0.1, "optimiser": "adam", "lr_item": 0.5, "weight_decay_dense": 0.1}


@pytest.mark.parametrize("backbone", ["mf", "ncf", "linear"])
@pytest.mark.parametrize("name", OF_SEQUENCES)
def test_what_only_sequences_have_is_refused_with_another_backbone(backbone, name):
    value = OF_SEQUENCES[name]
    with pytest.raises(FedrecError, match=f"^{name}={value} needs backbone=sasrec: {backbone} reads no sequences$"):
        FedOpt(backbone=backbone, **{name: value})
    FedOpt(backbone=backbone, **{name: getattr(FedOpt(), name)})
    assert getattr(build_method("fedopt", backbone="sasrec", params={name: value}), name) == value


@pytest.mark.parametrize("backbone", FedOpt.info.backbones)
@pytest.mark.parametrize("name", OF_STEPS)
def test_what_only_local_steps_read_is_refused_with_a_gradient(backbone, name):
    value = OF_STEPS[name]
    with pytest.raises(FedrecError, match=f"^{name}={value} needs sends=change: a gradient is computed once"):
        build_method("fedopt", backbone=backbone, params={name: value})
    changed = build_method("fedopt", backbone=backbone, params={name: value, "sends": "change"})
    assert getattr(changed, name) == value


def test_no_more_items_are_drawn_than_there_are():
    world = tiny_world().world
    FedOpt(**SASREC, loss="ce", sampled=40).init_server(world)
    with pytest.raises(
        FedrecError, match="sampled=41 is more than the 40 items there are; use at most 40, or 0 for all"
    ):
        FedOpt(**SASREC, loss="ce", sampled=41).init_server(world)


@pytest.mark.parametrize("backbone", FedOpt.info.backbones)
def test_every_backbone_has_defaults_of_its_own(backbone):
    assert build_method("fedopt", backbone=backbone).backbone == backbone


# -- the server's rate at the end --


def test_the_servers_rate_falls_over_the_last_rounds():
    steady, falling = FedOpt(rounds=20), FedOpt(rounds=20, cooldown=0.25)
    rates = [falling._rate_at(round) / falling.server_lr for round in range(20)]
    assert rates[:16] == [1.0] * 16
    assert rates[15:] == pytest.approx([1.0, 0.8, 0.6, 0.4, 0.2])
    assert {steady._rate_at(round) for round in range(20)} == {steady.server_lr}


# -- the mean of the server's models --


def test_averaging_changes_scores_alone():
    """Training goes on from the latest model: uploads and the server's model are the same to the last bit."""
    data = tiny_world()
    plain, averaged = (run(FedOpt(**SASREC, loss="ce", averaging=keep), data, 4) for keep in (0.0, 0.7))
    common = {name: value for name, value in plain.items() if name != "scores"}
    assert_close({name: averaged[name] for name in common}, common, 0.0, "server")
    assert not torch.allclose(averaged["scores"], plain["scores"])


def test_averaging_sends_nothing_more():
    data = tiny_world()
    plain, averaged = (Simulator(FedOpt(**SASREC, loss="ce", averaging=keep), data) for keep in (0.0, 0.7))
    logs = [(log.bytes_up, log.bytes_down) for log in (plain.round(0), averaged.round(0))]
    assert logs[0] == logs[1]
    offered = [side.server_side.offer(data.clients, 1, torch.arange(40)).shared for side in (plain, averaged)]
    assert offered[0].keys() == offered[1].keys()


# -- the private vector --


def test_a_private_vector_descends_the_loss_of_the_users_own_steps():
    """Against torch's own gradient, one user at a time."""
    data = tiny_world(per_user=(3, 15, 2, 7, 1, 9, 4, 5, 3, 6, 2, 8))
    method = FedOpt(**SASREC, loss="ce", personal_steps=3, personal_lr=0.5)
    model = method.trainer.init_model(data.world)
    chunk = data.chunk(data.clients)
    found = method.trainer._vectors(torch.zeros(12, 0), model, chunk)
    table, dense = model["item"], {name: value for name, value in model.items() if name != "item"}
    for place in range(12):
        items = torch.from_numpy(chunk.context.items[chunk.context.ptr[place] : chunk.context.ptr[place + 1]])[-5:]
        hidden, own = method.model.encode(table[items], dense), torch.zeros(4, dtype=table.dtype)
        for _ in range(3 if len(items) > 1 else 0):
            own = own.detach().requires_grad_()
            loss = torch.nn.functional.cross_entropy((hidden[:-1] + own) @ table.T, items[1:])
            own = own.detach() - 0.5 * torch.autograd.grad(loss, own)[0]
        assert torch.allclose(found[place], hidden[-1] + own, atol=1e-12)


def test_nothing_of_a_private_vector_is_uploaded():
    """Not a name, not a bit: uploads, states and the server are what they are without one; scores are not."""
    data = tiny_world()
    found = []
    for steps in (0, 4):
        method = FedOpt(**SASREC, loss="ce", personal_steps=steps)
        simulator = Simulator(method, data)
        chunk, state = data.chunk(data.clients), simulator.cohorts[0].state
        down = simulator.server_side.method.broadcast(simulator.server, data.clients, 0)
        kept, payload = method.local(state, down, chunk, 0)
        uploads = {name: part.value for name, part in payload.items()}
        for round in range(2):
            simulator.round(round)
        found.append((uploads, kept, simulator.server, all_scores(simulator, 2)))
    (up, kept, server, scores), (own_up, own_kept, own_server, own_scores) = found
    assert_close(own_up, up, 0.0, "uploads")
    assert_close(own_server, server, 0.0, "server")
    assert own_kept.per_client.keys() == kept.per_client.keys()
    assert own_kept.per_user["user"].shape == kept.per_user["user"].shape == (12, 0)
    assert not torch.allclose(scores, own_scores)
