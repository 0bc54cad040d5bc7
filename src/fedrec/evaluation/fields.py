"""The fields of a protocol as text: what each may hold, how it is read, how it is written."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from fedrec.errors import FedrecError
from fedrec.evaluation.metrics import METRICS
from fedrec.evaluation.ties import TIES

_MOST = 10**9  # of any count; larger ones overflow sooner or later


@dataclass(frozen=True)
class Kind:
    """A kind of value: its description for errors, its test, and its reader (which may raise ValueError)."""

    legal: str
    valid: Callable[[Any], bool]
    read: Callable[[str], Any]


def _is_int(value: Any, least: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and least <= value <= _MOST


def _is_float(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _choice(*values: str) -> Kind:
    return Kind(", ".join(values), lambda value: value in values, str)


def _integer(least: int) -> Kind:
    return Kind(f"an integer from {least}", lambda value: _is_int(value, least), int)


def _optional(kind: Kind) -> Kind:
    return Kind(
        f"{kind.legal}, or none",
        lambda value: value is None or kind.valid(value),
        lambda word: None if word == "none" else kind.read(word),
    )


def _many(kind: Kind, least: int = 1) -> Kind:
    return Kind(
        f"{kind.legal}; several joined by +",
        lambda values: isinstance(values, tuple) and len(values) >= least and all(map(kind.valid, values)),
        lambda word: tuple(kind.read(part) for part in word.split("+")) if word != "none" else (),
    )


def _matching(pattern: str, legal: str) -> Kind:
    return Kind(legal, lambda value: isinstance(value, str) and re.fullmatch(pattern, value) is not None, str)


def _read_bool(word: str) -> bool:
    return {"true": True, "false": False}[word.lower()]


def _read_pair(word: str) -> tuple[str, int]:
    name, _, count = word.rpartition(":")
    return name, int(count)


def _is_pair(value: Any) -> bool:
    return isinstance(value, tuple) and len(value) == 2 and isinstance(value[0], str) and _is_int(value[1], 1)


_BOOL = Kind("true, false", lambda value: isinstance(value, bool), _read_bool)
_SHARE = Kind("a number between 0 and 1", lambda value: _is_float(value) and 0 < value < 1, float)
_FRACTION = Kind("a number above 0, up to 1", lambda value: _is_float(value) and 0 < value <= 1, float)
_RATING = Kind("a number", _is_float, float)
_METRIC_AT_K = rf"({'|'.join(('hr', *METRICS))})@[1-9][0-9]{{0,8}}"

KINDS: dict[str, Kind] = {
    "name": _matching(r"[^,=\s]+", "a word without comma or ="),
    "min_interactions": _integer(1),
    "min_interactions_at": _many(Kind("dataset:integer", _is_pair, _read_pair), least=0),
    "min_rating": _optional(_RATING),
    "split": _choice("leave-one-out", "ratio", "cold-items", "global-time"),
    "valid_share": _SHARE,
    "test_share": _SHARE,
    "train_fraction": _FRACTION,
    "time": _choice("real", "item_order", "line_order", "random"),
    "time_missing": _choice("random", "item_order", "line_order", "refuse"),
    "split_ties": _choice("random", "first"),
    "partition": _matching(
        r"user|[1-9][0-9]{0,8}(:(contiguous|random|taste))?", "user, K, K:contiguous, K:random, K:taste"
    ),
    "negatives": _integer(1),
    "neg_pool": _choice("honest", "leaked"),
    "neg_unique": _choice("positive", "user"),
    "candidates": _choice("full", "sampled99", "split198"),
    "mask_val_at_test": _BOOL,
    "mask_test_at_validation": _BOOL,
    "history_at_test": _choice("all", "train"),
    "ties": _choice(*TIES),
    "select_metric": _matching(rf"{_METRIC_AT_K}(\+{_METRIC_AT_K})*", "metric@k such as ndcg@10; several joined by +"),
    "select_on": _choice("validation", "test"),
    "select_last": _BOOL,
    "patience": _optional(_integer(1)),
    "ks": _many(_integer(1)),
    "metrics": _many(_choice("hr", *METRICS)),
}


def check(key: str, value: Any) -> None:
    """Raise unless the field may hold the value."""
    if not KINDS[key].valid(value):
        raise _illegal(key, str(value))


def parse(key: str, word: str) -> Any:
    """The typed value of a field from its text."""
    try:
        value = KINDS[key].read(word)
    except (ValueError, KeyError):
        raise _illegal(key, word) from None
    check(key, value)
    return value


def text(value: Any) -> str:
    """A value as `parse` reads it."""
    if value is None or value == ():
        return "none"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, tuple):
        return "+".join(f"{part[0]}:{part[1]}" if isinstance(part, tuple) else text(part) for part in value)
    return str(value)


def _illegal(key: str, word: str) -> FedrecError:
    return FedrecError(f"protocol field {key} cannot be '{word}'; legal: {KINDS[key].legal}")
