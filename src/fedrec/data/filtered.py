"""What a filter left out on the way from the data to a run: counted, and known by id."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

Array = np.ndarray[Any, np.dtype[Any]]


LOWER_RATING, LOWER_MINIMUM = "a lower --min-rating", "a lower min_interactions in --protocol"
"""Remedies: with which of its settings a protocol leaves fewer users out."""


def count_in_words(users: int, items: int, rows: int) -> str:
    """What there is of them, in words."""
    counts = [(users, "user"), (items, "item"), (rows, "row")]
    *others, last = [f"{count:,} {name}{'s' * (count != 1)}" for count, name in counts if count] or ["nothing"]
    return f"{', '.join(others)}{' and ' * bool(others)}{last}"


def _no_ids() -> Array:
    return np.empty(0, dtype=np.int64)


@dataclass(frozen=True, eq=False)
class Filtered:
    """What one filter left out: rows, and the users and items that had no other row left."""

    rule: str
    """Whom or what it left out, for instance "users with fewer than 10 items"."""
    users: int
    items: int
    rows: int
    remedy: str = ""
    """What to train with so that they stay."""
    user_ids: Array = field(default_factory=_no_ids, repr=False)
    item_ids: Array = field(default_factory=_no_ids, repr=False)

    def __str__(self) -> str:
        return f"{count_in_words(self.users, self.items, self.rows)} ({self.rule})"

    def to_dict(self) -> dict[str, Any]:
        """As a summary holds it: without the ids."""
        return {"rule": self.rule, "users": self.users, "items": self.items, "rows": self.rows}

    @staticmethod
    def from_dict(record: Mapping[str, Any]) -> Filtered:
        return Filtered(record["rule"], record["users"], record["items"], record["rows"])

    def holds(self, kind: str, name: str) -> bool:
        """Whether it left out the user or item (`kind`) of this id."""
        ids = self.user_ids if kind == "user" else self.item_ids
        return bool((ids.astype(str) == name).any())
