"""CS-MF: centralised matrix factorisation; a new item is the mean of its neighbours by attributes.

A reference in the comparison of IFedRec (WWW 2024): centralised interactions and attributes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np
import torch
from torch import Tensor

from fedrec import method as fm
from fedrec.methods.cold.neighbours import neighbour_table, rows_with_neighbours
from fedrec.methods.reference.local import Local


@dataclass(frozen=True)
class CsMF(Local):
    """Local with one client, which has everything; and new items in the place of known ones."""

    info: ClassVar[fm.MethodInfo] = fm.MethodInfo(
        name="cs-mf",
        summary="new items: matrix factorisation, a new item is the mean of its neighbours by attributes",
        paper="Zhang et al., WWW 2024 (baseline)",
        backbones={"mf": {}},
        centralised=True,
    )
    attributes = "server"

    rounds: fm.Count = 100
    dim: fm.Count = 200
    lr: float = 0.001
    optimiser: Literal["sgd", "adam"] = "adam"
    neighbours: fm.Count = 20
    """Trained items, nearest by attributes, whose mean stands for a new item."""

    def init_server(self, world: fm.World, attributes: Tensor | None = None) -> fm.Tensors:
        return neighbour_table(self.require_attributes(attributes), world.items, self.neighbours)

    def with_items(self, server: fm.Tensors, attributes: Tensor) -> fm.Tensors:
        more = super().with_items(server, attributes)["attributes"]
        return neighbour_table(more, len(server["attributes"]) - len(server["near"]), self.neighbours)

    def offer(self, server: fm.Tensors, clients: np.ndarray, round: int, items: Tensor) -> fm.Down:
        return fm.Down(shared={"near": server["near"]})

    def score(self, state: fm.State, down: fm.Down, chunk: fm.Chunk, items: Tensor) -> Tensor:
        table = self.trainer.widen(state.per_client, chunk.world)["item"][0]
        rows = rows_with_neighbours(table, down.shared["near"], items)
        # each distinct row is scored once: equal items must tie to the last bit, wherever they stand
        distinct, which = torch.unique(rows, dim=0, return_inverse=True)
        return self.model.scores(state.per_user["user"], distinct, {})[:, which]
