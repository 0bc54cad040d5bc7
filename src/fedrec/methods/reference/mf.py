"""Centralised matrix factorisation: one model on everybody's data, the reference that federation is measured against.

One round is one epoch over all users' shuffled samples, negatives redrawn.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar, Literal

from torch import Tensor

from fedrec.federation.clients import Chunk
from fedrec.federation.contract import Disclosure, Down, Footprint, MethodInfo, Reduction, State, World
from fedrec.federation.ranges import Count
from fedrec.methods.personal.own_tables import TableDtype
from fedrec.methods.reference.alone import Alone
from fedrec.training.local_training import LocalMethod


@dataclass(frozen=True)
class CentralMF(LocalMethod):
    info: ClassVar[MethodInfo] = MethodInfo(
        name="mf",
        summary="matrix factorisation on all data in one place",
        paper="Koren et al., Computer 2009",
        backbones={"mf": {}},
        centralised=True,
    )

    rounds: Count = 30
    lr: float = 0.001
    optimiser: Literal["sgd", "adam"] = "adam"
    table_dtype: TableDtype = "full"  # of the table at rest; computed with in full precision

    @cached_property
    def alone(self) -> Alone:
        return Alone(self.trainer, self.table_dtype)

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
