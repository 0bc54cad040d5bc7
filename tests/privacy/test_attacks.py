"""Attacks that must not beat the epsilon that is printed, each with a lower bound from trials.

The first is that of Mironov (2012): which floating-point numbers noise can reach tells two uploads apart. It has to
succeed on noise in floating-point numbers, or it shows nothing.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy.stats import beta

from fedrec.federation.contract import World
from fedrec.federation.discrete import in_whole_units
from fedrec.federation.noise import Gaussian, UploadContext, Values
from fedrec.federation.stages import Clip, Stage
from fedrec.privacy.accountant import guarantee, with_budget

TRIALS, ENTRIES, DELTA = 2000, 512, 1e-5
WORLD = World(items=10, clients=TRIALS, dtype=torch.float32, compiled=False)


def lower_bound(hits: int, alarms: int, trials: int = TRIALS) -> float:
    """Epsilon that is needed for so many hits and false alarms, with 95 % confidence (Clopper & Pearson 1934)."""
    least = float(beta.ppf(0.025, hits, trials - hits + 1)) if hits else 0.0
    most = float(beta.ppf(0.975, alarms + 1, trials - alarms)) if alarms < trials else 1.0
    return math.log((least - DELTA) / most) if least > DELTA else -math.inf


def best_bound(one: np.ndarray, other: np.ndarray) -> float:
    """By whether a test says yes, or by whether it says no, of either data set."""
    said = [(int(one.sum()), int(other.sum())), (int((~one).sum()), int((~other).sum()))]
    return max(max(lower_bound(a, b), lower_bound(b, a)) for a, b in said)


def uploads(stages: tuple[Stage, ...], present: bool, seed: int) -> torch.Tensor:
    """Of as many clients as there are trials, all of which have the same data: a step of norm 1, or none."""
    step = torch.full((TRIALS, ENTRIES), present * 2.0**-5, dtype=torch.float32)
    values: Values = {"x": step}
    context = UploadContext(replace(WORLD, seed=seed), np.arange(TRIALS), 0, {})
    for stage in stages:
        values = stage.apply(values, context)
    sent = values["x"]
    assert isinstance(sent, torch.Tensor)
    assert sent.dtype == torch.float32, "as it goes over the wire"
    return sent


def reachable_alone_without_a_step(sent: torch.Tensor) -> np.ndarray:
    """Whether a client sent a small number finer than the last bit of a step plus anything that cancels it.

    What is below half a step in size came of a number next to -2^-5 under the step, whose last bit is worth 2^-29.
    """
    small, bit = sent.double().abs() < 2.0**-6, 2.0**-29
    fine = (sent.double() / bit) != (sent.double() / bit).round()
    return (small & fine).any(1).numpy()  # type: ignore[no-any-return]


def towards_the_step(sent: torch.Tensor) -> np.ndarray:
    """The best test against noise that hides nothing but by its size: how far the upload goes along the step."""
    return (sent.double().sum(1) > ENTRIES * 2.0**-6).numpy()  # type: ignore[no-any-return]


@pytest.mark.parametrize("epsilon", [0.1, 0.5, 1.0])
def test_no_attack_on_single_uploads_beats_the_epsilon_that_is_printed(epsilon: float) -> None:
    stages = with_budget((Clip(1.0),), 1, epsilon, DELTA)
    printed = guarantee(stages, 1, DELTA).epsilon
    assert printed == pytest.approx(epsilon, rel=1e-6)
    sent = [uploads(stages, present, seed) for seed, present in enumerate((True, False))]
    for attack in (reachable_alone_without_a_step, towards_the_step):
        assert best_bound(*(attack(each) for each in sent)) <= printed


def test_the_attack_works_where_noise_is_in_floating_point_numbers() -> None:
    whole = with_budget((Clip(1.0),), 1, 0.5, DELTA)
    assert isinstance(whole[1], Gaussian)
    stages = (Clip(1.0), Gaussian(whole[1].scale))
    sent = [uploads(stages, present, seed) for seed, present in enumerate((True, False))]
    assert best_bound(*(reachable_alone_without_a_step(each) for each in sent)) > 2
    assert guarantee(stages, 1, DELTA).epsilon is None, "so none is printed"
    assert guarantee(in_whole_units(stages), 1, DELTA).epsilon == pytest.approx(0.5, rel=1e-6)


def test_the_bound_is_that_of_clopper_and_pearson() -> None:
    assert lower_bound(2000, 0) == pytest.approx(math.log((0.025 ** (1 / 2000) - DELTA) / (1 - 0.025 ** (1 / 2000))))
    assert lower_bound(0, 0) == -math.inf
    assert lower_bound(1000, 1000) < 0
