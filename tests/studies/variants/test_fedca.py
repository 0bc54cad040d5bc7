"""FedCA's variants: all checks of the suite, and the same one client at a time."""

from __future__ import annotations

from dataclasses import fields, replace
from itertools import product

import numpy as np
import pytest
import torch

from fedrec.errors import FedrecError
from fedrec.experiment.checkpoint import restore, tensors_of
from fedrec.experiment.params import build_method
from fedrec.federation.contract import Down, State
from fedrec.federation.noise import Laplace
from fedrec.federation.simulator import Simulator
from fedrec.federation.stages import Clip
from fedrec.methods import FedAvg, FedCA, Local
from fedrec.testing import Watched, assert_close, outcome, run, tiny_world
from fedrec_studies.variants.fedca import FedCAVariants, complementarity
from methods import naive
from methods.naive_fedca import MANY, MF, NCF, Composite, FedCATests

from .test_fedca_terms import represent

ALONE = {"alpha": 0.0, "beta": 0.0, "interpolation": 0.0, "aggregated_fraction": 1.0}
TRAINING = {"dim": 4, "init_std": 0.3, "batch": 16, "lr": 0.05, "epochs": 2, "optimiser": "adam"}


def test_without_a_choice_it_is_the_method():
    plain, variant = FedCA(**MF | MANY), FedCAVariants(**MF | MANY)
    assert {field.name: field.default for field in fields(FedCA)}.items() <= {
        field.name: field.default for field in fields(FedCAVariants)
    }.items()
    found, expected = (run(method, tiny_world(empty=True), 3) for method in (variant, plain))
    assert_close(found, expected, 0, "against the method")


class TestPaper(FedCATests):
    method = FedCAVariants(**MF | MANY | FedCAVariants.info.presets["paper"])


class TestReleased(FedCATests):
    method = FedCAVariants(**MF | FedCAVariants.info.presets["released"] | MANY)


class TestProximal(FedCATests):
    method = FedCAVariants(**MF | MANY | {"epochs": 5}, interpolate="inference", proximal=0.1, early_exit=0.05)


class TestProximalMixture(FedCATests):
    """Training starts from the own mixture, and every row of it is drawn to the aggregate."""

    # plain steps: where a row has reached the aggregate, Adam makes whole steps of rounding errors
    method = FedCAVariants(
        **MF | MANY | {"epochs": 5, "optimiser": "sgd"}, interpolate="both", proximal=0.1, early_exit=0.05
    )


class TestProximalMixtureNcf(FedCATests):
    method = FedCAVariants(**NCF | MANY | {"optimiser": "sgd"}, interpolate="both", proximal=0.1)


class TestPrincipalNcf(FedCATests):
    # two components: three of four dimensions always share two, and arccos is as rough as 1e-8 at these angles of 0
    method = FedCAVariants(
        **NCF | MANY | {"components": 2, "early_exit": 0.05, "epochs": 4},
        complementarity="right-principal",
        outer="sin",
        similarity="pca1-raw",
    )


class TestGlobalNcf(FedCATests):
    method = FedCAVariants(
        **NCF, **MANY, complementarity="left-global", weights="eq8", interpolate="inference", proximal=0.05
    )


class TestRaw(FedCATests):
    method = FedCAVariants(**MF, **MANY, complementarity="raw", shares="equal", weights="eq8")


def test_adam_draws_every_row_to_the_aggregate():
    data, method = tiny_world(), FedCAVariants(**MF | MANY, interpolate="both", proximal=0.1)
    world, chunk = data.world, data.chunk(np.arange(12))
    generator = torch.Generator().manual_seed(4)
    tables, aggregates = torch.randn(2, 12, world.items, 5, generator=generator, dtype=torch.float64)
    federation, client = Composite(method, data), method.trainer.init_users(world, data.users)
    found = method.trainer.fit_own(chunk, 0, client, {"item": tables.clone()}, towards=aggregates)[1]["item"]
    for number, expected in enumerate(found):
        alone = federation.holding(client[number : number + 1], {"item": tables[number]})
        naive.train(method, alone, data, number, 0, aggregates[number])
        assert torch.allclose(alone.lock()["item"], expected, rtol=1e-10, atol=1e-10)
        assert (expected != tables[number]).all(), "rows without samples move as well"


def test_sequences_are_drawn_to_the_aggregate():
    method = FedCAVariants(
        backbone="sasrec", dim=4, epochs=1, batch=16, components=3, **MANY, interpolate="both", proximal=0.1
    )
    near, free = run(method, tiny_world(), 2)["scores"], run(replace(method, proximal=0.0), tiny_world(), 2)["scores"]
    assert near.isfinite().all()
    assert not torch.allclose(near, free)


def test_one_client_is_local():
    data = tiny_world(per_user=(15,))
    for interpolate in ("both", "inference"):
        method = FedCAVariants(**TRAINING, init="normal", interpolate=interpolate)
        composite, alone = run(method, data, 3), run(Local(**TRAINING), data, 3)
        assert_close({name: composite[name] for name in alone}, alone, 1e-12, "one client")


@pytest.mark.parametrize("backbone", ["mf", "ncf"])
@pytest.mark.parametrize("weights", ["eq5", "eq8", "released"])
def test_shares_alone_are_fedavg(backbone, weights):
    common = {**TRAINING, "backbone": backbone, "weight_decay_dense": 0.01}
    data = tiny_world(empty=True)
    average = run(FedAvg(**common), data, 3)
    composite = run(FedCAVariants(**common, **ALONE, init="normal", weights=weights), data, 3)
    for name in ("user.user", "scores"):
        assert_close({name: composite[name]}, {name: average[name]}, 1e-9, "against FedAvg")
    for table in composite["client.item"]:
        assert_close({"item": table}, {"item": average["server.item"]}, 1e-9, "every client has the mean")


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
    watched = Watched(FedCAVariants(**MF, alpha=alpha, beta=beta, weights=weights))
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
    method = FedCAVariants(**FedCAVariants.info.presets["released"])
    users = method.trainer.init_users(world, np.arange(50))
    assert bool((users == users[0]).all())
    assert float(method.trainer.init_items(world).std()) == pytest.approx(1, abs=0.1)


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
    method = FedCAVariants(**MF | FedCAVariants.info.presets[preset] | {"aggregated_fraction": 0.5})
    for stages in ((Laplace(0.1),), (Clip(1.0), Laplace(0.05))):
        noised = run(method, tiny_world(empty=True), 2, stages=stages)
        assert bool(noised["scores"].isfinite().all())
        assert not torch.equal(noised["scores"], run(method, tiny_world(empty=True), 2)["scores"])


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


def test_training_starts_from_the_aggregate_and_scores_use_the_mixture():
    method = FedCAVariants(dim=2, interpolation=0.8, interpolate="inference")
    state = State({"item": torch.tensor([[[1.0, 2.0]]])})
    down = Down(own={"item": torch.tensor([[[3.0, -2.0]]])})
    kept = method.receive(state, down, tiny_world(per_user=(3,)).chunk(np.array([0])), 0).per_client
    assert torch.equal(kept["item"], down.own["item"])
    assert torch.allclose(kept["served.item"], torch.tensor([[[1.4, 1.2]]]))


def test_a_negative_pull_is_refused() -> None:
    with pytest.raises(FedrecError, match="proximal"):
        FedCAVariants(proximal=-1.0)
