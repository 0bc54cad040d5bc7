"""What a check says: its verdict, its figures, and one sentence."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

Status = Literal["pass", "warn", "fail", "n/a"]
"""`warn`: a caveat when reading the figures; `fail`: the figures are not what they claim to be."""


@dataclass(frozen=True)
class Finding:
    name: str
    status: Status
    sentence: str
    figure: Mapping[str, float] = field(default_factory=dict)

    @property
    def figure_text(self) -> str:
        return ", ".join(f"{name} {_number(value)}" for name, value in self.figure.items())

    def to_dict(self) -> dict[str, Any]:
        return {"name": self.name, "status": self.status, "figure": dict(self.figure), "sentence": self.sentence}


def _number(value: float) -> str:
    if isinstance(value, int):
        return f"{value:,}"
    digits = 0 if value >= 100 else 3 if value >= 0.1 or value == 0 else 4
    return f"{value:,.{digits}f}"


def share_text(share: float) -> str:
    """A share as text; a small one is never rounded to 0."""
    return "None" if share == 0 else "Under 0.1 %" if share < 0.001 else f"{100 * share:.1f} %"
