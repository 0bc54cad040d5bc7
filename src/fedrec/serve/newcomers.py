"""Score users who were not in training, known by their items alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from fedrec.errors import FedrecError
from fedrec.experiment.opening import Chosen
from fedrec.federation.clients import ClientData, pointers
from fedrec.federation.contract import Down, Method, Tensors, World
from fedrec.federation.secret import Secret


def can_fold_in(chosen: Chosen) -> bool:
    """Whether the method says how a client trains that was not in training."""
    return chosen.run.method.info.new_users is not None


def score_newcomers(chosen: Chosen, numbers: np.ndarray, histories: Sequence[np.ndarray]) -> Tensor:
    """Return logits [newcomers, items]: each is a client that trains on its own items around the finished model.

    `numbers` identify newcomers in the whole federation: with the same number and items, one gets the same scores alone
    and among others. In a centralised method newcomers are more rows beside the trained model.
    """
    (run, round), method = chosen, chosen.run.method
    if method.info.new_users is None:
        raise FedrecError(f"{method.info.name} cannot serve a user who was not in training; use fedmf or ease")
    simulator = run.simulator
    down = method.broadcast(simulator.server, np.zeros(1, dtype=np.int64), round)
    per_client = simulator.cohorts[0].state.per_client if method.info.centralised else None
    around = Surroundings(method, simulator.world, simulator.data.negatives, down, per_client)
    return around.score(numbers, histories, torch.arange(simulator.world.items, device=simulator.world.device))


@dataclass(frozen=True)
class Surroundings:
    """What newcomers train around: the method, and what the server sends them of the finished model."""

    method: Method
    world: World
    negatives: int
    down: Down
    per_client: Tensors | None = None
    """Of a centralised model, which newcomers join as more rows."""
    secret: Secret | None = None
    """Of a node: nobody else can repeat its draws."""

    def score(self, numbers: np.ndarray, histories: Sequence[np.ndarray], items: Tensor) -> Tensor:
        """Return logits [newcomers, items] after each has trained on its own items."""
        method = self.method
        world = replace(self.world, clients=int(numbers[-1]) + 1, compiled=False)
        ends = pointers(np.ones(len(numbers), dtype=np.int64))
        if self.per_client is not None:  # one client has all users
            world, ends = replace(world, clients=1), np.array([0, len(numbers)])
        data = ClientData.build(
            world,
            np.repeat(numbers, [len(history) for history in histories]),
            np.concatenate(histories),
            users=numbers,
            client_ptr=ends,
            clients=None if self.per_client is not None else numbers,
            negatives=self.negatives,
            secret=self.secret,
        )
        chunk = data.chunk(data.clients)
        state = method.init_clients(world, chunk)
        if self.per_client is not None:
            state.per_client = self.per_client
        for number in range(method.info.new_users or 0):
            state, _ = method.local(state, self.down, chunk, number)
        with torch.no_grad():
            return method.score(state, self.down, chunk, items)
