"""Score users who were not in training, known by their items alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from fedrec.errors import FedrecError
from fedrec.experiment.opening import Chosen
from fedrec.federation.clients import ClientData, pointers


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
    world = replace(simulator.world, clients=int(numbers[-1]) + 1, compiled=False)
    ends = pointers(np.ones(len(numbers), dtype=np.int64))
    if method.info.centralised:  # one client has all users
        world, ends = replace(world, clients=1), np.array([0, len(numbers)])
    data = ClientData.build(
        world,
        np.repeat(numbers, [len(history) for history in histories]),
        np.concatenate(histories),
        users=numbers,
        client_ptr=ends,
        clients=None if method.info.centralised else numbers,
        negatives=simulator.data.negatives,
    )
    chunk = data.chunk(data.clients)
    state = method.init_clients(world, chunk)
    if method.info.centralised:
        state.per_client = simulator.cohorts[0].state.per_client
    down = method.broadcast(simulator.server, np.zeros(1, dtype=np.int64), round)
    for number in range(method.info.new_users):
        state, _ = method.local(state, down, chunk, number)
    with torch.no_grad():
        return method.score(state, down, chunk, torch.arange(simulator.world.items, device=world.device))
