"""Local: every client trains alone from the common start and sends nothing. What federation adds shows against it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from torch import Tensor

from fedrec.federation.clients import Chunk
from fedrec.federation.contract import Down, Reduction, State, World, replicate
from fedrec.methods.comparison import ALONE
from fedrec.methods.own_tables import OwnTables


@dataclass(frozen=True)
class Local(OwnTables):
    name: ClassVar[str] = "local"
    aliases: ClassVar[Mapping[str, Mapping[str, object]]] = {"IM": {}}
    summary: ClassVar[str] = "no exchange: each client alone"
    backbones: ClassVar[tuple[str, ...]] = ("mf", "ncf", "sasrec")
    private: ClassVar[tuple[str, ...]] = ("user", "item")
    fold_in_rounds: ClassVar[int | None] = 150
    presets: ClassVar[Mapping[str, Mapping[str, object]]] = {"fedca": ALONE}

    rounds: int = 150

    def init_clients(self, world: World, chunk: Chunk) -> State:
        common = {"item": self.init_items(world), **self.init_dense(world)}
        return State(replicate(self.stored(common), len(chunk.clients)), {"user": self.init_users(world, chunk.users)})

    def local(self, state: State, down: Down, chunk: Chunk, round: int) -> tuple[State, dict[str, Reduction]]:
        dense = self.opened(state.per_client, chunk.world)
        fitted = self.fit(chunk, round, state.per_user["user"], dense.pop("item"), dense)
        assert isinstance(fitted.table, Tensor)
        return State(self.stored({"item": fitted.table, **fitted.dense}), {"user": fitted.user}), {}

    def client_bytes(self, world: World) -> int:
        dense = sum(int(np.prod(shape)) for shape in self.model.dense_shapes().values())
        return 4096 + (2 * world.items * self.dim + 8 * dense) * world.dtype.itemsize

    def score(self, state: State, down: Down, chunk: Chunk, items: Tensor) -> Tensor:
        return self.own_scores(state.per_user["user"], self.opened(state.per_client, chunk.world), chunk, items)
