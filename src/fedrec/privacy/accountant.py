"""What the noise on uploads guarantees: the privacy loss of a client over all its uploads.

An epsilon is printed for noise in whole units alone (`federation/discrete.py`). A discrete Gaussian of scale s on
uploads that lie at most D apart is D^2 / 2s^2-zero-concentrated differentially private (Canonne, Kamath & Steinke 2020,
theorem 14); so is a sum of clients' shares whose variances add up to s^2, but for a term of the order of
exp(-10 w^2), where w is the width of a share in units (Kairouz, Liu & Steinke 2021, proposition 14). Shares below 8
units are refused, so that the term is none. Over several uploads the losses add up, each allowed to depend on those
before, and dp-accounting turns their Renyi divergences into epsilon and delta.

Noise on single uploads holds against the server and everybody else. Noise on a sum holds against whoever sees nothing
but sums, so it rests on secure aggregation. Sampling of clients does not amplify: the server sees who takes part.

Neighbouring data are those in which one client's are replaced by any others (`replace`), or its upload by that of a
client without data (`zero-out`, the usual relation of federated learning). Two uploads of norm C are 2C apart, one and
an empty one C. A method may know that its uploads cannot lie 2C apart (`Disclosure.sensitivity`): where no entry is
ever negative, the product of two uploads u and v is not either, and |u - v|^2 = |u|^2 + |v|^2 - 2 u'v is at most 2 C^2.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal

import numpy as np
from scipy.special import log_ndtr, ndtr

from fedrec.errors import FedrecError, list_few
from fedrec.federation.discrete import BITS, DiscreteGaussian, DiscreteSumGaussian, in_whole_units
from fedrec.federation.noise import Gaussian, Laplace, SumGaussian
from fedrec.federation.stages import Clip, Stage

Adjacency = Literal["replace", "zero-out"]

# Not covered by epsilon, because it does not pass the wire.
NOT_COVERED = (
    "metrics, losses and clients' own state, which this folder contains; anything chosen by them, such as "
    "hyper-parameters, the clip and the method itself; which items there are and which users and items filters left "
    "out; who took part, sizes and times of messages; other runs on the same data"
)
LOCAL = "local: all uploads of one client, against any other data of that client"
BLIND = {
    "replace": "of the sum: holds where secure aggregation shows nothing else, against any other data of one client",
    "zero-out": "of the sum: holds where secure aggregation shows nothing else, against one client without its data",
}

_CLOSE = 1e-12  # relative width at which a bisection ends
# The search stops this near to the exact noise, so a little more is added: rounding must not overspend a budget.
_MARGIN = 1e-8
# Renyi orders from barely above 1 (tiny losses) to a million (huge ones): the best order varies with rho, and one
# outside the grid would only make the epsilon looser, never wrong.
_ORDERS = tuple(1 + np.geomspace(1e-4, 1e6, 600))


class NoAccountantError(FedrecError):
    """The package that composes privacy losses is not installed."""


@dataclass(frozen=True)
class Guarantee:
    """`epsilon` is None where the stages give no finite one, and `reason` says why."""

    epsilon: float | None
    delta: float | None
    uploads: int
    reason: str


def guarantee(
    stages: Sequence[Stage],
    uploads: int,
    delta: float,
    unprotected: Iterable[str] = (),
    apart: float = 2.0,
    adjacency: Adjacency = "replace",
    honest: float = 1.0,
) -> Guarantee:
    """Return the (epsilon, delta) that a client has after this many uploads.

    `unprotected`: what of them no noise reaches. `apart`: how many clipping norms apart two uploads of one client can
    be. `honest`: the share of a sum's noise that nobody knows; the rest is that of clients who say what they added.
    """
    if any(isinstance(stage, Gaussian | Laplace) and stage.only for stage in stages):
        return Guarantee(None, None, uploads, "noise on one upload leaves the others unprotected")
    # Noise of several stages is not composed: the first Gaussian alone is accounted for, which can only overstate the
    # loss.
    at = next((index for index, stage in enumerate(stages) if isinstance(stage, Gaussian)), len(stages))
    noise = stages[at] if at < len(stages) else None
    # whatever clients do after the clipping changes a sum before its noise comes, wherever that stage is written
    blind = isinstance(noise, SumGaussian)
    norm = _norm_of([stage for stage in stages if stage is not noise] if blind else stages[:at])
    if not isinstance(noise, Gaussian) or norm is None:
        return Guarantee(None, None, uploads, _explain_none(stages))
    if open_to_all := list_few(sorted(unprotected)):
        return Guarantee(None, None, uploads, f"no noise reaches {open_to_all}")
    if not isinstance(noise, DiscreteGaussian | DiscreteSumGaussian):
        return Guarantee(None, None, uploads, "floating-point noise proves nothing; clip right before it")
    # Colluding clients know their own shares, so only the variance of the honest ones hides anybody; scales go with its
    # root.
    unseen = noise.scale * (math.sqrt(honest) if blind else 1.0)
    # A client without data sends zeros, so one norm bounds the change; on single uploads even an empty one is seen,
    # hence `apart`.
    distance = norm * (1.0 if blind and adjacency == "zero-out" else apart)
    try:
        epsilon = epsilon_of_rho(uploads * distance**2 / (2 * unseen**2), delta)
    except NoAccountantError as error:  # noise was chosen by hand, which needs no package
        return Guarantee(None, None, uploads, str(error))
    return Guarantee(epsilon, delta, uploads, BLIND[adjacency] if blind else LOCAL)


def epsilon_of_rho(rho: float, delta: float) -> float:
    """Epsilon of rho-zero-concentrated differential privacy, as dp-accounting has it."""
    if not 0 < delta < 1:
        raise FedrecError(f"delta {delta} is not between 0 and 1; 1e-5 is usual")
    if rho == 0:
        return 0.0
    dp = _dp_accounting()
    # The relation is a formality here: rho was computed for the right one before.
    accountant = dp.rdp.RdpAccountant(_ORDERS, dp.NeighboringRelation.REPLACE_SPECIAL)
    accountant.compose(dp.ZCDpEvent(rho))
    return float(accountant.get_epsilon(delta))


# Each search asks the accountant dozens of times, for a budget that does not change within a run.
@cache
def rho_of(epsilon: float, delta: float) -> float:
    """The largest rho that keeps within (epsilon, delta), found by bisection."""
    low = high = 1.0
    while epsilon_of_rho(high, delta) <= epsilon:
        low, high = high, 2 * high
    while epsilon_of_rho(low, delta) > epsilon:
        low, high = low / 2, low
    while high / low > 1 + _CLOSE:
        # The geometric middle, because rho ranges over many orders of magnitude and the width is a relative one.
        middle = math.sqrt(low * high)
        low, high = (middle, high) if epsilon_of_rho(middle, delta) <= epsilon else (low, middle)
    # The lower end: it is known to keep within epsilon, while the upper end is known not to.
    return low


def _dp_accounting() -> Any:
    try:
        import dp_accounting
        import dp_accounting.rdp
    except ImportError:
        raise NoAccountantError(
            "an epsilon needs the package dp-accounting; install it with: pip install 'fedrec[privacy]'"
        ) from None
    return dp_accounting


def epsilon_of(multiplier: float, uploads: int, delta: float) -> float:
    """Epsilon of `uploads` Gaussian mechanisms of sensitivity 1 and this noise multiplier."""
    if not 0 < delta < 1:
        raise FedrecError(f"delta {delta} is not between 0 and 1; 1e-5 is usual")
    if uploads == 0:
        return 0.0
    # Gaussian mechanisms compose exactly: many of one multiplier are one of a smaller multiplier, so no bound is
    # needed.
    single = multiplier / math.sqrt(uploads)
    if delta_of(single, 0.0) <= delta:
        return 0.0
    low, high = 0.0, 1.0
    while delta_of(single, high) > delta:
        low, high = high, 2 * high
    while high - low > _CLOSE * high:
        middle = (low + high) / 2
        low, high = (middle, high) if delta_of(single, middle) > delta else (low, middle)
    # The upper end errs towards a larger epsilon, which is the side a guarantee may err to.
    return high


def delta_of(multiplier: float, epsilon: float) -> float:
    """Delta of one Gaussian mechanism of sensitivity 1 at `epsilon` (Balle & Wang 2018, theorem 8)."""
    gain, loss = 0.5 / multiplier - epsilon * multiplier, -0.5 / multiplier - epsilon * multiplier
    # The logarithm of the tail, since exp(epsilon) overflows and the tail underflows long before their product is
    # large.
    return float(ndtr(gain) - math.exp(min(epsilon + float(log_ndtr(loss)), 0.0)))


def zcdp(ratio: float, steps: int, delta: float) -> tuple[float, float]:
    """rho and the epsilon that follows from it, for steps of this ratio of sensitivity to noise (Bun & Steinke 2016).

    An upper bound, looser than `epsilon_of`, for comparison with work that composes so.
    """
    rho = steps * ratio**2 / 2
    return rho, rho + 2 * math.sqrt(rho * math.log(1 / delta))


def noise_for(clip: float, uploads: int, epsilon: float, delta: float, apart: float = 2.0) -> float:
    """The scale of discrete Gaussian noise that gives (epsilon, delta) over all uploads of a client."""
    # With no upload planned the scale would be zero, which is no noise at all.
    return apart * clip * math.sqrt(max(1, uploads) / (2 * rho_of(epsilon, delta))) * (1 + _MARGIN)


def with_budget(
    stages: Sequence[Stage],
    uploads: int,
    epsilon: float,
    delta: float | None,
    blind: bool = False,
    apart: float = 2.0,
    bits: int = BITS,
) -> tuple[Stage, ...]:
    """Insert the discrete Gaussian noise that keeps every client within (epsilon, delta), right behind the clipping.

    `blind`: nobody sees less than the sum over clients, so it is the sum that gets the noise.
    `bits`: behind the point in a secure sum.
    """
    if not 0 < epsilon < math.inf:
        raise FedrecError(f"--epsilon {epsilon} must be a positive number")
    if delta is None or not 0 < delta < 1:
        raise FedrecError("--epsilon needs --delta between 0 and 1, for example --delta 1e-5")
    if any(isinstance(stage, Gaussian | Laplace) for stage in stages):
        raise FedrecError("--epsilon chooses the noise itself: remove gaussian and laplace from --privacy")
    # Right behind the first clip, for a stage in between could lift an upload out of the ball that the noise was chosen
    # for.
    at = next((index + 1 for index, stage in enumerate(stages) if isinstance(stage, Clip)), 0)
    norm = _norm_of(stages[:at])
    if norm is None:
        raise FedrecError('--epsilon needs a bound on uploads: add --privacy "clip=1"')
    if blind and at < len(stages):
        raise FedrecError("--epsilon on a blind sum needs clip as the last stage: what follows it moves the sum")
    noise = (SumGaussian if blind else Gaussian)(noise_for(norm, uploads, epsilon, delta, apart))
    return in_whole_units((*stages[:at], noise, *stages[at:]), bits)


def _norm_of(stages: Sequence[Stage]) -> float | None:
    """What bounds an upload after these stages: clips do, rounding after a clip may leave the ball again."""
    norm = None
    for stage in stages:
        if isinstance(stage, Clip):
            # The tightest of several clips counts, in whatever order they stand.
            norm = stage.norm if norm is None else min(norm, stage.norm)
        else:
            norm = None
    return norm


def _explain_none(stages: Sequence[Stage]) -> str:
    if any(isinstance(stage, Laplace) for stage in stages):
        return "Laplace noise bounds the loss only of L1-clipped uploads, and these are not"
    if any(isinstance(stage, Gaussian) for stage in stages):
        return "uploads are not clipped right before the noise, so their influence is unbounded"
    return "no noise is added"
