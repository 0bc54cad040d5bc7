"""Backbones by name."""

from __future__ import annotations

from collections.abc import Callable

from fedrec.models.backbone import Backbone
from fedrec.models.linear import Linear
from fedrec.models.mf import MF
from fedrec.models.ncf import NCF
from fedrec.models.scorer import Scorer

BACKBONES: dict[str, Callable[[int], Backbone]] = {"mf": MF, "ncf": NCF, "linear": Linear, "scorer": Scorer}

__all__ = ["BACKBONES", "MF", "NCF", "Backbone", "Linear", "Scorer"]
