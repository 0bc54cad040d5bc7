"""Which numbers a parameter takes, as an interval: `[0, 1)` is from 0 on and below 1."""

from __future__ import annotations

import dataclasses
import math
from functools import cache
from typing import TYPE_CHECKING

from fedrec.errors import FedrecError

if TYPE_CHECKING:
    from fedrec.federation.contract import Method

MOST = 1 << 31  # beyond it no array can be indexed, and no user means it
COUNT, POSITIVE, ANY = f"[1, {MOST}]", "(0, inf)", "(-inf, inf)"

# Parameters that mean the same wherever they are. Whatever is named neither here nor by a method is not negative.
USUAL = {
    **dict.fromkeys(("rounds", "dim", "batch", "epochs", "clusters", "components", "frequencies"), COUNT),
    **dict.fromkeys(("temperature", "item_rate_scale", "rate_scale"), POSITIVE),
    "dropout": "[0, 1)",
    "aggregated_fraction": "(0, 1]",
}


@dataclasses.dataclass(frozen=True)
class Interval:
    low: float
    high: float
    above: bool  # low itself is outside
    below: bool

    @staticmethod
    @cache
    def of(text: str) -> Interval:
        low, high = text[1:-1].split(",")
        return Interval(float(low), float(high), text[0] == "(", text[-1] == ")")

    def missed(self, value: float) -> list[str]:
        """What a value is not; what is no number is nothing of it."""
        high_enough = value > self.low if self.above else value >= self.low
        low_enough = value < self.high if self.below else value <= self.high
        return [word for good, word in zip((high_enough, low_enough), self.words(), strict=True) if not good]

    def __str__(self) -> str:
        """In short, for a table; nothing where every number fits."""
        if self.high < MOST:
            return f"{'(' if self.above else '['}{self.low:g}, {self.high:g}{')' if self.below else ']'}"
        return "" if math.isinf(self.low) else f"{'>' if self.above else '>='} {self.low:g}"

    def words(self) -> tuple[str, str]:
        return (
            f"{'above' if self.above else 'at least'} {_number(self.low)}",
            f"{'below' if self.below else 'at most'} {_number(self.high)}",
        )


def interval_of(cls: type[Method], name: str, whole: bool) -> Interval:
    """What the nearest class that speaks of this parameter says, or what is usual."""
    said = (vars(kind).get("ranges", {}) for kind in cls.__mro__)
    return Interval.of(next((ranges[name] for ranges in said if name in ranges), USUAL.get(name, _otherwise(whole))))


def _otherwise(whole: bool) -> str:
    return f"[0, {MOST}]" if whole else "[0, inf)"


def require_in_range(method: Method) -> None:
    """One line about the first parameter with which no run makes sense."""
    for item in dataclasses.fields(method):
        value = getattr(method, item.name)
        if isinstance(value, int | float) and not isinstance(value, bool):
            missed = interval_of(type(method), item.name, isinstance(value, int)).missed(value)
            if missed:
                raise FedrecError(f"{item.name}={value} does not fit {method.name}: it must be {' and '.join(missed)}")


def _number(value: float) -> str:
    return "infinity" if math.isinf(value) else f"{value:,.0f}" if value == int(value) else str(value)
