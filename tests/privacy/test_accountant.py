"""The accountant against closed forms written down here, an independent accountant, and what must always hold."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import brentq
from scipy.stats import norm

from fedrec.errors import FedrecError
from fedrec.federation.discrete import DiscreteGaussian, DiscreteSumGaussian, WholeClip, in_whole_units
from fedrec.federation.noise import Gaussian, Laplace
from fedrec.federation.stages import Clip, Quantise, Stage, parse_stages
from fedrec.privacy.accountant import epsilon_of, epsilon_of_rho, guarantee, noise_for, with_budget

MULTIPLIERS = st.floats(0.05, 100.0)
UPLOADS = st.integers(1, 5000)
DELTAS = st.sampled_from([1e-3, 1e-5, 1e-8])


def whole(text: str) -> tuple[Stage, ...]:
    return in_whole_units(parse_stages(text))


def analytic_gaussian(multiplier: float, delta: float) -> float:
    """Balle & Wang 2018, theorem 8: delta = Phi(s/2o - eo/s) - e^eps Phi(-s/2o - eo/s), here with s = 1."""

    def excess(epsilon: float) -> float:
        upper = norm.cdf(1 / (2 * multiplier) - epsilon * multiplier)
        lower = math.exp(epsilon + norm.logcdf(-1 / (2 * multiplier) - epsilon * multiplier))
        return float(upper - lower - delta)

    return float(brentq(excess, 0.0, 1e4, xtol=1e-12)) if excess(0.0) > 0 else 0.0


def zcdp_bound(multiplier: float, uploads: int, delta: float) -> float:
    """Bun & Steinke 2016: T Gaussian mechanisms are T / 2o^2-zCDP, hence (rho + 2 sqrt(rho log 1/delta), delta)-DP."""
    rho = uploads / (2 * multiplier**2)
    return rho + 2 * math.sqrt(rho * math.log(1 / delta))


@pytest.mark.parametrize("delta", [1e-3, 1e-5, 1e-7])
@pytest.mark.parametrize("multiplier", [0.3, 1.0, 4.0, 20.0, 1e4])
def test_one_upload_is_the_analytic_gaussian_mechanism(multiplier: float, delta: float) -> None:
    assert epsilon_of(multiplier, 1, delta) == pytest.approx(analytic_gaussian(multiplier, delta), rel=1e-9, abs=1e-12)


@settings(max_examples=60)
@given(MULTIPLIERS, UPLOADS, DELTAS)
def test_many_uploads_stay_below_the_zcdp_bound(multiplier: float, uploads: int, delta: float) -> None:
    found = epsilon_of(multiplier, uploads, delta)
    assert 0 <= found <= zcdp_bound(multiplier, uploads, delta)
    assert found <= uploads * epsilon_of(multiplier, 1, delta / uploads) * (1 + 1e-9)  # plain composition


@pytest.mark.parametrize(("multiplier", "uploads"), [(1.0, 1), (2.0, 10), (5.0, 100), (30.0, 1000)])
def test_agrees_with_the_accountant_of_google(multiplier: float, uploads: int) -> None:
    dp = pytest.importorskip("dp_accounting")
    pld = pytest.importorskip("dp_accounting.pld")
    accountant = pld.PLDAccountant()
    accountant.compose(dp.GaussianDpEvent(multiplier), uploads)
    assert epsilon_of(multiplier, uploads, 1e-5) == pytest.approx(accountant.get_epsilon(1e-5), rel=1e-4)


@settings(max_examples=60)
@given(MULTIPLIERS, st.floats(1.01, 10.0), UPLOADS, st.integers(1, 1000), DELTAS)
def test_less_with_more_noise_and_more_with_more_uploads(
    multiplier: float, louder: float, uploads: int, further: int, delta: float
) -> None:
    here = epsilon_of(multiplier, uploads, delta)
    quieter, longer = epsilon_of(multiplier * louder, uploads, delta), epsilon_of(multiplier, uploads + further, delta)
    assert quieter < here or here == 0
    assert longer > here or longer == 0
    assert epsilon_of(multiplier, uploads, delta / 10) >= here


@settings(max_examples=40)
@given(st.floats(1e-3, 100.0), st.floats(0.01, 50.0), UPLOADS, DELTAS)
def test_noise_for_is_the_inverse_and_never_spends_more(
    clip: float, epsilon: float, uploads: int, delta: float
) -> None:
    scale = noise_for(clip, uploads, epsilon, delta)
    spent = epsilon_of_rho(uploads * (2 * clip) ** 2 / (2 * scale**2), delta)
    assert spent <= epsilon
    assert spent == pytest.approx(epsilon, rel=1e-6)
    exact = epsilon_of(scale / (2 * clip), uploads, delta)
    assert 0.8 * epsilon - 0.01 < exact < epsilon, "what noise in real numbers would give, a little less"


def test_hardly_any_noise_is_a_large_number_and_not_a_crash() -> None:
    assert 1e6 < epsilon_of(1e-4, 100, 1e-5) < math.inf
    assert epsilon_of(1e-3, 0, 1e-5) == 0.0


def test_a_budget_puts_its_noise_right_behind_the_clipping() -> None:
    stages = with_budget(parse_stages("clip=0.5,quantise=8"), 20, 3.0, 1e-5)
    assert [type(stage) for stage in stages] == [WholeClip, DiscreteGaussian, Quantise]
    found = guarantee(stages, 20, 1e-5)
    assert found.epsilon is not None
    assert found.epsilon <= 3.0
    assert found.epsilon == pytest.approx(3.0, rel=1e-6)
    assert found.uploads == 20


@pytest.mark.parametrize(
    ("stages", "why"),
    [
        ("", "no noise"),
        ("clip=1", "no noise"),
        ("clip=1,quantise=8", "no noise"),
        ("gaussian=1", "not clipped"),
        ("gaussian=1,clip=1", "not clipped"),
        ("clip=1,laplace=1", "Laplace"),
        ("laplace=1", "Laplace"),
    ],
)
def test_a_guarantee_that_is_none_says_why(stages: str, why: str) -> None:
    found = guarantee(parse_stages(stages), 10, 1e-5)
    assert found.epsilon is None
    assert found.delta is None
    assert why in found.reason


def test_the_tightest_clip_counts_and_what_follows_the_noise_is_free() -> None:
    plain = guarantee(whole("clip=1,gaussian=4"), 10, 1e-5)
    assert plain.epsilon == epsilon_of_rho(10 / 8, 1e-5)
    for stages in ("clip=1,clip=7,gaussian=4", "clip=7,clip=1,gaussian=4", "clip=1,gaussian=4,clip=9,quantise=4"):
        assert guarantee(whole(stages), 10, 1e-5).epsilon == plain.epsilon


@pytest.mark.parametrize(
    ("stages", "epsilon", "delta", "says"),
    [
        ((), 1.0, 1e-5, "clip"),
        ((Quantise(8),), 1.0, 1e-5, "clip"),
        ((Clip(1.0),), 0.0, 1e-5, "positive"),
        ((Clip(1.0),), -1.0, 1e-5, "positive"),
        ((Clip(1.0),), math.nan, 1e-5, "positive"),
        ((Clip(1.0),), math.inf, 1e-5, "positive"),
        ((Clip(1.0),), 1.0, None, "--delta"),
        ((Clip(1.0),), 1.0, 0.0, "--delta"),
        ((Clip(1.0),), 1.0, 1.0, "--delta"),
        ((Clip(1.0), Gaussian(1.0)), 1.0, 1e-5, "remove gaussian"),
        ((Clip(1.0), Laplace(1.0)), 1.0, 1e-5, "remove gaussian"),
    ],
)
def test_a_budget_that_cannot_be_kept_is_refused(
    stages: tuple[Clip | Gaussian | Laplace | Quantise, ...], epsilon: float, delta: float | None, says: str
) -> None:
    with pytest.raises(FedrecError, match=says):
        with_budget(stages, 10, epsilon, delta)


def test_noise_in_floating_point_numbers_has_no_epsilon() -> None:
    assert guarantee(parse_stages("clip=1,gaussian=4"), 10, 1e-5).epsilon is None
    assert "floating-point" in guarantee(parse_stages("clip=1,sum-gaussian=4"), 10, 1e-5).reason


@pytest.mark.parametrize("rho", [1e-4, 0.03, 1.2, 40.0])
def test_concentrated_privacy_becomes_epsilon_by_the_published_bound(rho: float) -> None:
    """Canonne, Kamath & Steinke 2020, proposition 12, minimised over a fine grid of orders."""
    orders = 1 + np.geomspace(1e-4, 1e6, 200_001)
    bound = rho * orders + np.log1p(-1 / orders) - (math.log(1e-5) + np.log(orders)) / (orders - 1)
    assert epsilon_of_rho(rho, 1e-5) == pytest.approx(max(0.0, float(bound.min())), rel=2e-4)


def test_colluding_clients_know_their_part_of_the_noise() -> None:
    stages = whole("clip=1,sum-gaussian=4")
    assert guarantee(stages, 3, 1e-5, honest=0.8).epsilon == epsilon_of_rho(3 * 4 / (2 * 16 * 0.8), 1e-5)
    local = whole("clip=1,gaussian=4")
    assert guarantee(local, 3, 1e-5, honest=0.8).epsilon == guarantee(local, 3, 1e-5).epsilon


def test_a_client_without_data_is_half_as_far_away() -> None:
    stages = whole("clip=1,sum-gaussian=4")
    assert guarantee(stages, 3, 1e-5, adjacency="zero-out").epsilon == epsilon_of_rho(3 / (2 * 16), 1e-5)
    assert "without its data" in guarantee(stages, 3, 1e-5, adjacency="zero-out").reason


@pytest.mark.parametrize("delta", [0.0, 1.0, 5.0, -1.0, math.nan])
def test_delta_is_a_probability(delta: float) -> None:
    with pytest.raises(FedrecError, match="between 0 and 1"):
        epsilon_of_rho(1.0, delta)
    with pytest.raises(FedrecError, match="between 0 and 1"):
        epsilon_of(1.0, 1, delta)


def test_noise_on_a_blind_sum_counts_as_noise_on_an_upload_and_rests_on_secure_sums() -> None:
    stages = with_budget(parse_stages("clip=0.5"), 1, 3.0, 1e-5, blind=True)
    assert isinstance(stages[1], DiscreteSumGaussian)
    found = guarantee(stages, 1, 1e-5)
    assert found.epsilon == pytest.approx(3.0, rel=1e-6)
    assert "secure aggregation" in found.reason
    assert guarantee(whole("clip=0.5,sum-gaussian=2"), 1, 1e-5).epsilon == epsilon_of_rho(1 / 8, 1e-5)


def test_uploads_that_cannot_oppose_need_less_noise() -> None:
    near, far = (with_budget(parse_stages("clip=0.5"), 1, 3.0, 1e-5, True, apart) for apart in (2**0.5, 2.0))
    assert near[1].scale * 2**0.5 == pytest.approx(far[1].scale)
    assert guarantee(near, 1, 1e-5, apart=2**0.5).epsilon == pytest.approx(3.0, rel=1e-6)
    assert guarantee(near, 1, 1e-5).epsilon > 3.5  # type: ignore[operator]


def test_what_clients_do_after_the_clipping_moves_a_sum() -> None:
    assert guarantee(whole("clip=1,sum-gaussian=4,quantise=8"), 1, 1e-5).epsilon is None
    with pytest.raises(FedrecError, match="last stage"):
        with_budget(parse_stages("clip=1,quantise=8"), 1, 1.0, 1e-5, blind=True)
