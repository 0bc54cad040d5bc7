"""The fields of a protocol as text: what each may hold, how it is read, how it is written."""

from __future__ import annotations

from typing import Any

from fedrec.errors import FedrecError
from fedrec.evaluation.own_metrics import NAME
from fedrec.evaluation.ties import TIES
from fedrec.schema import BOOL, Kind, choice, integer, matching, number, optional, several

UNDIVIDED = "none"
"""The split that holds nothing out: for models that serve and are not tested."""
_MOST = 10**9  # of any count; larger ones overflow sooner or later


def _read_pair(word: str) -> tuple[str, int]:
    name, _, count = word.rpartition(":")
    return name, int(count)


def _is_pair(value: Any) -> bool:
    return isinstance(value, tuple) and len(value) == 2 and isinstance(value[0], str) and _COUNT.valid(value[1])


_COUNT = integer(1, _MOST)
_SHARE = number("a number between 0 and 1", lambda value: 0 < value < 1)
_FRACTION = number("a number above 0, up to 1", lambda value: 0 < value <= 1)
_RATING = number("a number")
# Up to nine digits, because larger counts overflow sooner or later.
_METRIC_AT_K = rf"{NAME}@[1-9][0-9]{{0,8}}"

KINDS: dict[str, Kind] = {
    # Comma and = separate the fields in a label, which must be readable again.
    "name": matching(r"[^,=\s]+", "a word without comma or ="),
    "min_interactions": _COUNT,
    "min_interactions_at": several(Kind("dataset:integer", _is_pair, _read_pair), least=0),
    "min_rating": optional(_RATING, ", or none"),
    "split": choice("leave-one-out", "ratio", "cold-items", "global-time", UNDIVIDED),
    "valid_share": _SHARE,
    "test_share": _SHARE,
    "train_fraction": _FRACTION,
    "time": choice("real", "item_order", "line_order", "random"),
    "time_missing": choice("random", "item_order", "line_order", "refuse"),
    "split_ties": choice("random", "first"),
    "partition": matching(
        r"user|[1-9][0-9]{0,8}(:(contiguous|random|taste))?", "user, K, K:contiguous, K:random, K:taste"
    ),
    "negatives": _COUNT,
    "neg_pool": choice("honest", "leaked"),
    "neg_unique": choice("positive", "user"),
    "candidates": choice("full", "sampled99", "split198"),
    "mask_val_at_test": BOOL,
    "mask_test_at_validation": BOOL,
    "history_at_test": choice("all", "train"),
    "ties": choice(*TIES),
    "select_metric": matching(rf"{_METRIC_AT_K}(\+{_METRIC_AT_K})*", "metric@k such as ndcg@10; several joined by +"),
    "select_on": choice("validation", "test"),
    "select_last": BOOL,
    "patience": optional(_COUNT, ", or none"),
    "ks": several(_COUNT),
    "metrics": several(matching(NAME, "names of metrics")),
}


def check(key: str, value: Any) -> None:
    """Raise unless the field may hold the value."""
    if not KINDS[key].valid(value):
        raise _illegal(key, text(value))


def parse(key: str, word: str) -> Any:
    """The typed value of a field from its text."""
    try:
        return KINDS[key].parse(word)
    except ValueError:
        raise _illegal(key, word) from None


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
    return FedrecError(f"protocol field {key} cannot be '{word}'; legal: {KINDS[key].words}")
