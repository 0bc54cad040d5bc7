"""What is searched: the values of each parameter, as text that a method declares or a user gives.

`lr=0.001..0.1` is every value between; `dim=16,32,64` is one of these. From a tenth of the upper end down, what lies
between is searched by its logarithm: a rate of 0.002 is as far from 0.001 as 0.2 is from 0.1.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from fedrec.errors import FedrecError
from fedrec.experiment.params import convert, parameters, parse_settings
from fedrec.federation.contract import Method
from fedrec.federation.ranges import Interval, interval_of

# From this ratio of its ends on, a range spans scales rather than values, and is searched by its logarithm.
WIDE = 10.0
# every method that has them is searched by them, whatever class declares them
USUAL = ("lr", "dim")
NOT_SEARCHED = (
    "rounds",
    "epochs",
    "batch",
    "aggregated_fraction",
    "init_std",
    "early_exit",
    "weight_decay_dense",
    "clip",
    "noise",
    "delta",
)
"""What decides about time, bytes and privacy rather than quality, and what seldom matters."""
# differences in the fourth digit of a rate are far below those between two seeds
DIGITS = 3


@dataclass(frozen=True)
class Choices:
    """One of a few values."""

    values: tuple[Any, ...]

    def holds(self, value: Any) -> bool:
        return value in self.values

    def neat(self, value: Any) -> Any:
        return value

    def __str__(self) -> str:
        return ",".join(str(value).lower() if isinstance(value, bool) else str(value) for value in self.values)


@dataclass(frozen=True)
class Between:
    """Every number from `low` to `high`."""

    low: float
    high: float
    whole: bool

    @property
    def log(self) -> bool:
        return self.low > 0 and self.high >= WIDE * self.low

    def holds(self, value: Any) -> bool:
        return isinstance(value, int | float) and self.low <= value <= self.high

    def neat(self, value: float) -> float:
        """With a few digits, which is all that a search can tell, and within the range."""
        # Clamped after rounding, which may step over an end.
        return value if self.whole else min(max(float(f"{value:.{DIGITS}g}"), self.low), self.high)

    def __str__(self) -> str:
        return f"{self.low:g}..{self.high:g}"


Dimension = Choices | Between
Space = Mapping[str, Dimension]


def space_of(method: Method, given: Iterable[str] = (), fixed: Iterable[str] = ()) -> dict[str, Dimension]:
    """What the method declares, or else what its ranges suggest, without what is `fixed`; `given` by the user wins."""
    own = parse_settings(given, "--space")
    for name in fixed:
        if name in own:
            raise FedrecError(f"{name} is given by --set and searched by --space; keep one")
    texts = {**_by_itself(method), **own}
    found = {name: dimension(method, name, text) for name, text in texts.items() if name not in set(fixed)}
    if not found:
        raise FedrecError(
            f"{method.info.name} has no search space; give one, e.g. --space lr=0.001..0.1 "
            f"(`fedrec methods {method.info.name}` lists them)"
        )
    return found


def is_searchable(method: Method) -> bool:
    """Whether trials would have anything to choose."""
    return bool(_by_itself(method))


def dimension(method: Method, name: str, text: str) -> Dimension:
    """The values that a text stands for, each checked as a value of that parameter."""
    low, dots, high = text.partition("..")
    words = [low, high] if dots else text.split(",")
    values = [convert(type(method), name, word.strip()) for word in words]
    # Refused now, and not by a trial in an hour.
    for value in values:
        _require_fits(method, name, value)
    if not dots:
        return Choices(tuple(dict.fromkeys(values)))
    if not all(isinstance(value, int | float) and not isinstance(value, bool) for value in values):
        raise FedrecError(
            f"--space {name}={text}: a range needs numbers at both ends; list other values separated by commas"
        )
    if values[0] == values[1]:
        raise FedrecError(f"--space {name}={text} is a single value; set it with --set {name}={low.strip()}")
    if values[0] > values[1]:
        raise FedrecError(f"--space {name}={text}: the lower end comes first, as in {name}={high}..{low}")
    return Between(values[0], values[1], whole=all(isinstance(value, int) for value in values))


def starting_point(method: Method, space: Space) -> dict[str, Any]:
    """What the method has by itself, as far as it is searched."""
    return {name: getattr(method, name) for name, values in space.items() if values.holds(getattr(method, name))}


def _require_fits(method: Method, name: str, value: Any) -> None:
    if isinstance(value, int | float) and not isinstance(value, bool):
        missed = interval_of(type(method), name, isinstance(value, int)).broken_bounds(value)
        if missed:
            wanted = " and ".join(missed)
            raise FedrecError(f"--space {name}: {value} does not fit {method.info.name}: it must be {wanted}")


def _by_itself(method: Method) -> Mapping[str, str]:
    """What the method declares, or else what its ranges suggest."""
    return method.info.space or dict(_suggest(method))


def _suggest(method: Method) -> Iterator[tuple[str, str]]:
    """The rate, the width, and numbers that the method's own class declares: by their ranges, around what it has."""
    hints = parameters(type(method))
    own = [name for name in vars(type(method)).get("__annotations__", {}) if name in hints]
    for name in dict.fromkeys([*(usual for usual in USUAL if usual in hints), *own]):
        value = getattr(method, name)
        if name not in NOT_SEARCHED and isinstance(value, int | float) and not isinstance(value, bool) and value > 0:
            limits = interval_of(type(method), name, isinstance(value, int))
            yield from ((name, text) for text in _around(limits, value) if _accepts_values(method, name, text))


def _accepts_values(method: Method, name: str, text: str) -> bool:
    """Whether the method takes these values beside its other settings: with some backbones a parameter has no use."""
    try:
        for word in text.replace("..", ",").split(","):
            replace(method, **{name: convert(type(method), name, word)})
    # A method that others wrote may raise a plain ValueError.
    except (FedrecError, ValueError):
        return False
    return True


def _around(limits: Interval, value: float) -> Iterator[str]:
    """Whole numbers: half, the same and double. Others: to the ends of their range where it has any, else tenfold."""
    if isinstance(value, int):
        # Halving 1 gives 0, which is rarely a size at all.
        yield ",".join(str(one) for one in (value // 2, value, 2 * value) if one and not limits.broken_bounds(one))
        return
    bounded = math.isfinite(limits.high)
    low = limits.low if bounded and not limits.above else max(limits.low, value / WIDE)
    high = value * WIDE if not bounded else (value + limits.high) / 2 if limits.below else limits.high
    if low < high:
        yield f"{low:g}..{high:g}"


def describe_space(space: Space) -> dict[str, str]:
    """As text, for files and messages."""
    return {name: str(values) for name, values in space.items()}


def settings_text(values: Mapping[str, Any]) -> str:
    """Parameters as they are written after `--set`."""
    return " ".join(
        f"{name}={str(value).lower() if isinstance(value, bool) else value}" for name, value in values.items()
    )
