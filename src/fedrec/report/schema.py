"""Whether what a run folder holds is what fedrec wrote there: whoever reads on can rely on names and types."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any

_COUNT, _NUMBER, _WORD, _WORDS = "a whole number", "a number", "text", "a list of texts"
_METRICS, _SIZES = "metrics with numbers", "names with whole numbers"
_OR_NONE = " or null"

SUMMARY: dict[str, Any] = {
    "method": _WORD,
    "backbone": _WORD + _OR_NONE,
    "dataset": {"name": _WORD, "version": _WORD, "users": _COUNT, "items": _COUNT, "interactions": _COUNT},
    "protocol": _WORD,
    "leaks": _WORDS,
    "notes": _WORDS,
    "clients": _COUNT,
    "seed": _COUNT,
    "rounds_run": _COUNT,
    "best_round": _COUNT,
    "test": _METRICS,
    "valid": _METRICS,
    "chance": _METRICS,
    "bytes": {"up_per_client_round": _NUMBER, "down_per_client_round": _NUMBER},
    "seconds": {"train": _NUMBER, "evaluate": _NUMBER},
    "peak_memory_mb": _NUMBER,
    "versions": {},
}
FILTERED = {"rule": _WORD, "users": _COUNT, "items": _COUNT, "rows": _COUNT}
PRIVACY = {"stages": _WORDS, "epsilon": _NUMBER + _OR_NONE, "delta": _NUMBER + _OR_NONE, "meaning": _WORD}
COUNTED = {"uploads": _COUNT, "planned": {"uploads": _COUNT}, "unprotected_bytes": _SIZES, "not_covered": _WORD}


def check_summary(summary: Any) -> None:
    """Raise ValueError, with the place, where a summary is not one."""
    _check("summary", summary, SUMMARY)
    filtered = summary.get("filtered", [])  # absent from runs of earlier versions
    if not isinstance(filtered, list):
        raise ValueError("summary.filtered is not a list")
    for record in filtered:
        _check("filtered", record, FILTERED)
    if "privacy" in summary:
        _check("privacy", summary["privacy"], PRIVACY)
        if "planned" in summary["privacy"]:  # old versions counted less
            _check("privacy", summary["privacy"], COUNTED)
            none = summary["privacy"]["epsilon"] is None
            _check("privacy.planned.epsilon", summary["privacy"]["planned"].get("epsilon"), _NUMBER + none * _OR_NONE)


def is_number(value: Any) -> bool:
    return (
        isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 1e300 and math.isfinite(value)
    )


def is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _check(place: str, value: Any, wanted: Any) -> None:
    if isinstance(wanted, Mapping):
        if not isinstance(value, dict):
            raise ValueError(f"{place} is not a table")
        for name, kind in wanted.items():
            if name not in value:
                raise ValueError(f"{place} has no {name}")
            _check(f"{place}.{name}", value[name], kind)
    elif not (value is None and wanted.endswith(_OR_NONE)) and not _fits(value, wanted.removesuffix(_OR_NONE)):
        raise ValueError(f"{place} is not {wanted}")


def _fits(value: Any, wanted: str) -> bool:
    if wanted == _METRICS:
        names = isinstance(value, dict) and all(re.fullmatch(r"\w+@[1-9][0-9]{0,8}", name) for name in value)
        return names and all(map(is_number, value.values()))
    if wanted == _SIZES:
        return isinstance(value, dict) and all(map(is_count, value.values()))
    if wanted == _WORDS:
        return isinstance(value, list) and all(isinstance(word, str) for word in value)
    return isinstance(value, str) if wanted == _WORD else is_count(value) if wanted == _COUNT else is_number(value)
