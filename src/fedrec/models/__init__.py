"""Backbones by name."""

from __future__ import annotations

from collections.abc import Callable

from fedrec.models.backbone import Backbone
from fedrec.models.linear import Linear
from fedrec.models.mf import MF
from fedrec.models.ncf import NCF

BACKBONES: dict[str, Callable[[int], Backbone]] = {"mf": MF, "ncf": NCF, "linear": Linear}

__all__ = ["BACKBONES", "MF", "NCF", "Backbone", "Linear"]
