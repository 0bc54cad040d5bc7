"""From values to places on paper: axes with round ticks, linear or logarithmic."""

from __future__ import annotations

import math
from dataclasses import dataclass

# So near to zero that a fifth of it, or its logarithm, is no use.
_NOTHING = 1e-290


@dataclass(frozen=True)
class Axis:
    """Maps values from low..high to start..end in drawing units. `start` may lie above `end`, as on a y axis."""

    low: float
    high: float
    start: float
    end: float
    log: bool = False

    def __call__(self, value: float) -> float:
        low, high, value = (_log(v) for v in (self.low, self.high, value)) if self.log else (self.low, self.high, value)
        share = (value - low) / (high - low)
        # Values beyond the axis stop at its ends, so that no line leaves the picture.
        return self.start + min(max(share, 0.0), 1.0) * (self.end - self.start)

    def ticks(self, most: int = 5) -> list[float]:
        """Round values within the axis, about `most` of them."""
        return _log_ticks(self.low, self.high, most) if self.log else _linear_ticks(self.low, self.high, most)


def axis(low: float, high: float, start: float, end: float, log: bool = False) -> Axis:
    """An axis that is never empty, however alike the values are."""
    if log:
        low = low if low > _NOTHING else 1e-6
        high = high if high > low * 1.000001 else low * 10
    # Values that differ by rounding alone are one value, and would give an axis of noise.
    elif high - low <= 1e-12 * max(abs(low), abs(high), 1e-12):
        low, high = (0.0, 1.0) if max(abs(low), abs(high)) < _NOTHING else (min(0.0, low * 2), max(0.0, high * 2))
    return Axis(low, high, start, end, log)


def number(value: float) -> str:
    """A tick or a value as short as it can be read: 0.05, 12, 1,500, 20k, 3M."""
    size = abs(value)
    if size >= 1e6:
        return f"{value / 1e6:.3g}M"
    if size >= 1e4:
        return f"{value / 1e3:.3g}k"
    if size >= 1000:
        return f"{value:,.0f}"
    if 0 < size < 1e-4:
        return f"{value:.0e}"
    return f"{value:.3g}"


def _log(value: float) -> float:
    # A floor far below any figure, since the logarithm of 0 does not exist.
    return math.log10(max(value, 1e-300))


def _linear_ticks(low: float, high: float, most: int) -> list[float]:
    raw = (high - low) / max(most, 1)
    power = 10.0 ** math.floor(math.log10(raw))
    # A little slack, so that rounding does not make the step one size too coarse.
    step = next(power * nice for nice in (1, 2, 2.5, 5, 10) if power * nice >= raw * 0.999)
    # Slack again: an end of the axis that should be a tick may lie a rounding error beside it.
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    # Rounded, because 3 * 0.1 would be written as 0.30000000000000004.
    return [round(index * step, 12) for index in range(first, last + 1)]


def _log_ticks(low: float, high: float, most: int) -> list[float]:
    first, last = math.floor(_log(low) + 1e-9), math.ceil(_log(high) - 1e-9)
    for nices in ((1, 2, 5), (1, 3), (1,)):
        ticks = [nice * 10.0**power for power in range(first, last + 1) for nice in nices]
        inside = [tick for tick in ticks if low * 0.999 <= tick <= high * 1.001]
        # One tick more than asked is better than the next coarser set, which may have two.
        if len(inside) <= most + 1:
            return inside
    every = math.ceil((last - first + 1) / most)
    return [10.0**power for power in range(first, last + 1, every) if low * 0.999 <= 10.0**power <= high * 1.001]
