"""Centralised NeuMF: a weighted inner product and a network side by side, trained together on everybody's data.

He et al., WWW 2017, without pre-training. One round is one epoch over all users' shuffled samples, negatives redrawn.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch

from fedrec import method as fm
from fedrec.methods.reference.local import Local


@dataclass(frozen=True)
class CentralNeuMF(Local):
    """Local with a single client, which has everything, and with a network of two parts."""

    info: ClassVar[fm.MethodInfo] = fm.MethodInfo(
        name="neumf",
        summary="neural matrix factorisation",
        paper="He et al., WWW 2017",
        backbones={"neumf": {}},
        centralised=True,
    )

    backbone: str = "neumf"
    rounds: fm.Count = 100
    dim: fm.Count = 40
    """Width of a vector: its factors, and what goes into the tower."""
    factors: int = 8
    """Width of the part that is multiplied, beside the tower."""
    layers: int = 3
    """Layers of the tower, each half as wide as the one before."""
    lr: float = 0.001
    optimiser: Literal["sgd", "adam"] = "adam"

    def init_model(self, world: fm.World) -> fm.Tensors:
        """Draw the output layer LeCun-uniform, within sqrt(3 / fan-in), without bias; all else as usual."""
        model = self.trainer.init_model(world)
        return model | {"output": 3**0.5 * model["output"], "output_bias": torch.zeros_like(model["output_bias"])}

    def init_clients(self, world: fm.World, chunk: fm.Chunk) -> fm.State:
        return self.trainer.init_state(world, chunk, self.init_model(world))
