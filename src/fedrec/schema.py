"""What values and documents may hold, said once: every file and setting that is read is checked by this module.

A `Kind` is a sort of value. A document is checked against a shape: a kind, a mapping of names to shapes (names beyond
them are left alone) or a list of one shape.
"""

from __future__ import annotations

import dataclasses
import json
import math
import re
import types
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from fedrec.errors import FedrecError

__all__ = [
    "BOOL",
    "COUNT",
    "METRICS",
    "NUMBER",
    "SIZES",
    "TEXT",
    "TEXTS",
    "Kind",
    "Shape",
    "check",
    "choice",
    "damage_error",
    "integer",
    "is_count",
    "is_number",
    "json_line",
    "kind_of",
    "kinds_of_fields",
    "matching",
    "number",
    "optional",
    "read_json",
    "several",
    "table_of",
]

Shape = Any  # Kind | Mapping[str, Shape] | list[Shape]


@dataclass(frozen=True)
class Kind:
    """A kind of value: its description for errors, its test, and its reader from text (which raises if it is none)."""

    words: str
    valid: Callable[[Any], bool]
    read: Callable[[Any], Any] = str

    def parse(self, text: Any) -> Any:
        """The value that a text stands for; ValueError where it stands for none of this kind."""
        try:
            value = self.read(text)
        except (TypeError, ValueError, KeyError, OverflowError):
            raise ValueError(f"not {self.words}") from None
        if not self.valid(value):
            raise ValueError(f"not {self.words}")
        return value


# -- kinds --


def is_number(value: Any) -> bool:
    return (
        # True is an integer in Python, and a metric of infinity or beyond would break every plot and comparison after
        # it.
        isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 1e300 and math.isfinite(value)
    )


def is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def choice(*values: str) -> Kind:
    return Kind(", ".join(values), lambda value: value in values)


def integer(least: int, most: int) -> Kind:
    # Not merely an integer: negative numbers are no sizes, and `True` is refused by the same test.
    return Kind(f"an integer from {least}", lambda value: is_count(value) and least <= value <= most, int)


def number(words: str, valid: Callable[[float], bool] = lambda value: True) -> Kind:
    def fits(value: Any) -> bool:
        return isinstance(value, int | float) and not isinstance(value, bool) and valid(value)

    return Kind(words, fits, float)


def matching(pattern: str, words: str) -> Kind:
    return Kind(words, lambda value: isinstance(value, str) and re.fullmatch(pattern, value) is not None)


def optional(kind: Kind, none: str = " or null") -> Kind:
    return Kind(
        f"{kind.words}{none}",
        lambda value: value is None or kind.valid(value),
        # TOML has no null, so the word stands for it in files and flags alike.
        lambda text: None if text == "none" else kind.read(text),
    )


def several(kind: Kind, least: int = 1) -> Kind:
    return Kind(
        f"{kind.words}; several joined by +",
        lambda values: isinstance(values, tuple) and len(values) >= least and all(map(kind.valid, values)),
        lambda text: tuple(kind.read(part) for part in text.split("+")) if text != "none" else (),
    )


def table_of(kind: Kind, words: str, names: str = ".*") -> Kind:
    """A table whose names match a pattern, and whose values are of one kind."""

    def fits(value: Any) -> bool:
        return (
            isinstance(value, dict)
            and all(re.fullmatch(names, name) for name in value)
            and all(map(kind.valid, value.values()))
        )

    return Kind(words, fits)


BOOL = Kind(
    "true, false", lambda value: isinstance(value, bool), lambda text: {"true": True, "false": False}[str(text).lower()]
)
COUNT = Kind("an integer", is_count, int)
NUMBER = Kind("a number", is_number, float)
TEXT = Kind("text", lambda value: isinstance(value, str))
TEXTS = Kind("a list of strings", lambda value: isinstance(value, list) and all(map(TEXT.valid, value)))
# A bounded k: a file from elsewhere could otherwise make a column for an absurd one.
METRICS = table_of(NUMBER, "metrics with numbers", r"\w+@[1-9][0-9]{0,8}")
NAMES = table_of(TEXT, "names with texts")
SIZES = table_of(COUNT, "names with integers")


def kind_of(hint: Any) -> Kind:
    """The kind that a type hint of a setting stands for; its reader takes text as well as values of TOML."""
    if typing.get_origin(hint) is typing.Literal:
        choices = typing.get_args(hint)
        # Values of a literal come as they are, because "1" and 1 may both be choices.
        return Kind(" | ".join(map(str, choices)), lambda value: value in choices, lambda value: value)
    if typing.get_origin(hint) in (types.UnionType, typing.Union):
        return _parse_first([kind_of(part) for part in typing.get_args(hint)])
    if hint is type(None):
        return Kind(
            "none",
            lambda value: value is None,
            lambda text: None if text is None else {"none": None}[str(text).lower()],
        )
    plain = typing.get_origin(hint) or hint
    if plain is bool:
        return dataclasses.replace(BOOL, words="bool")
    if plain is int:
        return Kind("int", lambda value: isinstance(value, int) and not isinstance(value, bool), _parse_integer)
    if plain is float:
        return dataclasses.replace(number("float"), read=_real)
    return Kind(getattr(plain, "__name__", str(hint)), lambda value: isinstance(value, plain), lambda value: value)


def _parse_first(kinds: list[Kind]) -> Kind:
    def read(text: Any) -> Any:
        for kind in kinds:
            # In the order of the hint, so that `int | str` reads a number as one and everything else as text.
            try:
                return kind.parse(text)
            except ValueError:
                continue
        raise ValueError

    return Kind(" or ".join(kind.words for kind in kinds), lambda value: any(kind.valid(value) for kind in kinds), read)


def _parse_integer(value: Any) -> int:
    found = _real(value) if isinstance(value, float) else int(_no_bool(value))
    # The bounds of int64, which is what numpy and torch would silently wrap to.
    if found != int(found) or not -(1 << 63) < found < 1 << 63:
        raise ValueError
    return int(found)


def _real(value: Any) -> float:
    found = float(_no_bool(value))
    if not math.isfinite(found):
        raise ValueError
    return found


def _no_bool(value: Any) -> Any:
    # Python would read `True` as 1, and as a number of rounds it is a mistake, never a wish.
    if isinstance(value, bool):
        raise ValueError
    return value


# Reading type hints evaluates every annotation of the class, and the kinds never change.
@cache
def kinds_of_fields(cls: type[Any]) -> Mapping[str, Kind]:
    """Of every field of a dataclass."""
    hints = typing.get_type_hints(cls)
    return {item.name: kind_of(hints[item.name]) for item in dataclasses.fields(cls)}


# -- documents --


def check(place: str, value: Any, shape: Shape) -> None:
    """Raise ValueError, with the place, where a document has not the shape."""
    if isinstance(shape, Mapping):
        if not isinstance(value, dict):
            raise ValueError(f"{place} is not a table")
        for name, inner in shape.items():
            if name not in value:
                raise ValueError(f"{place} has no {name}")
            check(f"{place}.{name}", value[name], inner)
    elif isinstance(shape, list):
        if not isinstance(value, list):
            raise ValueError(f"{place} is not a list")
        for index, one in enumerate(value):
            check(f"{place}.{index}", one, shape[0])
    elif not shape.valid(value):
        raise ValueError(f"{place} is not {shape.words}")


def read_json(path: Path, name: str, shape: Shape) -> Any:
    """A JSON document that has been checked; ValueError says what is wrong with it."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    # A deeply nested document must not end the program, since files may come from strangers.
    except RecursionError as error:
        raise ValueError(str(error)) from None
    check(name, value, shape)
    return value


def json_line(line: str, shape: Shape) -> dict[str, Any] | None:
    """A line of a JSON-lines file; None where it was cut short by a kill, or is damaged."""
    try:
        value = json.loads(line)
        check("line", value, shape)
    # The caller decides: a last line that was cut short by a kill is no error, one in the middle is.
    except (ValueError, RecursionError):
        return None
    return dict(value)


def damage_error(path: Path, why: object, remedy: str = "remove it and run again") -> FedrecError:
    """The error about a file or folder of ours that does not hold what we write there."""
    return FedrecError(f"{path} is damaged ({why}); {remedy}")
