"""Centralised LightGCN: one graph of all users and items. He et al., SIGIR 2020.

One round is one epoch; triples are drawn anew every epoch.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from fedrec.federation.contract import MethodInfo
from fedrec.federation.ranges import Count
from fedrec.methods.silo.silo import SiloLocal
from fedrec.training.silo_training import TripleLoss


@dataclass(frozen=True)
class CentralLightGCN(SiloLocal):
    """SiloLocal with one silo, which has everything."""

    info: ClassVar[MethodInfo] = MethodInfo(
        name="lightgcn",
        summary="graph convolution on all data in one place",
        paper="He et al., SIGIR 2020",
        backbones={"lightgcn": {}},
        centralised=True,
    )

    rounds: Count = 1000
    backbone: str = "lightgcn"
    dim: Count = 64
    layers: int = 3
    lr: float = 0.001
    weight_decay: float = 1e-4
    batch: Count = 2048
    loss: TripleLoss = "bpr"
    resample: bool = True
