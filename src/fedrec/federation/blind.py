"""What a simulation asks of secure sums: every client's update enters by itself, and the sum alone comes out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np

from fedrec.federation.schema import Schema
from fedrec.federation.update import Update

Traffic = Sequence[tuple[str, np.ndarray, np.ndarray]]
"""Messages of one kind: up or down, of which clients, and how many bytes each."""


class BlindSum(Protocol):
    """Of one round."""

    @property
    def is_given_up(self) -> bool:
        """Too few were left, so there is no sum."""
        ...

    def take(self, update: Update) -> None:
        """The update of one client, which arrives."""
        ...

    def result(self) -> Update:
        """The sum of those that arrived; empty where nobody sent anything, or too few did."""
        ...

    def traffic(self) -> Traffic: ...


class BlindSums(Protocol):
    def begin(self, members: np.ndarray, round: int, fewest: int = 0) -> BlindSum:
        """Of the clients whose uploads a round is to have, whether they arrive or not; given up with too few left."""
        ...


MakeBlindSums = Callable[[Schema], BlindSums]
"""For what clients send."""
