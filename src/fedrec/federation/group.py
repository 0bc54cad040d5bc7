"""Processes that share the work of a simulation. Alone, one process has all of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np

from fedrec.federation.clients import ClientData
from fedrec.federation.contract import Tensors
from fedrec.federation.figures import Observed
from fedrec.federation.update import Update
from fedrec.federation.wire import Ledger


class Group(Protocol):
    """Every function is called by all processes at the same point."""

    @property
    def size(self) -> int:
        """How many processes there are."""
        ...

    @property
    def first(self) -> bool:
        """Whether this process is the one that writes and prints."""
        ...

    def shard(self, data: ClientData) -> ClientData:
        """The clients of this process."""
        ...

    def merge_updates(self, update: Update) -> Update:
        """What all processes send, the same in each."""
        ...

    def sum_observed(self, observed: Observed) -> Observed: ...

    def sum_numbers(self, numbers: Sequence[float]) -> list[float]:
        """Sums over processes."""
        ...

    def sum_arrays(self, array: np.ndarray) -> np.ndarray:
        """The sum over processes of an array that has the same shape in each."""
        ...

    def any(self, flag: bool) -> bool:
        """Whether it is so in at least one process."""
        ...

    def share_text(self, text: str) -> str:
        """What the first process says."""
        ...

    def merge_ledgers(self, ledger: Ledger) -> Ledger: ...

    def collect_rows(self, tensors: Tensors) -> Tensors:
        """Rows of all processes, which are in order of clients; in all processes but the first, nothing."""
        ...

    def offset(self, rows: int) -> int:
        """How many rows the processes before this one have, where this one has so many."""
        ...


class SingleProcess:
    """One process."""

    size = 1
    first = True

    def shard(self, data: ClientData) -> ClientData:
        return data

    def merge_updates(self, update: Update) -> Update:
        return update

    def sum_observed(self, observed: Observed) -> Observed:
        return observed

    def sum_numbers(self, numbers: Sequence[float]) -> list[float]:
        return list(numbers)

    def sum_arrays(self, array: np.ndarray) -> np.ndarray:
        return array

    def any(self, flag: bool) -> bool:
        return flag

    def share_text(self, text: str) -> str:
        return text

    def merge_ledgers(self, ledger: Ledger) -> Ledger:
        return ledger

    def collect_rows(self, tensors: Tensors) -> Tensors:
        return tensors

    def offset(self, rows: int) -> int:
        return 0


ALONE = SingleProcess()
