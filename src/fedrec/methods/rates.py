"""The rate of item rows where a paper's means over batch and clients are to be undone."""

from __future__ import annotations

from dataclasses import replace
from typing import TypeVar

from fedrec.federation.contract import World
from fedrec.training.local_training import LocalMethod

Kind = TypeVar("Kind", bound=LocalMethod)


def with_row_rate(method: Kind, scale: float, world: World) -> Kind:
    """The same method with that rate written out: without lr_item, rows move at lr * items * scale."""
    return method if method.lr_item is not None else replace(method, lr_item=method.lr * world.items * scale)
