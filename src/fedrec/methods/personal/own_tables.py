"""One item table per client is most of what a simulation holds: it may be kept in half precision."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

import torch

from fedrec.federation.contract import Footprint, Tensors, World
from fedrec.training.local_training import LocalTraining

HALF = {"float16": torch.float16, "bfloat16": torch.bfloat16}


@dataclass(frozen=True)
class OwnTables(LocalTraining):
    """Every client keeps an item table of its own, under `item` or a name that ends so."""

    table_dtype: Literal["full", "float16", "bfloat16"] = "full"  # of tables at rest; computed with in full precision

    def stored(self, tensors: Tensors) -> Tensors:
        """As they are kept between two rounds."""
        kind = HALF.get(self.table_dtype)
        return {name: value.to(kind) if kind and _table(name) else value for name, value in tensors.items()}

    def opened(self, tensors: Tensors, world: World) -> Tensors:
        """As they are computed with."""
        half = self.table_dtype in HALF
        return {name: value.to(world.dtype) if half and _table(name) else value for name, value in tensors.items()}

    def footprint(self, world: World) -> Footprint:
        opened = world.items * self.dim * world.dtype.itemsize if self.table_dtype in HALF else 0
        usual = super().footprint(world)
        return replace(usual, score=usual.score + opened)


def _table(name: str) -> bool:
    return name == "item" or name.endswith(".item")
