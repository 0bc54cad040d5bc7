"""FedRKG: the suite, a naive loop with automatic gates, published figures, and what it becomes without guidance."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedrec.errors import FedrecError
from fedrec.evaluation import Evaluation
from fedrec.evaluation.groups import TASTE, by_activity
from fedrec.experiment.observers import observer_of
from fedrec.experiment.observers.guidance import changes, gate_means, gates_by_group, groups_of
from fedrec.federation.clients import ClientData
from fedrec.federation.contract import Down, State
from fedrec.federation.declarations import OwnNoise
from fedrec.federation.loop import Progress, Rules, Score, run_rounds
from fedrec.federation.simulator import Simulator
from fedrec.methods import FedMF, Local
from fedrec.methods.personal.fedrap import FedRAP
from fedrec.methods.personal.fedrkg import GATE_SAMPLES, FedRKG
from fedrec.methods.personal.gate import gate_logits, guide_
from fedrec.methods.personal.noised_descent import clip
from fedrec.privacy import own_noise
from fedrec.privacy.accountant import zcdp
from fedrec.testing import MethodTests, all_scores, assert_close, run, tiny_world
from fedrec.training.local_training import LocalMethod
from fedrec.training.samples import Samples
from methods import naive
from methods.naive_base import bce, bpr, descend, draws, mean, stacked, taking_part

OWN = torch.tensor([[1.0, 0, -1], [0.5, 0.5, 0]], dtype=torch.float64)
COMMON = torch.tensor([[0.0, 1, 1], [1, -1, 0]], dtype=torch.float64)
SMALL = {"dim": 4, "init_std": 0.3, "batch": 16, "lr": 0.1}
OFTEN = {**SMALL, "interval": 2, "beta": 0.7, "lr_gate": 0.5, "gate_epochs": 2}


class Client(naive.Client):
    """With a gate."""

    def __init__(self, *args) -> None:
        super().__init__(*args)
        self.weight = nn.Parameter(torch.zeros(3 * self.item.shape[1], dtype=self.item.dtype))
        self.bias = nn.Parameter(torch.zeros(1, dtype=self.item.dtype))

    def fused(self, common: Tensor, beta: float) -> Tensor:
        own = self.item.detach()
        gate = torch.sigmoid(torch.cat([own, common, own - common], 1) @ self.weight + self.bias)
        return beta * own + (1 - beta) * 2 * gate[:, None] * common

    def learn_gate(self, method: FedRKG, data: ClientData, number: int, round: int, common: Tensor) -> None:
        drawn = draws(method, data, number, GATE_SAMPLES + round)
        steps = torch.optim.SGD([self.weight, self.bias], lr=method.lr_gate)
        for epoch in range(method.gate_epochs):
            for batch in drawn.epoch(epoch):
                rows = self.fused(common, method.beta)
                logits = self.rated(batch.user, rows[batch.item])
                if batch.other is None:
                    loss = bce(logits, batch.label, method.reduction)
                else:
                    loss = bpr(logits, self.rated(batch.user, rows[batch.other]), method.reduction)
                descend(loss, self, steps)


def reference(method: FedRKG, data: ClientData, rounds: int) -> dict[str, Tensor]:
    federation = naive.Federation(method, data, Client)
    clients, common = federation.clients, federation.server["item"]
    for round in range(rounds):
        for number in taking_part(data, round):
            federation.train(number, round)
        if (round + 1) % method.interval:
            continue
        common = mean([client.item.detach() for client in clients])
        for number, client in enumerate(clients):
            if method.gate:
                client.learn_gate(method, data, number, round, common)
            client.item.data = client.fused(common, method.beta).detach()
    gates = [{"gate": client.weight, "gate_bias": client.bias} for client in clients]
    own = federation.own() | (stacked(gates) if method.gate else {})
    user = {"user.user": federation.users()} if method.model.has_user else {}
    return {"server.item": common, "scores": federation.scores(received=False), **own, **user}


class FedRKGTests(MethodTests):
    def reference(self, data: ClientData, rounds: int) -> dict[str, Tensor]:
        return reference(self.method, data, rounds)


class TestFedRKG(FedRKGTests):
    method = FedRKG(**OFTEN)


class TestFedRKGNcf(FedRKGTests):
    method = FedRKG(**OFTEN, backbone="ncf")


class TestFedRKGLinear(FedRKGTests):
    method = FedRKG(**OFTEN, backbone="linear", reduction="mean")


class TestFedRKGScorer(FedRKGTests):
    method = FedRKG(**OFTEN, backbone="scorer")


class TestFedRKGPairwise(FedRKGTests):
    method = FedRKG(**OFTEN, loss="bpr")


class TestFedRKGPairwiseNcf(FedRKGTests):
    method = FedRKG(**OFTEN, loss="bpr", backbone="ncf")
    still = ("client.bias1",)  # cancels


class TestFedRKGPlain(FedRKGTests):
    method = FedRKG(**OFTEN, gate=False)


class TestFedRKGReplaced(MethodTests):
    method = FedRKG(**SMALL, variant="GIE")


class TestFedRKGNoisedGradients(MethodTests):
    method = FedRKG(**OFTEN, dp="gradient", clip=0.5, noise=0.1)
    sampled_rows_only = False
    tolerance = 1e-9


class TestFedRKGNoisedUploads(MethodTests):
    method = FedRKG(**OFTEN, dp="output", clip=0.5, noise=0.1)
    sampled_rows_only = False


# -- published figures --


def test_commit_by_hand():
    weight, bias = torch.tensor([[0.1, 0, 0, 0, 0.2, 0, 0.3, 0, -0.1]]).double(), torch.tensor([[0.05]]).double()
    logits = gate_logits(OWN[None], COMMON, weight, bias)
    assert torch.allclose(logits, torch.tensor([0.85, -0.25]).double(), atol=1e-7)
    assert torch.allclose(torch.sigmoid(logits), torch.tensor([0.700567, 0.437823]).double(), atol=1e-6)
    table = OWN[None].clone()
    guide_(table, COMMON, weight, bias, 0.9)
    expected = torch.tensor([[0.9, 0.140113, -0.759887], [0.537565, 0.362435, 0]]).double()
    assert torch.allclose(table[0], expected, atol=1e-6)


def plain_guidance(own: Tensor, beta: float) -> Tensor:
    state = State({"item": own[None].clone()}, {})
    chunk = tiny_world(len(own), per_user=(1,)).chunk(np.array([0]))
    return (
        FedRKG(dim=3, beta=beta, gate=False)
        .receive(state, Down(shared={"item": COMMON}), chunk, 99)
        .per_client["item"][0]
    )


def test_plain_guidance_is_a_gradient_step():
    """On lambda/2 |P - P_g|^2, of size (1 - beta) / lambda (proposition 1)."""
    found = plain_guidance(OWN, 0.9)
    assert torch.allclose(found, torch.tensor([[0.9, 0.1, -0.8], [0.55, 0.35, 0]]).double(), atol=1e-12)
    strength, step = 2.0, 0.1 / 2.0
    assert step == 0.05
    assert torch.allclose(found, OWN - step * strength * (OWN - COMMON), atol=1e-12)
    generator = torch.Generator().manual_seed(0)
    own = torch.randn(2, 3, dtype=torch.float64, generator=generator)
    assert torch.allclose(plain_guidance(own, 0.35), own - (0.65 / 7) * 7 * (own - COMMON), atol=1e-12)


def two_items(**options) -> ClientData:
    """Item 0 liked, item 1 not."""
    world = tiny_world(2, per_user=(1,), **options).world
    return ClientData.build(
        world, np.array([0]), np.array([0]), users=np.array([0]), client_ptr=np.array([0, 1]), negatives=1
    )


@pytest.mark.parametrize("compiled", [True, False])
def test_gate_step_by_hand(compiled):
    method = FedRKG(dim=3, beta=0.9, gate_epochs=1, lr_gate=1.0)
    user = torch.tensor([[1.0, -1, 2]]).double()
    gate = {"gate": torch.zeros(1, 9).double(), "gate_bias": torch.zeros(1, 1).double()}
    state = State({"item": OWN[None].clone(), **gate}, {"user": user})
    chunk = two_items(compiled=compiled).chunk(np.array([0]))
    new = method.receive(state, Down(shared={"item": COMMON}), chunk, 99)
    total, count = chunk.observed["loss"]
    assert float(total) == pytest.approx(1.969240, abs=1e-6)
    assert count == 2
    slope = [-0.007007, 0.027492, 0.034499, 0.054983, -0.089482, -0.034499, -0.061990, 0.116974, 0.068997]
    assert torch.allclose(-new.per_client["gate"][0], torch.tensor(slope).double(), atol=1e-6)
    assert float(-new.per_client["gate_bias"]) == pytest.approx(0.020485, abs=1e-6)
    logits = gate_logits(OWN[None], COMMON, new.per_client["gate"], new.per_client["gate_bias"])
    assert torch.allclose(logits, torch.tensor([0.461961, -0.381648]).double(), atol=1e-6)
    expected = torch.tensor([[0.9, 0.122696, -0.777304], [0.531146, 0.368854, 0]]).double()
    assert torch.allclose(new.per_client["item"][0], expected, atol=1e-6)
    after = F.binary_cross_entropy_with_logits((expected * user).sum(1), torch.tensor([1.0, 0]).double())
    assert 2 * float(after) == pytest.approx(1.933078, abs=1e-5)


def test_clipping_by_hand():
    """Of a gradient with norm 0.5 * sqrt(2) the clipping leaves 0.1."""
    method = FedRKG(dim=2, dp="gradient", clip=0.1, noise=1e-9, lr=1.0, gate=False)
    # sigmoid(0) - label = -+ 1/2 at a zero table: the gradient of row i is -+ e / 2
    user = torch.tensor([[0.6, 0.8]]).double()
    state = State({"item": torch.zeros(1, 2, 2).double()}, {"user": user.clone()})
    new, _ = method.local(state, Down(), two_items().chunk(np.array([0])), 0)
    gradient = torch.stack([-user[0] / 2, user[0] / 2])
    assert torch.allclose(new.per_client["item"][0], -gradient * 0.1 / gradient.norm(), atol=1e-7)
    rows, owner = torch.tensor([[0.3, 0], [0, 0.4], [3, 4], [0, 0.02]]), torch.tensor([0, 0, 1, 2])
    expected = torch.tensor([[0.06, 0], [0, 0.08], [0.06, 0.08], [0, 0.02]])
    assert torch.allclose(clip(rows, owner, 3, 0.1), expected)
    assert FedRKG(lr=0.1, interval=100, clip=0.1).update_sensitivity() == pytest.approx(2.0)


def test_accounting_by_hand():
    rho, epsilon = zcdp(0.1 / 0.001, 1, 1e-5)
    assert rho == pytest.approx(5000)
    assert epsilon == pytest.approx(5479.85, abs=0.01)
    rho, epsilon = zcdp(0.1 / 1.0, 1000, 1e-5)
    assert rho == pytest.approx(5)
    assert epsilon == pytest.approx(20.174, abs=0.001)
    added = OwnNoise("", scale=1.0, sensitivity=0.1, steps=1000, counted="steps", delta=1e-5)
    assert own_noise.looser_epsilon(added) == pytest.approx(20.174, abs=0.001)
    assert own_noise.epsilon(added) < own_noise.looser_epsilon(added), "exact composition is tighter"
    spent = FedRKG(dp="output", clip=0.1, noise=1.0).noise_spent(tiny_world())
    assert spent is not None
    assert (spent.sensitivity, spent.steps) == (0.2, 10), "data are replaced: two uploads lie up to two clips apart"
    assert "10 uploads" in own_noise.sentence(spent)


def numbers(method: LocalMethod, data: ClientData) -> dict[str, float]:
    """What one client holds by the counters of a run: between rounds, with what comes down at once, to score."""
    simulator = Simulator(method, data)
    simulator.round(0)
    counted = simulator.state_bytes_per_client() | simulator.wire.ledger.per_client_round()
    kept = counted["kept_per_client"] / 4
    return {
        "training": kept,
        "guidance": kept + counted["largest_down"] / 4,
        "inference": counted["to_score_per_client"] / 4,
    }


def test_memory_is_that_of_the_formulae():
    data = tiny_world(3706, dtype=torch.float32)
    table, dim = 3706 * 32, 32
    gated = numbers(FedRKG(interval=1), data)
    assert gated == {"training": 118_721, "guidance": 237_313, "inference": table + dim}
    assert gated["training"] == table + 4 * dim + 1
    plain = numbers(FedRKG(interval=1, gate=False), data)
    assert plain == {"training": table + dim, "guidance": 2 * table + dim, "inference": table + dim}
    both = numbers(FedRAP(), data)  # a table of its own beside the common one, at all times
    assert both["guidance"] == 2 * table + dim + 1 == 237_217


# -- what it becomes --


def test_without_guidance_it_is_local():
    data = tiny_world(participation=0.5)
    alone = run(Local(**SMALL, reduction="sum"), data, 3)
    for method in (FedRKG(**SMALL, variant="PIE"), FedRKG(**SMALL, interval=1000)):
        found = run(method, data, 3)
        assert_close({name: found[name] for name in alone}, alone, 1e-12, "against local")


def test_replaced_every_round_it_is_fedmf():
    data = tiny_world(participation=0.5)
    theirs = run(FedMF(**SMALL, reduction="sum"), data, 3)
    found = run(FedRKG(**SMALL, variant="GIE"), data, 3)
    assert_close({name: found[name] for name in theirs}, theirs, 1e-9, "against fedmf")


def test_plain_guidance_is_a_gate_that_never_learns():
    data = tiny_world()
    plain = run(FedRKG(**OFTEN | {"gate": False}), data, 4)
    still = run(FedRKG(**OFTEN | {"gate_epochs": 0}), data, 4)
    assert_close({name: still[name] for name in plain}, plain, 1e-12, "gate of one half against none")
    moved = run(FedRKG(**OFTEN), data, 4)
    assert not torch.allclose(moved["scores"], plain["scores"], atol=1e-4)


def test_everybody_is_guided_in_guidance_rounds_alone():
    data = tiny_world(participation=0.25, dtype=torch.float32)
    simulator = Simulator(FedRKG(**OFTEN), data)
    table = 40 * 4 * 4
    logs = [simulator.round(round) for round in range(4)]
    assert [log.bytes_up for log in logs] == [0, 12 * table, 0, 12 * table]
    assert [log.bytes_down for log in logs] == [0, 12 * table, 0, 12 * table]


def test_gate_rates_are_searched_on_the_grid_of_the_paper():
    low, high = map(float, FedRKG.info.space["lr_gate"].split(".."))
    assert (low, high) == (1e-4, 1e-1)


def test_never_stops_right_before_guidance():
    observer = observer_of(FedRKG(interval=100))
    assert [round for round in range(400) if not observer.may_stop(round)] == [98, 198, 298, 398]
    assert observer_of(FedRKG(variant="PIE")).may_stop(98)


def test_before_the_commit():
    data, method = tiny_world(), FedRKG(**OFTEN)
    simulator = Simulator(method, data)
    simulator.round(0)
    seen: list[Tensor] = []
    simulator.round(1, lambda round: seen.append(all_scores(simulator, 2)))
    alone = Simulator(FedRKG(**OFTEN | {"variant": "PIE"}), data)
    for round in range(2):
        alone.round(round)
    assert torch.equal(seen[0], all_scores(alone, 2))
    assert not torch.allclose(seen[0], all_scores(simulator, 2), atol=1e-3)


def test_gates_by_group():
    data, method = tiny_world(), FedRKG(**OFTEN | {"lr_gate": 2.0})
    simulator = Simulator(method, data)
    labels = by_activity(np.diff(data.user_ptr)[np.argsort(data.users)])
    start = gate_means(simulator, labels)
    assert {label: entry["users"] for label, entry in start.items()} == {0: 4, 1: 4, 2: 4}
    assert all(entry["gate"] == 0.5 and entry["logit"] == 0 for entry in start.values())
    for round in range(2):
        simulator.round(round)
    found = gate_means(simulator, labels, np.array([3, 5]))
    held, user = simulator.cohorts[0].state.per_client, np.flatnonzero(labels == 2)
    place = [int(np.flatnonzero(data.users == one)[0]) for one in user]
    logits = gate_logits(held["item"], simulator.server["item"], held["gate"], held["gate_bias"])[place][:, [3, 5]]
    assert found[2]["logit"] == pytest.approx(float(logits.mean()))
    assert found[2]["gate"] == pytest.approx(float(torch.sigmoid(logits).mean()))
    groups, names = gates_by_group(simulator, 2), ("cold", "warm", "distinct", "followers")
    bare = [f"{kind} {name}" for name in names for kind in ("gate", "logit")]
    assert [name for name in groups if name[-1].isalpha()] == bare, "the usual size of each group"
    assert {"gate cold 10%", "logit warm 20%"} <= {*groups}, "other shares say so; twelve users are no 300"
    with pytest.raises(FedrecError, match="gate=true"):
        gate_means(Simulator(FedRKG(**SMALL, gate=False), data), labels)


@pytest.mark.parametrize("compiled", [False, True])
def test_gates_are_those_of_the_commit(compiled: bool):
    """Of (5): trained for this commit, of the table before it. Looking changes nothing."""
    data, method = tiny_world(compiled=compiled), FedRKG(**OFTEN | {"lr_gate": 2.0})
    simulator, observer = Simulator(method, data), observer_of(method)
    simulator.round(0)
    tables: list[Tensor] = []

    def look(round: int) -> None:
        tables.append(simulator.cohorts[0].state.per_client["item"].clone())
        observer.before_answer(simulator, round)

    simulator.round(1, look)
    held, common = simulator.cohorts[0].state.per_client, simulator.server["item"]
    gates = torch.sigmoid(gate_logits(tables[0], common, held["gate"], held["gate_bias"])).mean(1)
    cold, warm = by_activity(np.diff(data.user_ptr)) == 0, by_activity(np.diff(data.user_ptr)) == 2
    found = observer.figures(simulator, 1)
    assert found["gate cold"] == pytest.approx(float(gates[cold].mean()), rel=1e-12)
    assert found["gate warm"] == pytest.approx(float(gates[warm].mean()), rel=1e-12)
    assert not observer.figures(simulator, 0), "gates speak in guidance rounds"
    assert_close({"scores": all_scores(simulator, 2)}, {"scores": run(method, data, 2)["scores"]}, 0, "after a look")


def test_what_a_commit_changes_by_group():
    """Relative to before, of each group's mean; improved and declined among those whom it changed."""
    data = tiny_world()
    simulator = Simulator(FedRKG(**OFTEN), data)
    names, _, labels = next(found for found in groups_of(simulator) if found[0] == TASTE)
    nothing = np.zeros(0)
    before = Evaluation(data.users, {"ndcg@10": np.full(12, 0.5)}, {}, (nothing, nothing), nothing)
    step = np.where(labels == 0, 0.1, -0.25)
    step[np.flatnonzero(labels == 0)[:3]] = 0.0
    after = Evaluation(data.users, {"ndcg@10": 0.5 + step}, {}, (nothing, nothing), nothing)
    found = changes(simulator, before, after)
    assert names == TASTE
    assert found["ndcg@10 change distinct"] == pytest.approx(0.1), "three of six users by a fifth"
    assert found["ndcg@10 change followers"] == pytest.approx(-0.5)
    assert (found["improved"], found["declined"]) == (pytest.approx(3 / 9), pytest.approx(6 / 9))


def test_noise_on_gradients_falls_on_all_rows():
    """Its size is that of the steps taken: rate * noise * sqrt(steps), with samples or without."""
    data = tiny_world(500, per_user=(40,) * 12)
    method = FedRKG(dim=4, batch=64, lr=0.5, dp="gradient", clip=1e-9, noise=0.2, init_std=0.1)
    simulator = Simulator(method, data)
    start = simulator.cohorts[0].state.per_client["item"].clone()
    simulator.round(0)
    moved = simulator.cohorts[0].state.per_client["item"] - start
    touched = torch.zeros(12, 500, dtype=torch.bool)
    samples = Samples(data.chunk(np.arange(12)), 0, "bce", 64)
    touched[samples.order[samples.owner], samples.item] = True
    expected = 0.5 * 0.2 * 4**0.5  # 200 samples in batches of 64
    for rows in (moved[touched], moved[~touched]):
        assert float(rows.std()) == pytest.approx(expected, rel=0.05)
        assert abs(float(rows.mean())) < 0.01


def test_noised_uploads_leave_the_own_table_clean():
    data = tiny_world()
    settings = OFTEN | {"beta": 1.0, "gate": False}  # guidance that changes nothing
    clean = Simulator(FedRKG(**settings), data)
    noised = Simulator(FedRKG(**settings, dp="output", clip=0.2, noise=0.05), data)
    for simulator in (clean, noised):
        for round in range(2):
            simulator.round(round)
    own, seen = clean.cohorts[0].state.per_client["item"], noised.cohorts[0].state.per_client
    assert torch.equal(own, seen["item"])
    change = own - FedRKG(**settings).trainer.init_items(data.world)
    norm = change.flatten(1).norm(dim=1)[:, None, None]
    noise = seen["sent"] - (own - change) - change * (0.2 / norm).clamp(max=1)
    assert float(noise.std()) == pytest.approx(0.05, rel=0.1)
    assert torch.allclose(noised.server["item"], seen["sent"].mean(0))


@pytest.mark.parametrize("wrong", [{"beta": 1.5}, {"interval": 0}, {"clip": 0.0}, {"noise": 0.0}, {"delta": 1.0}])
def test_what_cannot_be_is_refused(wrong):
    with pytest.raises(FedrecError, match=next(iter(wrong))):
        FedRKG(**wrong)


def test_patience_waits_for_guidance():
    """Nothing improves after the first round: with a patience of 2 the run ends after round 3, not before guidance."""

    def evaluate(number: int) -> Score:
        return Score(-float(number), {}, 0.0)

    for interval, end in ((1000, 3), (4, 4)):
        method = FedRKG(**OFTEN | {"interval": interval})
        progress = Progress()
        rules = Rules(10, patience=2, may_stop=observer_of(method).may_stop)
        run_rounds(Simulator(method, tiny_world()), progress, rules, evaluate, lambda: None, lambda log, score: None)
        assert progress.stopped_early
        assert progress.next_round == end
