"""Backbones by name."""

from __future__ import annotations

from collections.abc import Callable

from fedrec.models.backbone import Backbone, Sequential
from fedrec.models.linear import Linear
from fedrec.models.mf import MF
from fedrec.models.ncf import NCF
from fedrec.models.neumf import NeuMF
from fedrec.models.sasrec import SASRec
from fedrec.models.scorer import Scorer

BACKBONES: dict[str, Callable[..., Backbone]] = {
    "mf": MF,
    "ncf": NCF,
    "linear": Linear,
    "scorer": Scorer,
    "sasrec": SASRec,
    "neumf": NeuMF,
}

__all__ = ["BACKBONES", "MF", "NCF", "Backbone", "Linear", "NeuMF", "SASRec", "Scorer", "Sequential"]
