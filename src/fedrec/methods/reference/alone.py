"""Every client trains a model of its own and sends nothing; with one client holding all data, that is centralised."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from fedrec.federation.clients import Chunk
from fedrec.federation.contract import Footprint, State, Tensors, World
from fedrec.methods.personal.own_tables import HALF, TableDtype, opened, stored
from fedrec.training.local_training import LocalTrainer


@dataclass(frozen=True)
class Alone:
    """What such methods have as a member."""

    trainer: LocalTrainer
    table_dtype: TableDtype

    def init_clients(self, world: World, chunk: Chunk, model: Tensors | None = None) -> State:
        """With this model for everybody; None: the trainer's."""
        common = self.trainer.init_model(world) if model is None else model
        return self.trainer.init_state(world, chunk, stored(common, self.table_dtype))

    def train(self, state: State, chunk: Chunk, round: int) -> State:
        own = opened(state.per_client, self.table_dtype, chunk.world)
        user, own = self.trainer.fit_own(chunk, round, state.per_user["user"], own)
        return State(stored(own, self.table_dtype), {"user": user})

    def score(self, state: State, chunk: Chunk, items: Tensor) -> Tensor:
        own = opened(state.per_client, self.table_dtype, chunk.world)
        return self.trainer.own_scores(state.per_user["user"], own, chunk, items)

    def footprint(self, world: World) -> Footprint:
        return self.trainer.footprint(world, dense=8, tables=2, scored=int(self.table_dtype in HALF))
