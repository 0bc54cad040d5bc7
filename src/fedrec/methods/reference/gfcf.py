"""Centralised GF-CF: the graph filter of everybody's data. Shen et al., CIKM 2021."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from fedrec import method as fm
from fedrec.models.gfcf import GFCF
from fedrec.training.silo_training import filter_scores


@dataclass(frozen=True)
class CentralGFCF(fm.Method):
    info: ClassVar[fm.MethodInfo] = fm.MethodInfo(
        name="gfcf",
        summary="closed-form graph filter",
        paper="Shen et al., CIKM 2021",
        aliases={"gf-cf": {}},
        centralised=True,
        scores_together=True,
    )

    rounds: fm.Count = 1
    frequencies: fm.Count = 256
    """Singular vectors in the ideal low-pass filter."""
    ideal_weight: float = 0.3
    """Weight of the ideal low-pass filter."""

    def score(self, state: fm.State, down: fm.Down, chunk: fm.Chunk, items: Tensor) -> Tensor:
        return filter_scores(GFCF(self.frequencies, self.ideal_weight), chunk)[:, items]

    def footprint(self, world: fm.World) -> fm.Footprint:
        return fm.Footprint(score=8 * 8 * world.items)
