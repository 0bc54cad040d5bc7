"""What a group of clients sends to the server in a round: partial sums, and single uploads where a method gathers.

Updates of several groups merge into one: sums add up, gathered uploads stand side by side.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from torch import Tensor

from fedrec.federation.messages import Tensors, Ups

Gathered = Mapping[str, list[tuple[np.ndarray, Tensor]]]


@dataclass(frozen=True)
class Update:
    """Weighted sums in float64 under the names of the server, and what each is divided by where it is a mean."""

    totals: Tensors = field(default_factory=dict)
    weights: Mapping[str, float] = field(default_factory=dict)
    means: frozenset[str] = frozenset()
    gathered: Gathered = field(default_factory=dict)
    clients: np.ndarray = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    """Whose uploads these are."""

    def to(self, device: torch.device) -> Update:
        """With its sums on a device."""
        return replace(self, totals={name: total.to(device) for name, total in self.totals.items()})

    def ups(self, dtype: torch.dtype) -> Ups:
        """For the server. The sums are handed over: they may be as large as a method's largest message."""
        reduced = {}
        for key in list(self.totals):
            total = self.totals.pop(key)
            if key in self.means and self.weights[key] == 0:
                continue  # nobody who sent it has any weight: there is no mean
            reduced[key] = (total / self.weights[key] if key in self.means else total).to(dtype)
        return Ups(reduced, self.gathered, self.clients)


def merge_updates(updates: Iterable[Update]) -> Update:
    """All of a round. Sums are formed in place, in the order given."""
    totals: Tensors = {}
    weights: dict[str, float] = {}
    means: set[str] = set()
    gathered: dict[str, list[tuple[np.ndarray, Tensor]]] = {}
    clients: list[np.ndarray] = []
    for update in updates:
        for key, total in update.totals.items():
            totals[key] = totals[key].add_(total) if key in totals else total
            weights[key] = weights.get(key, 0.0) + update.weights[key]
        means |= update.means
        for name, parts in update.gathered.items():
            gathered.setdefault(name, []).extend(parts)
        clients.append(update.clients)
    return Update(totals, weights, frozenset(means), gathered, distinct(clients))


def distinct(parts: Sequence[np.ndarray]) -> np.ndarray:
    """All client numbers in some arrays, ascending; without sorting where they are."""
    numbers = np.concatenate([np.zeros(0, dtype=np.int64), *parts])
    return numbers if (np.diff(numbers) > 0).all() else np.unique(numbers)
