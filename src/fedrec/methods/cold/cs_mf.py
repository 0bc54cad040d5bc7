"""CS-MF: centralised matrix factorisation; a new item is the mean of its neighbours by attributes.

A reference in the comparison of IFedRec (WWW 2024): centralised interactions and attributes.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar, Literal

import numpy as np
from torch import Tensor

from fedrec.federation.clients import Chunk
from fedrec.federation.contract import Disclosure, Down, Footprint, MethodInfo, Reduction, State, Tensors, World
from fedrec.federation.ranges import Count
from fedrec.methods.cold.content import neighbour_rows, scored_once, with_neighbours
from fedrec.methods.reference.alone import Alone
from fedrec.training.local_training import LocalMethod
from fedrec.training.precision import TableDtype


@dataclass(frozen=True)
class CsMF(LocalMethod):
    info: ClassVar[MethodInfo] = MethodInfo(
        name="cs-mf",
        summary="new items: matrix factorisation, a new item is the mean of its neighbours by attributes",
        paper="Zhang et al., WWW 2024 (baseline)",
        backbones={"mf": {}},
        centralised=True,
    )

    rounds: Count = 100
    dim: Count = 200
    lr: float = 0.001
    optimiser: Literal["sgd", "adam"] = "adam"
    table_dtype: TableDtype = "full"
    neighbours: Count = 20
    """Trained items, nearest by attributes, whose mean stands for a new item."""

    @cached_property
    def alone(self) -> Alone:
        return Alone(self.trainer)

    @property
    def disclosure(self) -> Disclosure:
        return Disclosure(private=("user", "item"), attributes="server")

    def init_server(self, world: World, attributes: Tensor | None = None) -> Tensors:
        return with_neighbours(self.require_attributes(attributes), world.items, self.neighbours)

    def init_clients(self, world: World, chunk: Chunk) -> State:
        return self.alone.init_clients(world, chunk)

    def local(self, state: State, down: Down, chunk: Chunk, round: int) -> tuple[State, dict[str, Reduction]]:
        return self.alone.train(state, chunk, round), {}

    def with_items(self, server: Tensors, attributes: Tensor) -> Tensors:
        more = super().with_items(server, attributes)["attributes"]
        return with_neighbours(more, len(server["attributes"]) - len(server["near"]), self.neighbours)

    def offer(self, server: Tensors, clients: np.ndarray, round: int, items: Tensor) -> Down:
        return Down(shared={"near": server["near"]})

    def score(self, state: State, down: Down, chunk: Chunk, items: Tensor) -> Tensor:
        table = self.trainer.widen(state.per_client, chunk.world)["item"][0]
        rows = neighbour_rows(table, down.shared["near"], items)
        distinct, which = scored_once(rows)
        return self.model.scores(state.per_user["user"], distinct, {})[:, which]

    def footprint(self, world: World) -> Footprint:
        return self.alone.footprint(world)
