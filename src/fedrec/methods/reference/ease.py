"""EASE: the linear item-item model with zero diagonal in closed form, on everybody's data. Steck, WWW 2019.

With G = X'X + lambda I and P = G^-1: B = I - P diag(1 / diag P), scores = X B (equation 8 of the paper).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn.functional import embedding_bag

from fedrec import method as fm
from fedrec.methods.closed_form import gram


@dataclass(frozen=True)
class Ease(fm.Method):
    info: ClassVar[fm.MethodInfo] = fm.MethodInfo(
        name="ease",
        summary="closed-form item-item model",
        paper="Steck, WWW 2019",
        centralised=True,
        new_users=0,
    )

    rounds: fm.Count = 1
    l2: float = 250.0  # lambda

    def init_clients(self, world: fm.World, chunk: fm.Chunk) -> fm.State:
        size = (len(chunk.clients), world.items, world.items)
        return fm.State(per_client={"weight": torch.zeros(size, dtype=world.dtype, device=world.device)})

    def local(self, state: fm.State, down: fm.Down, chunk: fm.Chunk, round: int) -> tuple[fm.State, fm.Uploads]:
        x = chunk.matrix()
        weight = gram.ridge(chunk.tensor((x.T @ x).toarray()), None, self.l2)
        return fm.State(per_client={"weight": weight.to(chunk.world.dtype).unsqueeze(0)}), {}

    def score(self, state: fm.State, down: fm.Down, chunk: fm.Chunk, items: Tensor) -> Tensor:
        at, ends = chunk.tensor(chunk.context.by_item()), chunk.tensor(chunk.context.ptr)
        return embedding_bag(at, state.per_client["weight"][0], ends, mode="sum", include_last_offset=True)[:, items]
