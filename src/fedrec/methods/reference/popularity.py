"""Popularity: the score of an item is its number of training interactions over all clients. One secure sum suffices."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from fedrec import method as fm


@dataclass(frozen=True)
class Popularity(fm.Method):
    info: ClassVar[fm.MethodInfo] = fm.MethodInfo(
        name="popularity",
        summary="items by number of interactions",
        aliases={"pop": {}},
        new_users=0,
    )

    rounds: fm.Count = 1

    @property
    def disclosure(self) -> fm.Disclosure:
        return fm.Disclosure(
            secure_aggregation=True,
            reveals="one client's counts are its history",
            sensitivity=2**0.5,  # counts are not negative
        )

    def init_server(self, world: fm.World, attributes: Tensor | None = None) -> fm.Tensors:
        return {"popularity": torch.zeros(world.items, 1, dtype=world.dtype, device=world.device)}

    def broadcast(self, server: fm.Tensors, clients: np.ndarray, round: int) -> fm.Down:
        return fm.Down(shared=server)

    def local(self, state: fm.State, down: fm.Down, chunk: fm.Chunk, round: int) -> tuple[fm.State, fm.Uploads]:
        n_items = chunk.world.items
        owner = torch.repeat_interleave(chunk.owner, chunk.tensor(chunk.user_ptr).diff())
        # A row per client and item: two users of a silo may share one.
        pairs, times = torch.unique(owner * n_items + chunk.tensor(chunk.items), return_counts=True)
        value = times[:, None].to(chunk.world.dtype)
        none = torch.zeros_like(down.shared["popularity"])
        return state, {"count": fm.Sum(fm.Rows(none, pairs // n_items, pairs % n_items, value, len(chunk.clients)))}

    def aggregate(self, server: fm.Tensors, ups: fm.Ups, round: int) -> fm.Tensors:
        return {"popularity": ups["count"]}

    def score(self, state: fm.State, down: fm.Down, chunk: fm.Chunk, items: Tensor) -> Tensor:
        return down.shared["popularity"][items, 0].expand(len(chunk.places), -1)
