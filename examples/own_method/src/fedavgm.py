"""FedAvgM: the server keeps a momentum of the clients' mean update. Hsu, Qi & Brown 2019 (arXiv:1909.06335).

With the mean update of a round D = Q - mean(Q_u):   v <- beta v + D,   Q <- Q - v.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from fedrec.federation.clients import Chunk
from fedrec.federation.contract import Disclosure, Down, Mean, MethodInfo, Reduction, State, Tensors, Ups, World
from fedrec.training.local_training import LocalMethod


@dataclass(frozen=True)
class FedAvgM(LocalMethod):
    info: ClassVar[MethodInfo] = MethodInfo(
        "fedavgm",
        summary="mean of item tables, with momentum at the server",
        paper="Hsu et al. 2019",
        backbones={"mf": {}},
        new_users=30,
    )

    momentum: float = 0.9
    """beta: share of the last step that the next one keeps."""

    @property
    def disclosure(self) -> Disclosure:
        return Disclosure(private=("user",))

    def init_server(self, world: World, attributes: Tensor | None = None) -> Tensors:
        table = self.trainer.init_items(world)
        return {"item": table, "velocity": torch.zeros_like(table)}

    def init_clients(self, world: World, chunk: Chunk) -> State:
        return State(per_user={"user": self.trainer.init_users(world, chunk.users)})

    def broadcast(self, server: Tensors, clients: np.ndarray, round: int) -> Down:
        return Down(shared={"item": server["item"]})  # the velocity stays at the server

    def local(self, state: State, down: Down, chunk: Chunk, round: int) -> tuple[State, dict[str, Reduction]]:
        fitted = self.trainer.fit(chunk, round, state.per_user["user"], down.shared["item"])
        return State(per_user={"user": fitted.user}), {"item": Mean(fitted.table)}

    def aggregate(self, server: Tensors, ups: Ups, round: int) -> Tensors:
        velocity = self.momentum * server["velocity"] + (server["item"] - ups["item"])
        return {"item": server["item"] - velocity, "velocity": velocity}

    def score(self, state: State, down: Down, chunk: Chunk, items: Tensor) -> Tensor:
        return self.model.scores(state.per_user["user"], down.shared["item"][items], {})
