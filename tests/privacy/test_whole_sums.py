"""Noise in whole units: what is drawn, what it is added to, and what a sum of clients' shares has of it."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats

import fedrec
from conftest import Cli
from fedrec.errors import FedrecError
from fedrec.experiment.config import RunConfig
from fedrec.experiment.run_plan import plan_run
from fedrec.federation.clients import ClientData
from fedrec.federation.contract import Method, Rows
from fedrec.federation.discrete import (
    DiscreteGaussian,
    DiscreteSumGaussian,
    WholeClip,
    discrete_normal,
    in_whole_units,
    unit_of,
)
from fedrec.federation.noise import UploadContext, Values
from fedrec.federation.schema import preview_names
from fedrec.federation.secret import OwnSecret, Secret, SeededSecret
from fedrec.federation.simulator import Simulator
from fedrec.federation.stages import Clip, Stage, parse_stages
from fedrec.methods import FedMF, methods
from fedrec.methods.reference.popularity import Popularity
from fedrec.secure.simulated import simulated_sums
from fedrec.testing import run, tiny_world

SMALL = "synthetic@users=60+items=100+interactions=1200+seed=1"
FEDMF = FedMF(dim=4, lr=1.0, batch=16)


def whole(text: str) -> tuple[Stage, ...]:
    return in_whole_units(parse_stages(text))


def context(clients: int, secret: Secret, **reference: torch.Tensor) -> UploadContext:
    world = replace(tiny_world().world, clients=clients)
    return UploadContext(world, np.arange(clients), 0, reference, secret=secret)


# -- what is drawn --


@pytest.mark.parametrize("scale", [1.0, 3.0, 20.0])
@pytest.mark.parametrize("secret", [SeededSecret(3), OwnSecret(bytes(range(32)))], ids=["seeded", "own"])
def test_noise_is_a_discrete_gaussian(scale: float, secret: Secret) -> None:
    nothing = torch.zeros(4, 20_000, dtype=torch.float64)
    drawn = DiscreteGaussian(scale, unit=1.0).apply({"x": nothing}, context(4, secret))["x"]
    assert isinstance(drawn, torch.Tensor)
    drawn = drawn.flatten()
    assert torch.equal(drawn, drawn.round())
    numbers = np.arange(-int(2 * scale) - 1, int(2 * scale) + 2)
    every = np.arange(-int(20 * scale), int(20 * scale) + 1)
    chances = np.exp(-(numbers**2) / (2 * scale**2)) / np.exp(-(every**2) / (2 * scale**2)).sum()
    counts = np.array([int((drawn == number).sum()) for number in numbers])
    rest = len(drawn) - counts.sum(), 1 - chances.sum()
    found = stats.chisquare([*counts, rest[0]], len(drawn) * np.array([*chances, rest[1]]))
    assert found.pvalue > 1e-3


def test_a_wide_one_is_as_wide_as_it_says() -> None:
    count = 200_000
    drawn = discrete_normal(1e9, count, lambda places, turn: _words(places, turn), torch.device("cpu")) / 1e9
    assert stats.kstest(drawn.numpy(), "norm").pvalue > 1e-3


def _words(places: torch.Tensor, turn: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(turn)
    return torch.randint(-(1 << 63), (1 << 63) - 1, (3, len(places)), generator=generator)


# -- what it is added to --


def sparse(base: torch.Tensor) -> Rows:
    generator = torch.Generator().manual_seed(1)
    value = base[[2, 5, 5]] + torch.randn(3, 4, dtype=base.dtype, generator=generator)
    return Rows(base, torch.tensor([0, 0, 1]), torch.tensor([2, 5, 5]), value, 2)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("norm", [1e-3, 0.3, 1.0, 1e3])
def test_a_clip_in_whole_units_is_a_clip_that_rounds_towards_what_was_broadcast(
    norm: float, dtype: torch.dtype
) -> None:
    generator = torch.Generator().manual_seed(0)
    base = torch.randn(7, 4, dtype=dtype, generator=generator)
    values: Values = {"item": sparse(base), "net": torch.randn(2, 9, dtype=dtype, generator=generator)}
    unit, where = unit_of(norm), context(2, SeededSecret(0), item=base)
    cut, plain = WholeClip(norm, unit).apply(values, where), Clip(norm).apply(values, where)
    item, net = cut["item"], cut["net"]
    assert isinstance(item, Rows)
    assert isinstance(net, torch.Tensor)
    dense = WholeClip(norm, unit).apply(values | {"item": sparse(base).dense()}, where)["item"]
    assert torch.equal(item.dense(), dense)  # type: ignore[arg-type]
    for value in (item.dense(), net):
        assert torch.equal(value / unit, (value / unit).round())
    public = (base.double() / unit).round() * unit
    steps = torch.cat([(item.dense() - public).flatten(1), net], 1) / unit
    squares = [sum(int(step) ** 2 for step in row) for row in steps.tolist()]
    assert max(squares) <= (norm / unit) ** 2, "in whole numbers, without rounding"
    for name, tolerance in (("item", 3 * unit), ("net", 2 * unit)):
        one, other = cut[name], plain[name]
        one, other = (each.dense() if isinstance(each, Rows) else each for each in (one, other))
        assert float((one - other).abs().max()) <= tolerance + 3e-5 * norm + 1e-6 * (dtype == torch.float32)


# -- sums of shares --


def world(clients: int = 30, **options: Any) -> ClientData:
    return tiny_world(per_user=[3 + k % 5 for k in range(clients)], **options)


def masked(lost: float = 0.0, method: str = "fedmf") -> Any:
    return simulated_sums(method, lost, torch.device("cpu"))


def test_masked_or_assumed_a_sum_is_a_whole_number_of_units() -> None:
    stages = whole("clip=0.5,sum-gaussian=0.3")
    unit = unit_of(0.5)
    for blind in (masked(), None):
        simulator = Simulator(FEDMF, world(), stages, blind=blind)
        seen: dict[str, torch.Tensor] = {}
        aggregate = simulator.server_side.aggregate

        def look(update: Any, *rest: Any, seen: Any = seen, aggregate: Any = aggregate) -> Any:
            seen |= {name: total.clone() for name, total in update.totals.items()}
            return aggregate(update, *rest)

        simulator.server_side.aggregate = look  # type: ignore[method-assign]
        simulator.round(0)
        assert torch.equal(seen["item"] / unit, (seen["item"] / unit).round())


def noise_of(stages: str, lost: float = 0.0, blind: Any = None, silos: Any = None) -> tuple[torch.Tensor, int]:
    """What is in a noised sum of counts beside the counts, and how many uploads were lost."""
    data = world(40, items=3000, silos=silos)
    clear = Simulator(Popularity(), data, parse_stages("clip=3"), lost_uploads=lost)
    noised = Simulator(Popularity(), data, whole(stages), lost_uploads=lost, blind=blind)
    logs = clear.round(0), noised.round(0)
    assert logs[0].lost == logs[1].lost
    return (noised.server["popularity"] - clear.server["popularity"]).flatten(), logs[0].lost


@pytest.mark.parametrize("lost", [0.0, 0.1, 0.2])
@pytest.mark.parametrize("computed", [True, False])
def test_what_is_left_of_the_noise_is_never_less_than_was_promised(lost: float, computed: bool) -> None:
    blind = masked(lost, "popularity") if computed else None
    noise, gone = noise_of("clip=3,sum-gaussian=2", lost, blind)
    assert (gone > 0) == (lost > 0)
    spread = (len(noise) * (noise / 2).square().mean()).item()  # of a chi-square distribution, at the least
    assert spread > stats.chi2.ppf(1e-3, len(noise))
    fewest = Simulator(Popularity(), world(40), lost_uploads=lost).count_fewest(40)
    assert float(noise.std()) == pytest.approx(2 * ((40 - gone) / fewest) ** 0.5, rel=0.05)
    assert abs(float(noise.mean())) < 0.2


@pytest.mark.parametrize("computed", [True, False])
def test_a_sum_with_too_little_noise_is_given_up(computed: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    simulator = Simulator(FEDMF, world(), whole("clip=1,sum-gaussian=1"), blind=masked() if computed else None)
    monkeypatch.setattr(simulator, "draw_arrivals", lambda uploads, number: uploads[1:])
    before = simulator.server["item"].clone()
    assert simulator.round(0).lost == 30
    assert torch.equal(simulator.server["item"], before)


def test_shares_too_coarse_to_add_up_are_refused() -> None:
    stages = (WholeClip(1.0, 0.25), DiscreteSumGaussian(1.0, unit=0.25))
    with pytest.raises(FedrecError, match=r"share of the noise is .* units wide, too coarse .* --secure-bits"):
        run(FEDMF, world(), 1, stages=stages)


# -- which methods, and how it is asked for --

SUMMING = [
    method
    for method in methods().values()
    if not method.info.centralised and not method().disclosure.gathers and method.info.name != "local"
]


@pytest.mark.parametrize("method", SUMMING, ids=lambda method: method.info.name)
def test_every_method_of_sums_and_means_takes_a_budget_on_them(method: type[Method]) -> None:
    attributes = torch.eye(40, 6).double()
    stages = whole("clip=1,sum-gaussian=1")
    simulator = Simulator(method(**method().disclosure.covered_with), tiny_world(), stages, attributes=attributes)
    sent, unprotected = preview_names(simulator.server_side, simulator.client_setup())
    assert sent
    assert not unprotected
    simulator.round(0)


BUDGET = ("--privacy", "clip=1", "--epsilon", 4, "--delta", 1e-5)


def test_a_run_says_unit_relation_and_trust(cli: Cli, tmp_path: Path) -> None:
    words = ("run", "fedmf", "--data", SMALL, "--rounds", 2, "--set", "dim=4", *BUDGET, "--adjacency", "zero-out")
    outcome = cli(*words, "--secure-sums", "--quiet", "--out", "run")
    assert outcome.code == 0, outcome
    privacy = json.loads((tmp_path / "run" / "summary.json").read_text())["privacy"]
    assert privacy["unit"] == "a client, which is one user"
    assert (privacy["adjacency"], privacy["other_adjacency"]["adjacency"]) == ("zero-out", "replace")
    assert privacy["trust"] == "the server sees nothing but sums"
    assert privacy["epsilon"] < privacy["colluding"]["epsilon"] < privacy["other_adjacency"]["epsilon"]
    for part in ("which items there are", "sizes and times of messages", "hyper-parameters", "filters"):
        assert part in privacy["not_covered"]
    for said in ("unit: a client, which is one user", "by replace, epsilon", "20% of clients tell the server"):
        assert said in outcome.out


def test_assumed_sums_say_so_and_have_the_noise_of_computed_ones() -> None:
    options: dict[str, Any] = {"rounds": 2, "dim": 4, "privacy": "clip=1", "epsilon": 4.0, "delta": 1e-5}
    assumed = fedrec.run("fedmf", SMALL, **options, assume_secure_sums=True).summary
    computed = fedrec.run("fedmf", SMALL, **options, secure_sums=True).summary
    assert assumed["privacy"]["stages"] == computed["privacy"]["stages"]
    assert assumed["privacy"]["trust"].endswith("which is assumed here")
    assert any("secure sums are assumed here" in note for note in assumed["notes"])


def test_a_sum_of_so_many_needs_far_less_noise_than_single_uploads() -> None:
    """The same scale, but once in the sum instead of once in each of its parts."""
    config = RunConfig("fedmf", data=SMALL, rounds=2, params={"dim": 4}, privacy="clip=1", epsilon=4.0, delta=1e-5)
    one, all_together = plan_run(config), plan_run(replace(config, assume_secure_sums=True))
    assert str(one.stages[1]).split("(")[1] == str(all_together.stages[1]).split("(")[1]
    plain = run(FEDMF, world(), 1, stages=parse_stages("clip=1"))["server.item"]
    apart, together = (
        (run(FEDMF, world(), 1, stages=whole(stages))["server.item"] - plain).std()
        for stages in ("clip=1,gaussian=2", "clip=1,sum-gaussian=2")
    )
    assert float(apart / together) == pytest.approx(30**0.5, rel=0.2)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("fedmf", *BUDGET, "--adjacency", "zero-out"), "--adjacency zero-out is for noise on sums"),
        (("fedmf", "--secure-sums", "--assume-secure-sums"), "computed or assumed, not both"),
        (("fedca", *BUDGET, "--assume-secure-sums"), "fedca needs each client's own upload"),
        (("fedmf", "--privacy", "clip=1,sum-gaussian=1"), "add --secure-sums, or use gaussian"),
        (("fedavg", *BUDGET, "--assume-secure-sums"), "add --set shares=equal"),
    ],
)
def test_what_does_not_go_together_is_refused_in_one_line(cli: Cli, words: Any, says: str) -> None:
    outcome = cli("run", *words, "--data", SMALL, "--rounds", 2, "--out", "run")
    assert (outcome.code, len(outcome.err.splitlines())) == (2, 1), outcome
    assert says in outcome.err
