"""Centralised LightGCN: one graph of all users and items. He et al., SIGIR 2020.

One round is one epoch; triples are drawn anew every epoch.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from fedrec.federation.clients import Chunk
from fedrec.federation.contract import Down, MethodInfo, Reduction, State, World
from fedrec.federation.ranges import Count
from fedrec.training.silo_method import SiloMethod
from fedrec.training.silo_training import own_models
from fedrec.training.triple_descent import TripleLoss


@dataclass(frozen=True)
class CentralLightGCN(SiloMethod):
    info: ClassVar[MethodInfo] = MethodInfo(
        name="lightgcn",
        summary="graph convolution",
        paper="He et al., SIGIR 2020",
        backbones={"lightgcn": {}},
        centralised=True,
        scores_together=True,
    )

    rounds: Count = 1000
    backbone: str = "lightgcn"
    dim: Count = 64
    layers: int = 3
    lr: float = 0.001
    weight_decay: float = 1e-4
    batch: Count = 2048
    loss: TripleLoss = "bpr"
    """Training loss on triples of a user, a liked item and a drawn one."""
    resample: bool = True

    def init_clients(self, world: World, chunk: Chunk) -> State:
        trainer = self.part(chunk).trainer
        return trainer.start(world, chunk, own_models(trainer, world, chunk.clients))

    def local(self, state: State, down: Down, chunk: Chunk, round: int) -> tuple[State, dict[str, Reduction]]:
        return self.part(chunk).trainer.train(state, chunk, round), {}

    def score(self, state: State, down: Down, chunk: Chunk, items: Tensor) -> Tensor:
        return self.part(chunk).trainer.scores(state, chunk, items)
