"""CS-MF: centralised matrix factorisation; a new item is the mean of its neighbours by attributes.

A reference in the comparison of IFedRec (WWW 2024): interactions and attributes of everything in one place.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from torch import Tensor

from fedrec.federation.clients import Chunk
from fedrec.federation.contract import Down, State, Tensors, World
from fedrec.federation.ranges import COUNT
from fedrec.methods.content import neighbour_rows, scored_once, with_neighbours
from fedrec.methods.mf import CentralMF


@dataclass(frozen=True)
class CsMF(CentralMF):
    name: ClassVar[str] = "cs-mf"
    aliases: ClassVar[Mapping[str, Mapping[str, object]]] = {}
    summary: ClassVar[str] = "new items: matrix factorisation, a new item is the mean of its neighbours by attributes"
    paper: ClassVar[str] = "Zhang et al., WWW 2024 (baseline)"
    attributes: ClassVar[str] = "server"
    ranges: ClassVar[Mapping[str, str]] = {"neighbours": COUNT}

    rounds: int = 100
    dim: int = 200
    neighbours: int = 20

    def init_server(self, world: World, attributes: Tensor | None = None) -> Tensors:
        return with_neighbours(attributes, world.items, self.neighbours, self.name)

    def with_items(self, server: Tensors, attributes: Tensor) -> Tensors:
        more = super().with_items(server, attributes)["attributes"]
        return with_neighbours(more, len(server["attributes"]) - len(server["near"]), self.neighbours, self.name)

    def offer(self, server: Tensors, clients: np.ndarray, round: int, items: Tensor) -> Down:
        return Down(shared={"near": server["near"]})

    def score(self, state: State, down: Down, chunk: Chunk, items: Tensor) -> Tensor:
        rows = neighbour_rows(state.per_client["item"][0], down.shared["near"], items)
        distinct, which = scored_once(rows)
        return self.model.scores(state.per_user["user"], distinct, {})[:, which]
