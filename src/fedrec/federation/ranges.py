"""Which numbers a parameter takes, as an interval: `[0, 1)` is from 0 on and below 1.

share: Annotated[float, "[0, 1)"] = 0.5
"""

from __future__ import annotations

import dataclasses
import math
from functools import cache, cached_property
from typing import TYPE_CHECKING, Annotated, Any, get_args, get_type_hints

from fedrec.errors import FedrecError

if TYPE_CHECKING:
    from fedrec.federation.contract import Method

MOST = 1 << 31  # the largest index of an array; nobody means more
ANY = "(-inf, inf)"  # negative numbers too


@dataclasses.dataclass(frozen=True)
class Interval:
    """`Interval("(0, 1]")` is above 0 and up to 1."""

    text: str

    @cached_property
    def low(self) -> float:
        return float(self.text[1:-1].split(",")[0])

    @cached_property
    def high(self) -> float:
        return float(self.text[1:-1].split(",")[1])

    @property
    def above(self) -> bool:
        """Whether `low` itself is outside."""
        return self.text[0] == "("

    @property
    def below(self) -> bool:
        return self.text[-1] == ")"

    def broken_bounds(self, value: float) -> list[str]:
        """The bound that a value breaks, as text; empty if it fits or is not a number."""
        high_enough = value > self.low if self.above else value >= self.low
        low_enough = value < self.high if self.below else value <= self.high
        return [word for good, word in zip((high_enough, low_enough), self.bound_texts(), strict=True) if not good]

    def __str__(self) -> str:
        """As short text for a table; empty where every number fits."""
        if self.high < MOST:
            return f"{'(' if self.above else '['}{self.low:g}, {self.high:g}{')' if self.below else ']'}"
        return "" if math.isinf(self.low) else f"{'>' if self.above else '>='} {self.low:g}"

    def bound_texts(self) -> tuple[str, str]:
        return (
            f"{'above' if self.above else 'at least'} {_number(self.low)}",
            f"{'below' if self.below else 'at most'} {_number(self.high)}",
        )


Count = Annotated[int, Interval(f"[1, {MOST}]")]
Positive = Annotated[float, Interval("(0, inf)")]
Share = Annotated[float, Interval("(0, 1]")]


@cache
def intervals(cls: Any) -> dict[str, Interval]:
    """The intervals that a class declares; one that only changes a default inherits the interval of its base."""
    found: dict[str, Interval] = {}
    for kind in reversed(cls.__mro__[:-1]):
        hints = get_type_hints(kind, include_extras=True)
        for name in vars(kind).get("__annotations__", {}):
            for mark in getattr(hints[name], "__metadata__", ()):
                found[name] = Interval(mark) if isinstance(mark, str) else mark
    return found


def interval_of(cls: type[Method], name: str, whole: bool) -> Interval:
    """The interval declared by the nearest class; without one, the parameter must not be negative."""
    kind: Any = cls  # mypy does not see that a class is hashable when its objects hash by their fields
    return intervals(kind).get(name) or Interval(f"[0, {MOST}]" if whole else "[0, inf)")


def range_text(cls: type[Method], name: str, hint: Any) -> str:
    """The interval of a numeric parameter as text; empty for other parameters."""
    kinds = set(get_args(hint)) or {hint}
    return str(interval_of(cls, name, int in kinds)) if kinds & {int, float} else ""


def require_in_range(method: Method) -> None:
    """Refuse the first parameter outside its interval, in one line."""
    for item in dataclasses.fields(method):
        value = getattr(method, item.name)
        if isinstance(value, int | float) and not isinstance(value, bool):
            missed = interval_of(type(method), item.name, isinstance(value, int)).broken_bounds(value)
            if missed:
                wanted = " and ".join(missed)
                raise FedrecError(f"{item.name}={value} does not fit {method.info.name}: it must be {wanted}")


def _number(value: float) -> str:
    return "infinity" if math.isinf(value) else f"{value:,.0f}" if value == int(value) else str(value)
