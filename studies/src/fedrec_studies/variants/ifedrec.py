"""IFedRec as its released code trains: short last batches count, and a saturated sigmoid has no gradient.

At the published rates steps overshoot, and that gradient is what bounds them (`fedrec.training`: `saturation`).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

from fedrec import method as fm
from fedrec.methods import cold
from fedrec.training import AlignedTrainer


def suggest_calmer_settings(method: Any) -> str:
    """Say which settings hold training where it is without."""
    calmer = {"saturate": "released", "last_batch": "drop"}
    missing = [f"--set {name}={value}" for name, value in calmer.items() if getattr(method, name) != value]
    return f"use {' '.join(missing)}, or " if missing else ""


@dataclass(frozen=True)
class IFedRecVariants(cold.IFedRec):
    """IFedRec with the choices of its released code."""

    info: ClassVar[fm.MethodInfo] = replace(cold.IFedRec.info, remedy=suggest_calmer_settings)

    last_batch: Literal["drop", "keep", "scale"] = "drop"
    """What happens to a short last batch: drop it, keep it, or scale it by the nominal size."""
    saturate: Literal["none", "released"] = "none"
    """released: no gradient where a single-precision sigmoid is 0 or 1, as in the released code."""

    def trainer_for(self, world: fm.World) -> AlignedTrainer:
        return replace(super().trainer_for(world), last_batch=self.last_batch, saturation=self.saturate)
