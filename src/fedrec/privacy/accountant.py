"""What the noise on uploads guarantees: the privacy loss of a client over all its uploads.

The mechanism is local: noise is added before anything leaves, so the guarantee holds against the server and everybody
else. Two data sets of one client give uploads at most 2C apart once both are clipped to norm C, so one upload is a
Gaussian mechanism with noise multiplier std / 2C. Sampling of clients does not amplify, because the server sees who
takes part. Needs `dp-accounting`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from fedrec.errors import FedrecError
from fedrec.federation.wire import Clip, Gaussian, Laplace, Stage


@dataclass(frozen=True)
class Guarantee:
    """`epsilon` is None where the stages give no finite one, and `reason` says why."""

    epsilon: float | None
    delta: float | None
    uploads: int
    reason: str


def guarantee(stages: Sequence[Stage], uploads: int, delta: float) -> Guarantee:
    """The (epsilon, delta) that a client has after this many uploads."""
    noise = next((stage for stage in stages if isinstance(stage, Gaussian)), None)
    clip = _clip_before(stages, noise)
    if noise is None or clip is None:
        return Guarantee(None, None, uploads, _why_not(stages))
    return Guarantee(
        epsilon_of(noise.scale / (2 * clip.norm), uploads, delta),
        delta,
        uploads,
        "local: all uploads of one client, against any other data of that client",
    )


def epsilon_of(multiplier: float, uploads: int, delta: float) -> float:
    """Epsilon of `uploads` Gaussian mechanisms of sensitivity 1 and this noise multiplier."""
    dp = _dp_accounting()
    accountant = dp.pld.PLDAccountant()
    accountant.compose(dp.GaussianDpEvent(multiplier), uploads)
    return float(accountant.get_epsilon(delta))


def noise_for(clip: float, uploads: int, epsilon: float, delta: float) -> float:
    """The standard deviation that gives (epsilon, delta) over all uploads of a client, found by bisection."""
    low, high = 1e-3, 1e-3
    while epsilon_of(high, uploads, delta) > epsilon:
        high *= 2
        if high > 1e7:
            raise FedrecError(
                f"no noise gives epsilon {epsilon} at delta {delta} over {uploads} uploads; raise epsilon"
            )
    low = high / 2
    while high / low > 1.0005:
        middle = (low * high) ** 0.5
        low, high = (middle, high) if epsilon_of(middle, uploads, delta) > epsilon else (low, middle)
    return high * 2 * clip


def with_budget(stages: Sequence[Stage], uploads: int, epsilon: float, delta: float | None) -> tuple[Stage, ...]:
    """Append the Gaussian noise that keeps every client within (epsilon, delta)."""
    if epsilon <= 0:
        raise FedrecError(f"--epsilon {epsilon} must be positive")
    if delta is None or not 0 < delta < 1:
        raise FedrecError("--epsilon needs --delta between 0 and 1, for example --delta 1e-5")
    if any(isinstance(stage, Gaussian | Laplace) for stage in stages):
        raise FedrecError("--epsilon chooses the noise itself: remove gaussian and laplace from --privacy")
    clip = next((stage for stage in stages if isinstance(stage, Clip)), None)
    if clip is None:
        raise FedrecError('--epsilon needs a bound on uploads: add --privacy "clip=1"')
    at = list(stages).index(clip) + 1
    noise = Gaussian(noise_for(clip.norm, uploads, epsilon, delta))
    return (*stages[:at], noise, *stages[at:])


def _clip_before(stages: Sequence[Stage], noise: Gaussian | None) -> Clip | None:
    before = list(stages)[: list(stages).index(noise)] if noise is not None else []
    return next((stage for stage in before if isinstance(stage, Clip)), None)


def _why_not(stages: Sequence[Stage]) -> str:
    if any(isinstance(stage, Laplace) for stage in stages):
        return "Laplace noise bounds the loss only of L1-clipped uploads, and these are not"
    if any(isinstance(stage, Gaussian) for stage in stages):
        return "uploads are not clipped before the noise, so their influence is unbounded"
    return "no noise is added"


def _dp_accounting() -> Any:
    try:
        import dp_accounting
        import dp_accounting.pld
    except ImportError:
        raise FedrecError("accounting needs the extra: pip install 'fedrec[privacy]'") from None
    return dp_accounting
