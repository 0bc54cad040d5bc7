"""Precision of tables at rest: one item table per client is most of what a simulation holds.

A table is called `item`, or has a name that ends so.
"""

from __future__ import annotations

from typing import Literal

import torch

from fedrec.federation.contract import Tensors, World

TableDtype = Literal["full", "float16", "bfloat16"]
"""How a client's item table is stored between rounds; all computation is in the precision of the run."""

HALF = {"float16": torch.float16, "bfloat16": torch.bfloat16}


def narrow(tensors: Tensors, kind: TableDtype) -> Tensors:
    """Return the tensors as they are stored between two rounds."""
    half = HALF.get(kind)
    return {name: value.to(half) if half and _is_table(name) else value for name, value in tensors.items()}


def widen(tensors: Tensors, world: World) -> Tensors:
    """Return the tensors as they are computed with; those that are stored in full are not copied."""
    half = HALF.values()
    return {name: value.to(world.dtype) if value.dtype in half else value for name, value in tensors.items()}


def _is_table(name: str) -> bool:
    return name == "item" or name.endswith(".item")
