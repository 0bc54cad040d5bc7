"""Popularity: the score of an item is its number of training interactions over all clients. One secure sum suffices."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from fedrec.federation.clients import Chunk
from fedrec.federation.contract import (
    Disclosure,
    Down,
    Method,
    MethodInfo,
    Reduction,
    Rows,
    State,
    Sum,
    Tensors,
    Ups,
    World,
)
from fedrec.federation.ranges import Count


@dataclass(frozen=True)
class Popularity(Method):
    info: ClassVar[MethodInfo] = MethodInfo(
        name="popularity",
        summary="items by number of interactions",
        aliases={"pop": {}},
        new_users=0,
    )

    rounds: Count = 1

    @property
    def disclosure(self) -> Disclosure:
        return Disclosure(
            secure_aggregation=True,
            reveals="one client's counts are its history",
            sensitivity=2**0.5,  # counts are not negative
        )

    def init_server(self, world: World, attributes: Tensor | None = None) -> Tensors:
        return {"popularity": torch.zeros(world.items, 1, dtype=world.dtype, device=world.device)}

    def broadcast(self, server: Tensors, clients: np.ndarray, round: int) -> Down:
        return Down(shared=server)

    def local(self, state: State, down: Down, chunk: Chunk, round: int) -> tuple[State, dict[str, Reduction]]:
        n_items = chunk.world.items
        owner = torch.repeat_interleave(chunk.owner, chunk.tensor(chunk.user_ptr).diff())
        # A row per client and item: two users of a silo may share one.
        pairs, times = torch.unique(owner * n_items + chunk.tensor(chunk.items), return_counts=True)
        value = times[:, None].to(chunk.world.dtype)
        none = torch.zeros_like(down.shared["popularity"])
        return state, {"count": Sum(Rows(none, pairs // n_items, pairs % n_items, value, len(chunk.clients)))}

    def aggregate(self, server: Tensors, ups: Ups, round: int) -> Tensors:
        return {"popularity": ups["count"]}

    def score(self, state: State, down: Down, chunk: Chunk, items: Tensor) -> Tensor:
        return down.shared["popularity"][items, 0].expand(len(chunk.places), -1)
