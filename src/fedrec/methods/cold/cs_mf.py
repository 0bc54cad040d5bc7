"""CS-MF: centralised matrix factorisation; a new item is the mean of its neighbours by attributes.

A reference in the comparison of IFedRec (WWW 2024): interactions and attributes of everything in one place.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
from torch import Tensor

from fedrec.federation.clients import Chunk
from fedrec.federation.contract import Disclosure, Down, MethodInfo, State, Tensors, World
from fedrec.federation.ranges import Count
from fedrec.methods.cold.content import neighbour_rows, scored_once, with_attributes, with_neighbours
from fedrec.methods.reference.mf import CentralMF


@dataclass(frozen=True)
class CsMF(CentralMF):
    info: ClassVar[MethodInfo] = MethodInfo(
        name="cs-mf",
        summary="new items: matrix factorisation, a new item is the mean of its neighbours by attributes",
        paper="Zhang et al., WWW 2024 (baseline)",
        backbones={"mf": {}},
        centralised=True,
    )

    rounds: Count = 100
    dim: Count = 200
    neighbours: Count = 20

    @property
    def disclosure(self) -> Disclosure:
        return replace(super().disclosure, attributes="server")

    def init_server(self, world: World, attributes: Tensor | None = None) -> Tensors:
        return with_neighbours(attributes, world.items, self.neighbours, self.info.name)

    def with_items(self, server: Tensors, attributes: Tensor) -> Tensors:
        more = with_attributes(server, attributes)["attributes"]
        return with_neighbours(more, len(server["attributes"]) - len(server["near"]), self.neighbours, self.info.name)

    def offer(self, server: Tensors, clients: np.ndarray, round: int, items: Tensor) -> Down:
        return Down(shared={"near": server["near"]})

    def score(self, state: State, down: Down, chunk: Chunk, items: Tensor) -> Tensor:
        rows = neighbour_rows(state.per_client["item"][0], down.shared["near"], items)
        distinct, which = scored_once(rows)
        return self.model.scores(state.per_user["user"], distinct, {})[:, which]
