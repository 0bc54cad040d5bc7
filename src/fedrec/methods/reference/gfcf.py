"""Centralised GF-CF: the graph filter of everybody's data. Shen et al., CIKM 2021."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from fedrec.federation.clients import Chunk
from fedrec.federation.contract import Down, Footprint, Method, MethodInfo, State, World
from fedrec.federation.ranges import Count
from fedrec.models.gfcf import GFCF
from fedrec.training.silo_training import filter_scores


@dataclass(frozen=True)
class CentralGFCF(Method):
    info: ClassVar[MethodInfo] = MethodInfo(
        name="gfcf",
        summary="closed-form graph filter",
        paper="Shen et al., CIKM 2021",
        aliases={"gf-cf": {}},
        centralised=True,
        scores_together=True,
    )

    rounds: Count = 1
    frequencies: Count = 256
    """Singular vectors in the ideal low-pass filter."""
    ideal_weight: float = 0.3
    """Weight of the ideal low-pass filter."""

    def score(self, state: State, down: Down, chunk: Chunk, items: Tensor) -> Tensor:
        return filter_scores(GFCF(self.frequencies, self.ideal_weight), chunk)[:, items]

    def footprint(self, world: World) -> Footprint:
        return Footprint(score=8 * 8 * world.items)
