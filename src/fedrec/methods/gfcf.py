"""Centralised GF-CF: the graph filter of everybody's data. Shen et al., CIKM 2021."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from fedrec.federation.clients import Chunk
from fedrec.federation.contract import Down, Method, State, World
from fedrec.federation.silo_training import filter_scores
from fedrec.models.gfcf import GFCF


@dataclass(frozen=True)
class CentralGFCF(Method):
    name: ClassVar[str] = "gfcf"
    aliases: ClassVar[Mapping[str, Mapping[str, object]]] = {"gf-cf": {}}
    summary: ClassVar[str] = "closed-form graph filter on all data in one place"
    paper: ClassVar[str] = "Shen et al., CIKM 2021"
    centralised: ClassVar[bool] = True

    rounds: int = 1
    frequencies: int = 256  # singular vectors in the ideal part
    ideal_weight: float = 0.3  # of the ideal part

    def score(self, state: State, down: Down, chunk: Chunk, items: Tensor) -> Tensor:
        return filter_scores(GFCF(self.frequencies, self.ideal_weight), chunk)[:, items]

    def score_bytes(self, world: World) -> int:
        return 8 * 8 * world.items
