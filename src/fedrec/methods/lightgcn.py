"""Centralised LightGCN: one graph of all users and items. He et al., SIGIR 2020.

One round is one epoch; triples are drawn anew every epoch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from fedrec.federation.silo_training import TripleLoss
from fedrec.methods.silo import SiloLocal


@dataclass(frozen=True)
class CentralLightGCN(SiloLocal):
    name: ClassVar[str] = "lightgcn"
    summary: ClassVar[str] = "graph convolution on all data in one place"
    paper: ClassVar[str] = "He et al., SIGIR 2020"
    centralised: ClassVar[bool] = True
    backbones: ClassVar[tuple[str, ...]] = ("lightgcn",)
    backbone_defaults: ClassVar[Mapping[str, Mapping[str, object]]] = {}
    presets: ClassVar[Mapping[str, Mapping[str, object]]] = {}

    rounds: int = 1000
    backbone: str = "lightgcn"
    dim: int = 64
    layers: int = 3
    lr: float = 0.001
    weight_decay: float = 1e-4
    batch: int = 2048
    loss: TripleLoss = "bpr"
    resample: bool = True
