"""Centralised NeuMF: a weighted inner product and a network side by side, trained together on everybody's data.

He et al., WWW 2017, without pre-training. One round is one epoch over all users' shuffled samples, negatives redrawn.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar, Literal

import torch
from torch import Tensor

from fedrec.federation.clients import Chunk
from fedrec.federation.contract import Disclosure, Down, Footprint, MethodInfo, Reduction, State, Tensors, World
from fedrec.federation.ranges import Count
from fedrec.methods.reference.alone import Alone
from fedrec.training.local_training import LocalMethod
from fedrec.training.precision import TableDtype


@dataclass(frozen=True)
class CentralNeuMF(LocalMethod):
    info: ClassVar[MethodInfo] = MethodInfo(
        name="neumf",
        summary="neural matrix factorisation",
        paper="He et al., WWW 2017",
        backbones={"neumf": {}},
        centralised=True,
    )
    models = "own"

    backbone: str = "neumf"
    rounds: Count = 100
    dim: Count = 40
    """Width of a vector: its factors, and what goes into the tower."""
    table_dtype: TableDtype = "full"
    factors: int = 8
    """Width of the part that is multiplied, beside the tower."""
    layers: int = 3
    """Layers of the tower, each half as wide as the one before."""
    lr: float = 0.001
    optimiser: Literal["sgd", "adam"] = "adam"

    @cached_property
    def alone(self) -> Alone:
        return Alone(self.trainer)

    @property
    def disclosure(self) -> Disclosure:
        return Disclosure(private=("user", "item", *self.model.dense_shapes()))

    def init_model(self, world: World) -> Tensors:
        """The output layer LeCun-uniform: within sqrt(3 / fan-in), without bias."""
        model = self.trainer.init_model(world)
        return model | {"output": 3**0.5 * model["output"], "output_bias": torch.zeros_like(model["output_bias"])}

    def init_clients(self, world: World, chunk: Chunk) -> State:
        return self.alone.init_clients(world, chunk, self.init_model(world))

    def local(self, state: State, down: Down, chunk: Chunk, round: int) -> tuple[State, dict[str, Reduction]]:
        return self.alone.train(state, chunk, round), {}

    def score(self, state: State, down: Down, chunk: Chunk, items: Tensor) -> Tensor:
        return self.alone.score(state, chunk, items)

    def footprint(self, world: World) -> Footprint:
        return self.alone.footprint(world)
