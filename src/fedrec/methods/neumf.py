"""Centralised NeuMF: a weighted inner product and a network side by side, trained together on everybody's data.

He et al., WWW 2017, without pre-training. One round is one epoch over all users' shuffled samples, negatives redrawn.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch

from fedrec.federation.contract import Tensors, World
from fedrec.methods.local import Local


@dataclass(frozen=True)
class CentralNeuMF(Local):
    name: ClassVar[str] = "neumf"
    aliases: ClassVar[Mapping[str, Mapping[str, object]]] = {}
    summary: ClassVar[str] = "neural matrix factorisation on all data in one place"
    paper: ClassVar[str] = "He et al., WWW 2017"
    centralised: ClassVar[bool] = True
    backbones: ClassVar[tuple[str, ...]] = ("neumf",)
    presets: ClassVar[Mapping[str, Mapping[str, object]]] = {"wide": {"dim": 128, "factors": 64}}
    private: ClassVar[tuple[str, ...]] = ("user", "item", "dense")
    fold_in_rounds: ClassVar[int | None] = None

    backbone: str = "neumf"
    rounds: int = 100
    dim: int = 40  # of a vector: the factors, and what goes into the tower
    factors: int = 8
    layers: int = 3  # of the tower, each half as wide as the one before
    lr: float = 0.001
    optimiser: Literal["sgd", "adam"] = "adam"

    def init_dense(self, world: World) -> Tensors:
        """The output layer LeCun-uniform: within sqrt(3 / fan-in), without bias."""
        dense = super().init_dense(world)
        return dense | {"output": 3**0.5 * dense["output"], "output_bias": torch.zeros_like(dense["output_bias"])}
