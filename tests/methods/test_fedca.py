"""FedCA: all checks of the suite, the same one client at a time, and the methods that it contains as special cases."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import product

import numpy as np
import pytest
import torch

from fedrec.errors import FedrecError
from fedrec.experiment.checkpoint import restore, tensors_of
from fedrec.experiment.params import build_method
from fedrec.federation.clients import ClientData
from fedrec.federation.contract import Down, State
from fedrec.federation.noise import Laplace
from fedrec.federation.simulator import Simulator
from fedrec.federation.stages import Clip
from fedrec.methods import FedAvg, FedMF, Local
from fedrec.methods.mixture.fedca import FedCA
from fedrec.methods.mixture.fedca_weights import complementarity, represent
from fedrec.testing import MethodTests, Watched, assert_close, outcome, run, tiny_world
from fedrec.training.samples import negatives
from methods import naive
from methods.naive_base import by_index

MF = {"dim": 5, "lr": 0.05, "epochs": 2, "batch": 16, "components": 3}
NCF = {**MF, "dim": 4, "backbone": "ncf", "weight_decay_dense": 0.01}
MANY = {"aggregated_fraction": 0.7, "interpolation": 0.6, "alpha": 0.4, "beta": 0.6}


# -- one client at a time, one pair at a time --


def upright(vector):
    return vector * np.sign(vector[np.abs(vector).argmax()])


def picture(method, table, items, drawn):
    """The vectors of one client, as many as its rows have dimensions."""
    mode = method.complementarity
    if mode == "raw":
        return [table[items].mean(0) if len(items) else np.zeros(method.dim)]
    rows = table[np.concatenate([items, drawn])] if mode == "right-greedy" else table[items]
    if len(rows) == 0:
        return []
    left = mode.startswith("left")
    u, s, vt = np.linalg.svd(rows if left else rows - rows.mean(0), full_matrices=False)
    found = []
    for k in range(min(method.components, len(s))):
        if s[k] < 1e-6 * s[0] or s[0] < 1e-12:
            break
        vector = upright(u[:, k] if left else vt[k])
        if mode == "left-global":
            vector, small = np.zeros(len(table)), vector
            vector[items] = small
        found.append(vector)
    return found


def dot(u, v):
    """Of vectors of any lengths: what is missing is zero."""
    shared = min(len(u), len(v))
    return float(np.clip(u[:shared] @ v[:shared], -1, 1))


def angle(method, u, v):
    k = method.components
    if method.complementarity == "raw":
        size = np.linalg.norm(u[0]) * np.linalg.norm(v[0])
        return math.acos(dot(u[0], v[0]) / size) if size else math.pi / 2
    u, v = (list(x) + [np.zeros(1)] * (k - len(x)) for x in (u, v))
    if method.complementarity.startswith("left"):
        return sum(math.acos(dot(a, b)) for a, b in zip(u, v, strict=True)) / k
    cosine = np.array([[dot(a, b) for b in v] for a in u])
    if method.complementarity == "right-principal":
        return float(np.arccos(np.clip(np.linalg.svd(cosine)[1], -1, 1)).mean())
    total = 0.0
    for _ in range(k):
        row, column = np.unravel_index(cosine.argmax(), cosine.shape)
        total += math.acos(cosine[row, column])
        cosine = np.delete(np.delete(cosine, row, 0), column, 1)
    return total / k


def alike(method, mine, other, start):
    if method.similarity == "paper":
        return 1 / (1 + ((mine - other) ** 2).sum())
    scores = []
    for table in (mine, other, start):
        centred = table - table.mean(0)
        scores.append(centred @ upright(np.linalg.svd(centred)[2][0]))
    if method.similarity == "pca1":
        scores = [score * (1 if score @ scores[2] >= 0 else -1) for score in scores]
    s = 1 / (1 + np.linalg.norm(scores[0] - scores[1]))
    return 1.0 if s > 0.9 else s


def nearest_mixture(point):
    """The projection onto the simplex: bisection for what must be taken off."""
    low, high = point.min() - 1, point.max()
    for _ in range(200):
        middle = (low + high) / 2
        low, high = (middle, high) if np.maximum(point - middle, 0).sum() > 1 else (low, middle)
    return np.maximum(point - low, 0)


def mixture(method, u, tables, pictures, sizes, start):
    """The row of weights of client u."""
    n, alpha, beta = len(tables), method.alpha, method.beta
    size = np.array(sizes if method.shares == "samples" and sum(sizes) else [1.0] * n)
    pi = size / size.sum()
    s = np.array([1.0 if u == v else alike(method, tables[u], tables[v], start) for v in range(n)])
    phi = np.array([0.0 if u == v else angle(method, pictures[u], pictures[v]) for v in range(n)])
    c = np.cos(phi) if method.outer == "cos" else np.sin(phi)
    if method.weights == "eq5":
        return nearest_mixture((2 * pi + 2 * alpha * s + beta * c) / (2 * (1 + alpha)))
    return nearest_mixture(pi + alpha * s + beta / 2 * c if method.weights == "eq8" else pi + alpha * c + beta * s)


class Composite(naive.Federation):
    """Every client starts from what it holds; those who are aggregated take over their mixture."""

    def composite(self, rounds):
        method, data = self.method, self.data
        served, near = list(self.clients), {}
        if method.interpolate == "both":  # the aggregate that arrived last
            near = dict.fromkeys(range(len(self.clients)), self.server["item"])
        start = self.server["item"].numpy()
        for round in range(rounds):
            plan = method.plan(data.world, {}, round)
            for number in plan.train:
                naive.train(method, self.clients[number], data, int(number), round, near.get(int(number)))
                served[number] = self.clients[number]
            tensors = [self.clients[k].held() for k in plan.uploads()]
            tables = [held["item"].numpy() for held in tensors]
            pictures, sizes = [], []
            for number, table in zip(plan.uploads(), tables, strict=True):
                chunk = data.chunk(np.array([number]))
                drawn = negatives(chunk, round).flatten().numpy()
                listed = chunk.items if method.complementarity == "right-greedy" else np.unique(chunk.items)
                pictures.append(picture(method, table, listed, drawn))
                sizes.append(5.0 * len(chunk.items))
            for u, number in enumerate(plan.uploads()):
                w = mixture(method, u, tables, pictures, sizes, start)
                mixed = {name: sum(w[v] * held[name] for v, held in enumerate(tensors)) for name in tensors[0]}
                rho = method.interpolation
                both = {name: rho * value + (1 - rho) * mixed[name] for name, value in tensors[u].items()}
                near |= {int(number): mixed["item"]} if near else {}
                user = self.clients[number].user.detach()
                served[number] = self.holding(user, both)
                self.clients[number] = self.holding(user, both if method.interpolate == "both" else mixed)
        return served


class FedCATests(MethodTests):
    def reference(self, data: ClientData, rounds: int) -> dict[str, torch.Tensor]:
        federation = Composite(self.method, data)
        served = federation.composite(rounds)
        scores = by_index(data, torch.cat([client.everything() for client in served]))
        return {"user.user": federation.users(), "scores": scores, **federation.own()}


class TestPaper(FedCATests):
    method = FedCA(**MF | MANY | FedCA.info.presets["paper"])


class TestReleased(FedCATests):
    method = FedCA(**MF | FedCA.info.presets["released"] | MANY)


class TestProximal(FedCATests):
    method = FedCA(**MF | MANY | {"epochs": 5}, interpolate="inference", proximal=0.1, early_exit=0.05)


class TestProximalMixture(FedCATests):
    """Training starts from the own mixture, and every row of it is drawn to the aggregate."""

    # plain steps: where a row has reached the aggregate, Adam makes whole steps of rounding errors
    method = FedCA(**MF | MANY | {"epochs": 5, "optimiser": "sgd"}, interpolate="both", proximal=0.1, early_exit=0.05)


class TestProximalMixtureNcf(FedCATests):
    method = FedCA(**NCF | MANY | {"optimiser": "sgd"}, interpolate="both", proximal=0.1)


class TestPrincipalNcf(FedCATests):
    # two components: three of four dimensions always share two, and arccos is as rough as 1e-8 at these angles of 0
    method = FedCA(
        **NCF | MANY | {"components": 2, "early_exit": 0.05, "epochs": 4},
        complementarity="right-principal",
        outer="sin",
        similarity="pca1-raw",
    )


class TestGlobalNcf(FedCATests):
    method = FedCA(**NCF, **MANY, complementarity="left-global", weights="eq8", interpolate="inference", proximal=0.05)


class TestRaw(FedCATests):
    method = FedCA(**MF, **MANY, complementarity="raw", shares="equal", weights="eq8")


def test_adam_draws_every_row_to_the_aggregate():
    data, method = tiny_world(), FedCA(**MF | MANY, interpolate="both", proximal=0.1)
    world, chunk = data.world, data.chunk(np.arange(12))
    generator = torch.Generator().manual_seed(4)
    tables, aggregates = torch.randn(2, 12, world.items, 5, generator=generator, dtype=torch.float64)
    federation, client = Composite(method, data), method.trainer.init_users(world, data.users)
    found = method._fit_near(aggregates, client, {"item": tables.clone()}, chunk, 0)[1]["item"]
    for number, expected in enumerate(found):
        alone = federation.holding(client[number : number + 1], {"item": tables[number]})
        naive.train(method, alone, data, number, 0, aggregates[number])
        assert torch.allclose(alone.held()["item"], expected, rtol=1e-10, atol=1e-10)
        assert (expected != tables[number]).all(), "rows without samples move as well"


def test_sequences_are_drawn_to_the_aggregate():
    method = FedCA(backbone="sasrec", dim=4, epochs=1, batch=16, components=3, **MANY, interpolate="both", proximal=0.1)
    near, free = run(method, tiny_world(), 2)["scores"], run(replace(method, proximal=0.0), tiny_world(), 2)["scores"]
    assert near.isfinite().all()
    assert not torch.allclose(near, free)


# -- special cases --

ALONE = {"alpha": 0.0, "beta": 0.0, "interpolation": 0.0, "aggregated_fraction": 1.0}
TRAINING = {"dim": 4, "init_std": 0.3, "batch": 16, "lr": 0.05, "epochs": 2, "optimiser": "adam"}


@pytest.mark.parametrize("backbone", ["mf", "ncf"])
@pytest.mark.parametrize("weights", ["eq5", "eq8", "released"])
def test_shares_alone_are_fedavg(backbone, weights):
    common = {**TRAINING, "backbone": backbone, "weight_decay_dense": 0.01}
    data = tiny_world(empty=True)
    average = run(FedAvg(**common), data, 3)
    composite = run(FedCA(**common, **ALONE, init="normal", weights=weights), data, 3)
    for name in ("user.user", "scores"):
        assert_close({name: composite[name]}, {name: average[name]}, 1e-9, "against FedAvg")
    for table in composite["client.item"]:
        assert_close({"item": table}, {"item": average["server.item"]}, 1e-9, "every client has the mean")


def test_equal_shares_alone_are_fedmf():
    data = tiny_world(empty=True)
    mean = run(FedMF(**TRAINING), data, 3)
    composite = run(FedCA(**TRAINING, **ALONE, init="normal", shares="equal"), data, 3)
    for name in ("user.user", "scores"):
        assert_close({name: composite[name]}, {name: mean[name]}, 1e-9, "against FedMF")


@pytest.mark.parametrize("backbone", ["mf", "ncf"])
@pytest.mark.parametrize("participation", [1.0, 0.5])
def test_a_client_that_keeps_its_own_is_local(backbone, participation):
    common = {**TRAINING, "backbone": backbone}
    data = tiny_world(empty=True, participation=participation)
    method = FedCA(**common, init="normal", interpolation=1.0, weight_decay_dense=0.0)
    composite, alone = run(method, data, 3), run(Local(**common), data, 3)
    assert_close({name: composite[name] for name in alone}, alone, 0, "against Local")


def test_one_client_is_local():
    data = tiny_world(per_user=(15,))
    for interpolate in ("both", "inference"):
        method = FedCA(**TRAINING, init="normal", interpolate=interpolate)
        composite, alone = run(method, data, 3), run(Local(**TRAINING), data, 3)
        assert_close({name: composite[name] for name in alone}, alone, 1e-12, "one client")


# -- the steps --


def test_interpolation_example():
    method = FedCA(dim=2, interpolation=0.8)
    state = State({"item": torch.tensor([[[1.0, 2.0]]])})
    down = Down(own={"item": torch.tensor([[[3.0, -2.0]]])})
    chunk = tiny_world(per_user=(3,)).chunk(np.array([0]))
    mixed = method.receive(state, down, chunk, 0).per_client
    assert torch.allclose(mixed["item"], torch.tensor([[[1.4, 1.2]]]))
    kept = replace(method, interpolate="inference").receive(state, down, chunk, 0).per_client
    assert torch.equal(kept["item"], down.own["item"])
    assert torch.allclose(kept["served.item"], mixed["item"])


def test_all_train_and_a_part_is_aggregated():
    data = tiny_world()
    method = FedCA(**MF, aggregated_fraction=0.6)
    plans = [method.plan(data.world, {}, round) for round in range(6)]
    for plan in plans:
        assert len(plan.train) == 12
        assert len(plan.uploads()) == 7
        assert np.array_equal(plan.uploads(), np.unique(plan.uploads()))
    assert len({tuple(plan.uploads()) for plan in plans}) > 1, "drawn afresh in every round"
    assert len(replace(method, aggregated_fraction=0.01).plan(data.world, {}, 0).uploads()) == 1
    half = method.plan(replace(data.world, participation=0.5), {}, 0)
    assert len(half.uploads()) == 3
    assert set(half.uploads()) <= set(half.train)


def test_everybody_is_drawn_equally_often():
    world = tiny_world().world
    method = FedCA(aggregated_fraction=0.5)
    times = np.bincount(np.concatenate([method.plan(world, {}, round).uploads() for round in range(400)]))
    assert times.min() > 150
    assert times.max() < 250


def test_who_is_not_aggregated_keeps_its_own_table():
    data = tiny_world()
    method = FedCA(**MF, aggregated_fraction=0.5, interpolation=0.5)
    composite = Simulator(method, data)
    composite.round(0)
    alone = Simulator(replace(method, interpolation=1.0), data)
    alone.round(0)
    same = (
        (composite.cohorts[0].state.per_client["item"] == alone.cohorts[0].state.per_client["item"]).flatten(1).all(1)
    )
    outside = np.setdiff1d(np.arange(12), method.plan(data.world, {}, 0).uploads())
    assert torch.equal(same.nonzero().flatten(), torch.from_numpy(outside))


def test_bytes_example():
    """Table 7 on ML-100K in 64 bits: 210.25 KB down, 210.75 KB up, and here one number more, the sample count."""
    data = tiny_world(items=1682, per_user=(5, 3))
    simulator = Simulator(FedCA(aggregated_fraction=1.0, epochs=1), data)
    log = simulator.round(0)
    assert log.bytes_down == 2 * 215_296 == 2 * 210.25 * 1024
    assert log.bytes_up == 2 * (210.75 * 1024 + 8)


@pytest.mark.parametrize(
    ("alpha", "beta", "weights", "sent"),
    [
        (0.5, 0.0, "eq5", {"item", "samples"}),
        (0.0, 0.5, "eq5", {"item", "samples", "picture"}),
        (0.5, 0.0, "released", {"item", "samples", "picture"}),
        (0.0, 0.5, "released", {"item", "samples"}),
    ],
)
def test_only_what_is_needed_is_sent(alpha, beta, weights, sent):
    watched = Watched(FedCA(**MF, alpha=alpha, beta=beta, weights=weights))
    simulator = Simulator(watched.as_method, tiny_world())
    simulator.round(0)
    assert {name for trip in watched.trips for name in trip.payload} == sent


@pytest.mark.parametrize("method", [TestPaper.method, TestReleased.method, TestGlobalNcf.method])
def test_a_checkpoint_fits_a_fresh_simulator(method):
    """Names and shapes are the same before the first round and after any other, at any participation."""
    for participation in (1.0, 0.5, 0.01):
        data = tiny_world(participation=participation)
        old, fresh = Simulator(method, data), Simulator(method, data)
        for number in range(3):
            old.round(number)
        restore(fresh, {name: value.clone() for name, value in tensors_of(old).items()})
        assert_close(outcome(fresh, 3), outcome(old, 3), 0, "restored")


def test_the_released_start_is_common_to_all():
    world = tiny_world().world
    method = FedCA(**FedCA.info.presets["released"])
    users = method.trainer.init_users(world, np.arange(50))
    assert bool((users == users[0]).all())
    assert float(method.trainer.init_items(world).std()) == pytest.approx(1, abs=0.1)


def test_the_uniform_start_has_its_range():
    world = tiny_world(items=500).world
    method = FedCA(dim=16)
    for start in (method.trainer.init_items(world), method.trainer.init_users(world, np.arange(200))):
        assert float(start.abs().max()) < 0.25
        assert float(start.abs().max()) > 0.24
        assert float(start.mean()) == pytest.approx(0, abs=0.01)
    assert len(method.trainer.init_users(world, np.arange(200)).unique(dim=0)) == 200


@pytest.mark.parametrize(("backbone", "preset"), list(product(["mf", "ncf"], ["paper", "released"])))
def test_presets_train_as_published(backbone, preset):
    method = build_method("fedca", backbone=backbone, preset=preset)
    published = {"dim": 16, "optimiser": "adam", "lr": 0.01, "epochs": 10, "batch": 256, "rounds": 100}
    assert {name: getattr(method, name) for name in published} == published
    assert method.trainer.rates == {"user": 0.01, "item": 0.01, "dense": 0.01}
    assert (method.weight_decay_dense, method.components) == (1e-3, 4)
    assert method.early_exit == (1e-4 if preset == "released" else 0)


@pytest.mark.parametrize("preset", ["paper", "released"])
def test_privacy_stages_act_on_every_upload(preset):
    method = FedCA(**MF | FedCA.info.presets[preset] | {"aggregated_fraction": 0.5})
    for stages in ((Laplace(0.1),), (Clip(1.0), Laplace(0.05))):
        noised = run(method, tiny_world(empty=True), 2, stages=stages)
        assert bool(noised["scores"].isfinite().all())
        assert not torch.equal(noised["scores"], run(method, tiny_world(empty=True), 2)["scores"])


def test_float32_follows_float64():
    method = FedCA(**MF, **MANY)
    rough = run(method, tiny_world(dtype=torch.float32), 2)
    assert rough["client.item"].dtype == rough["server.mixed.item"].dtype == torch.float32
    assert_close({"scores": rough["scores"]}, {"scores": run(method, tiny_world(), 2)["scores"]}, 1e-3, "float32")


def test_the_order_of_item_numbers_matters_only_where_it_must():
    """Left vectors in a client's own order depend on it; nothing else does."""
    tables = torch.from_numpy(np.random.default_rng(0).normal(size=(2, 8, 4)))
    items = (torch.tensor([0, 1, 2, 5]), torch.tensor([1, 2, 6, 7]))
    order = torch.from_numpy(np.random.default_rng(1).permutation(8))
    place = torch.argsort(order)
    for mode in ("left-local", "left-global", "right-principal", "raw"):
        before = torch.stack([represent(t, i, 2, mode) for t, i in zip(tables, items, strict=True)])
        moved = [(t[order], place[i].sort().values) for t, i in zip(tables, items, strict=True)]
        after = torch.stack([represent(t, i, 2, mode) for t, i in moved])
        same = torch.allclose(complementarity(before, mode), complementarity(after, mode))
        assert same == (mode != "left-local")


@pytest.mark.parametrize(
    "wrong",
    [
        {"alpha": -1.0},
        {"beta": -0.1},
        {"interpolation": 1.5},
        {"aggregated_fraction": 0.0},
        {"components": 0},
        {"proximal": -1.0},
        {"early_exit": -1.0},
    ],
)
def test_settings_out_of_range_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(FedrecError, match=next(iter(wrong))):
        FedCA(**wrong)  # type: ignore[arg-type]
