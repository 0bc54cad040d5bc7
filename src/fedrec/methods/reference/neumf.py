"""Centralised NeuMF: a weighted inner product and a network side by side, trained together on everybody's data.

He et al., WWW 2017, without pre-training. One round is one epoch over all users' shuffled samples, negatives redrawn.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch

from fedrec.federation.contract import Disclosure, MethodInfo, Tensors, World
from fedrec.federation.ranges import Count
from fedrec.methods.reference.local import Local


@dataclass(frozen=True)
class CentralNeuMF(Local):
    info: ClassVar[MethodInfo] = MethodInfo(
        name="neumf",
        summary="neural matrix factorisation on all data in one place",
        paper="He et al., WWW 2017",
        backbones={"neumf": {}},
        presets={"wide": {"dim": 128, "factors": 64}},
        centralised=True,
    )

    backbone: str = "neumf"
    rounds: Count = 100
    dim: Count = 40  # of a vector: the factors, and what goes into the tower
    factors: int = 8
    layers: int = 3  # of the tower, each half as wide as the one before
    lr: float = 0.001
    optimiser: Literal["sgd", "adam"] = "adam"

    @property
    def disclosure(self) -> Disclosure:
        return Disclosure(private=("user", "item", *self.model.dense_shapes()))

    def init_dense(self, world: World) -> Tensors:
        """The output layer LeCun-uniform: within sqrt(3 / fan-in), without bias."""
        dense = super().init_dense(world)
        return dense | {"output": 3**0.5 * dense["output"], "output_bias": torch.zeros_like(dense["output_bias"])}
