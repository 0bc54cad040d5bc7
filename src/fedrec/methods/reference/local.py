"""Local: every client trains alone from the common start and sends nothing. What federation adds shows against it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from torch import Tensor

from fedrec.federation.clients import Chunk
from fedrec.federation.contract import Disclosure, Down, Footprint, MethodInfo, Reduction, State, World, replicate
from fedrec.federation.ranges import Count
from fedrec.methods.comparison import ALONE
from fedrec.methods.personal.own_tables import OwnTables
from fedrec.training.local_training import usual_backbones


@dataclass(frozen=True)
class Local(OwnTables):
    info: ClassVar[MethodInfo] = MethodInfo(
        name="local",
        summary="no exchange: each client alone",
        aliases={"IM": {}},
        backbones=usual_backbones("mf", "ncf", "sasrec"),
        presets={"fedca": ALONE},
        new_users=150,
    )

    rounds: Count = 150

    @property
    def disclosure(self) -> Disclosure:
        return Disclosure(private=("user", "item"))

    def init_clients(self, world: World, chunk: Chunk) -> State:
        common = {"item": self.init_items(world), **self.init_dense(world)}
        return State(replicate(self.stored(common), len(chunk.clients)), {"user": self.init_users(world, chunk.users)})

    def local(self, state: State, down: Down, chunk: Chunk, round: int) -> tuple[State, dict[str, Reduction]]:
        dense = self.opened(state.per_client, chunk.world)
        fitted = self.fit(chunk, round, state.per_user["user"], dense.pop("item"), dense)
        assert isinstance(fitted.table, Tensor)
        return State(self.stored({"item": fitted.table, **fitted.dense}), {"user": fitted.user}), {}

    def footprint(self, world: World) -> Footprint:
        return replace(super().footprint(world), client=self.model_bytes(world, dense=8, tables=2))

    def score(self, state: State, down: Down, chunk: Chunk, items: Tensor) -> Tensor:
        return self.own_scores(state.per_user["user"], self.opened(state.per_client, chunk.world), chunk, items)
