"""Noise that can wait for the sum: of the same distribution as that of every client, and only where nobody can tell."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy import stats

from fedrec.federation import wire
from fedrec.federation.accumulator import Accumulator
from fedrec.federation.contract import Down, Gather, Mean, Reduction, Rows, Sum, World
from fedrec.federation.noise import Gaussian, Laplace
from fedrec.federation.stages import Clip, Quantise, Stage
from fedrec.federation.wire import Wire
from fedrec.methods import FedMF
from fedrec.testing import SINGLE, WHOLE, assert_close, run, tiny_world

SHAPE = (40, 50)
CLIENTS = 3


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every round has too many draws."""
    monkeypatch.setattr(wire, "DRAWS", 0)


def received(stages: list[Stage], kind: type, value: torch.Tensor | Rows, round: int = 0) -> torch.Tensor:
    accumulator, door = Accumulator(), Wire(World(items=SHAPE[0], clients=CLIENTS, dtype=torch.float64), stages)
    for k in range(CLIENTS):
        door.send_up({"x": kind(value[[k]])}, Down(), np.array([k]), "all", round, accumulator)
    return door.collect(accumulator, round).ups(door.world.dtype)["x"]


@pytest.mark.parametrize("kind", [Sum, Mean])
@pytest.mark.parametrize("noise", [Laplace(0.7), Gaussian(0.7)])
def test_the_same_distribution(at_once: None, monkeypatch: pytest.MonkeyPatch, noise: Stage, kind: type) -> None:
    """Of three clients, where a sum of Laplace draws is still far from normal."""
    plain = torch.zeros(CLIENTS, *SHAPE, dtype=torch.float64)
    late = [received([noise], kind, plain, round) for round in range(10)]
    monkeypatch.setattr(wire, "DRAWS", 1 << 62)
    each = [received([noise], kind, plain, round) for round in range(10)]
    found, wanted = (torch.stack(part).flatten().numpy() for part in (late, each))
    assert not np.array_equal(found, wanted)
    assert stats.ks_2samp(found, wanted).pvalue > 0.01
    size = 0.7 * (2 if isinstance(noise, Laplace) else 1) ** 0.5 * CLIENTS**0.5 / (CLIENTS if kind is Mean else 1)
    assert found.std() == pytest.approx(size, rel=0.02)
    near = np.corrcoef([part.flatten().numpy() for part in late])[np.triu_indices(10, 1)]
    assert np.abs(near).max() < 0.12  # rounds are independent


def test_what_comes_before_the_noise_is_done_to_every_client(at_once: None) -> None:
    value = torch.ones(CLIENTS, *SHAPE, dtype=torch.float64)
    clipped = received([Clip(1.0), Laplace(1e-12)], Sum, value)
    torch.testing.assert_close(clipped, torch.full(SHAPE, CLIENTS / np.prod(SHAPE) ** 0.5, dtype=torch.float64))


def test_chunks_do_not_matter(at_once: None) -> None:
    data, method = tiny_world(), FedMF(dim=4)
    whole, single = (run(method, data, 2, memory=memory, stages=[Laplace(0.1)]) for memory in (WHOLE, SINGLE))
    assert_close(single, whole, 1e-12, "one chunk or many")
    assert not torch.equal(whole["server.item"], run(method, data, 2)["server.item"])


@pytest.mark.parametrize(
    ("reduction", "stages"),
    [
        (Gather(torch.zeros(1, 4)), [Laplace(1.0)]),
        (Mean(torch.zeros(1, 4), weight=torch.ones(1)), [Laplace(1.0)]),
        (Sum(torch.zeros(1, 4, dtype=torch.int64)), [Laplace(1.0)]),
        (Sum(torch.zeros(1, 4)), [Laplace(1.0), Quantise(8)]),
        (Sum(torch.zeros(1, 4)), [Clip(1.0)]),
    ],
)
def test_where_more_than_a_plain_sum_is_seen_every_client_draws(
    at_once: None, reduction: Reduction, stages: list[Stage]
) -> None:
    accumulator, door = Accumulator(), Wire(World(items=4, clients=1), stages)
    door.send_up({"x": reduction}, Down(), np.array([0]), "all", 0, accumulator)
    assert not accumulator.owed


def test_few_draws_are_every_clients_own() -> None:
    accumulator, door = Accumulator(), Wire(World(items=4, clients=1), [Laplace(1.0)])
    door.send_up({"x": Sum(torch.zeros(1, 4))}, Down(), np.array([0]), "all", 0, accumulator)
    assert not accumulator.owed


@pytest.mark.parametrize("order", [("late", "own"), ("own", "late")])
def test_a_cohort_that_draws_its_own_noise_takes_nothing_from_one_whose_noise_waits(
    at_once: None, order: tuple[str, str]
) -> None:
    """Three clients send a plain sum; a fourth, of another shape, sends something beside it: 2 = sqrt(3 + 1)."""
    found = []
    for round in range(10):
        accumulator, door = Accumulator(), Wire(World(items=SHAPE[0], clients=4, dtype=torch.float64), [Gaussian(1.0)])
        zeros = torch.zeros(3, *SHAPE, dtype=torch.float64)
        sent: dict[str, tuple[dict[str, Reduction], np.ndarray]] = {
            "late": ({"x": Sum(zeros)}, np.arange(3)),
            "own": ({"x": Sum(zeros[:1]), "y": Gather(zeros[:1, 0])}, np.array([3])),
        }
        for cohort in order:
            door.send_up(sent[cohort][0], Down(), sent[cohort][1], cohort, round, accumulator)
        found.append(door.collect(accumulator, round).ups(door.world.dtype)["x"])
    assert float(torch.stack(found).std()) == pytest.approx(2.0, rel=0.02)
