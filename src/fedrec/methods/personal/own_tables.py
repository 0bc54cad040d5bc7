"""One item table per client is most of what a simulation holds: it may be kept in half precision.

A table is called `item`, or has a name that ends so.
"""

from __future__ import annotations

from typing import Literal

import torch

from fedrec.federation.contract import Tensors, World

TableDtype = Literal["full", "float16", "bfloat16"]
"""Of tables at rest; they are computed with in full precision."""

HALF = {"float16": torch.float16, "bfloat16": torch.bfloat16}


def stored(tensors: Tensors, kind: TableDtype) -> Tensors:
    """As they are kept between two rounds."""
    half = HALF.get(kind)
    return {name: value.to(half) if half and _table(name) else value for name, value in tensors.items()}


def opened(tensors: Tensors, kind: TableDtype, world: World) -> Tensors:
    """As they are computed with."""
    half = kind in HALF
    return {name: value.to(world.dtype) if half and _table(name) else value for name, value in tensors.items()}


def _table(name: str) -> bool:
    return name == "item" or name.endswith(".item")
