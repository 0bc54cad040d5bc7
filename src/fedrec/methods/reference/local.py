"""Local: every client trains alone from the common start and sends nothing. What federation adds shows against it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

from torch import Tensor

from fedrec.federation.clients import Chunk
from fedrec.federation.contract import Disclosure, Down, Footprint, MethodInfo, Reduction, State, World
from fedrec.federation.ranges import Count
from fedrec.methods.reference.alone import Alone
from fedrec.training.local_training import LocalMethod, usual_backbones
from fedrec.training.precision import TableDtype


@dataclass(frozen=True)
class Local(LocalMethod):
    info: ClassVar[MethodInfo] = MethodInfo(
        name="local",
        summary="no exchange: each client alone",
        aliases={"IM": {}},
        backbones=usual_backbones("mf", "ncf", "sasrec"),
        new_users=150,
    )
    models = "own"

    rounds: Count = 150
    table_dtype: TableDtype = "full"

    @cached_property
    def alone(self) -> Alone:
        return Alone(self.trainer)

    @property
    def disclosure(self) -> Disclosure:
        return Disclosure(private=("user", "item"))

    def init_clients(self, world: World, chunk: Chunk) -> State:
        return self.alone.init_clients(world, chunk)

    def local(self, state: State, down: Down, chunk: Chunk, round: int) -> tuple[State, dict[str, Reduction]]:
        return self.alone.train(state, chunk, round), {}

    def score(self, state: State, down: Down, chunk: Chunk, items: Tensor) -> Tensor:
        return self.alone.score(state, chunk, items)

    def footprint(self, world: World) -> Footprint:
        return self.alone.footprint(world)
