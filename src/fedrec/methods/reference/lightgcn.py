"""Centralised LightGCN: one graph of all users and items. He et al., SIGIR 2020.

One round is one epoch; triples are drawn anew every epoch.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from fedrec import method as fm
from fedrec.training.silo_training import own_models
from fedrec.training.triple_descent import TripleLoss


@dataclass(frozen=True)
class CentralLightGCN(fm.SiloMethod):
    info: ClassVar[fm.MethodInfo] = fm.MethodInfo(
        name="lightgcn",
        summary="graph convolution",
        paper="He et al., SIGIR 2020",
        backbones={"lightgcn": {}},
        centralised=True,
        scores_together=True,
    )

    rounds: fm.Count = 1000
    backbone: str = "lightgcn"
    dim: fm.Count = 64
    layers: int = 3
    lr: float = 0.001
    weight_decay: float = 1e-4
    batch: fm.Count = 2048
    loss: TripleLoss = "bpr"
    """Training loss on triples of a user, a liked item and a drawn one."""
    resample: bool = True

    def init_clients(self, world: fm.World, chunk: fm.Chunk) -> fm.State:
        trainer = self.part(chunk).trainer
        return trainer.start(world, chunk, own_models(trainer, world, chunk.clients))

    def local(self, state: fm.State, down: fm.Down, chunk: fm.Chunk, round: int) -> tuple[fm.State, fm.Uploads]:
        return self.part(chunk).trainer.train(state, chunk, round), {}

    def score(self, state: fm.State, down: fm.Down, chunk: fm.Chunk, items: Tensor) -> Tensor:
        return self.part(chunk).trainer.scores(state, chunk, items)
