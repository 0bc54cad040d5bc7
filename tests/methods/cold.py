"""Attributes for tiny worlds, and methods that take them where the suite gives none."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from fedrec.federation.clients import ClientData
from fedrec.federation.contract import Method, Tensors, World
from fedrec.testing import run

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


def saturates(method: Any, data: ClientData, rounds: int) -> None:
    """Scores leave single precision at these rates, so that without saturation the same start ends elsewhere."""
    other = run(replace(method, saturate="none"), data, rounds)["scores"]
    assert not torch.allclose(run(method, data, rounds)["scores"], other, rtol=0.01)
