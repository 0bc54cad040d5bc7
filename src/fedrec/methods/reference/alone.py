"""Every client trains a model of its own and sends nothing; with one client holding all data, that is centralised."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from fedrec.federation.clients import Chunk
from fedrec.federation.contract import Footprint, State, Tensors, World
from fedrec.training.local_training import LocalTrainer


@dataclass(frozen=True)
class Alone:
    """What such methods have as a member."""

    trainer: LocalTrainer

    def init_clients(self, world: World, chunk: Chunk, model: Tensors | None = None) -> State:
        """Start everybody with this model; None: the trainer's."""
        return self.trainer.init_state(world, chunk, self.trainer.init_model(world) if model is None else model)

    def train(self, state: State, chunk: Chunk, round: int) -> State:
        user, own = self.trainer.fit_own(chunk, round, state.per_user["user"], state.per_client)
        return State(self.trainer.narrow(own), {"user": user})

    def score(self, state: State, chunk: Chunk, items: Tensor) -> Tensor:
        return self.trainer.own_scores(state.per_user["user"], state.per_client, chunk, items)

    def footprint(self, world: World) -> Footprint:
        return self.trainer.footprint(world, dense=8, tables=2)
