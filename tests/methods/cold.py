"""Attributes for tiny worlds, and methods that take them where the suite gives none."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from fedrec.federation.contract import Method, Tensors, World

COLD = 7  # items beyond those of a tiny world
WIDTH = 5


def attributes(world: World) -> Tensor:
    drawn = torch.randn(world.items + COLD, WIDTH, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    drawn[-1] = drawn[-2]  # two new items that nothing tells apart
    return drawn.to(world.dtype)


def with_attributes(cls: type[Method], **fields: Any) -> Any:
    """The method, given `attributes` whenever a server starts without any."""

    class Given(cls):  # type: ignore[misc, valid-type]
        def init_server(self, world: World, given: Tensor | None = None) -> Tensors:
            return super().init_server(world, attributes(world) if given is None else given)

    return Given(**fields)
