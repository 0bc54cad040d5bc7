"""What the noise on uploads guarantees: the privacy loss of a client over all its uploads.

The mechanism is local: noise is added before anything leaves, so the guarantee holds against the server and everybody
else. Two data sets of one client give uploads at most 2C apart once both are clipped to norm C, so one upload is a
Gaussian mechanism with noise multiplier std / 2C. T of them, each allowed to depend on those before, have exactly the
privacy loss of a single one with multiplier / sqrt(T) (Dong, Roth & Su 2022), whose curve is known in closed form.
Sampling of clients does not amplify, because the server sees who takes part.

Noise on a sum under secure aggregation (`sum-gaussian`) is counted the same way: replacing one client's data moves the
sum by at most 2C. It holds against whoever sees nothing but sums, so it rests on secure aggregation.

A method may know that its uploads cannot lie 2C apart (`Disclosure.sensitivity`): where no entry is ever negative, the
product of two uploads u and v is not either, and |u - v|^2 = |u|^2 + |v|^2 - 2 u'v is at most 2 C^2.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from scipy.special import log_ndtr, ndtr

from fedrec.errors import FedrecError, some
from fedrec.federation.noise import Gaussian, Laplace, SumGaussian
from fedrec.federation.stages import Clip, Stage

# Not covered by epsilon, because it does not pass the wire.
NOT_COVERED = (
    "metrics, losses and clients' own state, which this folder contains; anything chosen by them, such as "
    "hyper-parameters; other runs on the same data"
)
LOCAL = "local: all uploads of one client, against any other data of that client"
BLIND = "of the sum: holds where secure aggregation shows nothing else, against any other data of one client"

_CLOSE = 1e-12  # relative width at which a bisection ends
_MARGIN = 1e-8  # more noise than the bisection found, so that rounding cannot overspend a budget


@dataclass(frozen=True)
class Guarantee:
    """`epsilon` is None where the stages give no finite one, and `reason` says why."""

    epsilon: float | None
    delta: float | None
    uploads: int
    reason: str


def guarantee(
    stages: Sequence[Stage], uploads: int, delta: float, unprotected: Iterable[str] = (), apart: float = 2.0
) -> Guarantee:
    """The (epsilon, delta) that a client has after this many uploads.

    `unprotected`: what of them no noise reaches. `apart`: how many clipping norms apart two uploads of one client can
    be.
    """
    if any(isinstance(stage, Gaussian | Laplace) and stage.only for stage in stages):
        return Guarantee(None, None, uploads, "noise on one upload leaves the others unprotected")
    at = next((index for index, stage in enumerate(stages) if isinstance(stage, Gaussian)), len(stages))
    noise = stages[at] if at < len(stages) else None
    # whatever clients do after the clipping changes a sum before its noise comes, wherever that stage is written
    blind = isinstance(noise, SumGaussian)
    norm = _norm_of([stage for stage in stages if stage is not noise] if blind else stages[:at])
    if not isinstance(noise, Gaussian) or norm is None:
        return Guarantee(None, None, uploads, _why_not(stages))
    if open_to_all := some(sorted(unprotected)):
        return Guarantee(None, None, uploads, f"no noise reaches {open_to_all}")
    epsilon = epsilon_of(noise.scale / (apart * norm), uploads, delta)
    return Guarantee(epsilon, delta, uploads, BLIND if blind else LOCAL)


def epsilon_of(multiplier: float, uploads: int, delta: float) -> float:
    """Epsilon of `uploads` Gaussian mechanisms of sensitivity 1 and this noise multiplier."""
    if not 0 < delta < 1:
        raise FedrecError(f"delta {delta} is not between 0 and 1; 1e-5 is usual")
    if uploads == 0:
        return 0.0
    single = multiplier / math.sqrt(uploads)
    if delta_of(single, 0.0) <= delta:
        return 0.0
    low, high = 0.0, 1.0
    while delta_of(single, high) > delta:
        low, high = high, 2 * high
    while high - low > _CLOSE * high:
        middle = (low + high) / 2
        low, high = (middle, high) if delta_of(single, middle) > delta else (low, middle)
    return high


def delta_of(multiplier: float, epsilon: float) -> float:
    """Delta of one Gaussian mechanism of sensitivity 1 at `epsilon` (Balle & Wang 2018, theorem 8)."""
    gain, loss = 0.5 / multiplier - epsilon * multiplier, -0.5 / multiplier - epsilon * multiplier
    return float(ndtr(gain) - math.exp(min(epsilon + float(log_ndtr(loss)), 0.0)))


def zcdp(ratio: float, steps: int, delta: float) -> tuple[float, float]:
    """rho and the epsilon that follows from it, for steps of this ratio of sensitivity to noise (Bun & Steinke 2016).

    An upper bound, looser than `epsilon_of`, for comparison with work that composes so.
    """
    rho = steps * ratio**2 / 2
    return rho, rho + 2 * math.sqrt(rho * math.log(1 / delta))


def noise_for(clip: float, uploads: int, epsilon: float, delta: float, apart: float = 2.0) -> float:
    """The standard deviation that gives (epsilon, delta) over all uploads of a client, found by bisection."""
    uploads = max(1, uploads)
    low = high = 1.0
    while epsilon_of(high, uploads, delta) > epsilon:
        low, high = high, 2 * high
    while epsilon_of(low, uploads, delta) <= epsilon:
        low, high = low / 2, low
    while high / low > 1 + _CLOSE:
        middle = math.sqrt(low * high)
        low, high = (middle, high) if epsilon_of(middle, uploads, delta) > epsilon else (low, middle)
    return high * (1 + _MARGIN) * apart * clip


def with_budget(
    stages: Sequence[Stage], uploads: int, epsilon: float, delta: float | None, blind: bool = False, apart: float = 2.0
) -> tuple[Stage, ...]:
    """Insert the Gaussian noise that keeps every client within (epsilon, delta), right behind the clipping.

    `blind`: nobody sees less than the sum over clients, so it is the sum that gets the noise.
    """
    if not 0 < epsilon < math.inf:
        raise FedrecError(f"--epsilon {epsilon} must be a positive number")
    if delta is None or not 0 < delta < 1:
        raise FedrecError("--epsilon needs --delta between 0 and 1, for example --delta 1e-5")
    if any(isinstance(stage, Gaussian | Laplace) for stage in stages):
        raise FedrecError("--epsilon chooses the noise itself: remove gaussian and laplace from --privacy")
    at = next((index + 1 for index, stage in enumerate(stages) if isinstance(stage, Clip)), 0)
    norm = _norm_of(stages[:at])
    if norm is None:
        raise FedrecError('--epsilon needs a bound on uploads: add --privacy "clip=1"')
    if blind and at < len(stages):
        raise FedrecError("--epsilon on a blind sum needs clip as the last stage: what follows it moves the sum")
    noise = (SumGaussian if blind else Gaussian)(noise_for(norm, uploads, epsilon, delta, apart))
    return (*stages[:at], noise, *stages[at:])


def _norm_of(stages: Sequence[Stage]) -> float | None:
    """What bounds an upload after these stages: clips do, rounding after a clip may leave the ball again."""
    norm = None
    for stage in stages:
        if isinstance(stage, Clip):
            norm = stage.norm if norm is None else min(norm, stage.norm)
        else:
            norm = None
    return norm


def _why_not(stages: Sequence[Stage]) -> str:
    if any(isinstance(stage, Laplace) for stage in stages):
        return "Laplace noise bounds the loss only of L1-clipped uploads, and these are not"
    if any(isinstance(stage, Gaussian) for stage in stages):
        return "uploads are not clipped right before the noise, so their influence is unbounded"
    return "no noise is added"
