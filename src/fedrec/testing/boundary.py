"""Attributes that are the server's alone, and interactions that are the clients'."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from fedrec.federation.clients import ClientData
from fedrec.federation.contract import Down, Method, Plan, Tensors, World
from fedrec.federation.simulator import Simulator
from fedrec.testing.messages import dense_uploads
from fedrec.testing.worlds import list_nonempty_cohorts, state_of

COLD, WIDTH = 7, 5  # items beyond those of the world, and what describes each
# what was learned in the first round must have gone down and come up again
ROUNDS = 3


def require_attributes_stay(method: Method, data: ClientData) -> None:
    """Attributes reach clients through what the server has learned alone, and interactions do not reach the server."""
    first, second = (_forget_learning(method, data.world, seed) for seed in (0, 1))
    everyone, items = np.arange(data.world.clients), torch.arange(data.world.items + COLD)
    for round in range(ROUNDS):
        what = f"of {method.info.name} in round {round}"
        _require_same(
            method.broadcast(first, everyone, round), method.broadcast(second, everyone, round), f"the broadcast {what}"
        )
        _require_same(
            method.offer(first, everyone, round, items),
            method.offer(second, everyone, round, items),
            f"the offer {what}",
        )
        answers = (method.answer(server, Plan(everyone), everyone, round) for server in (first, second))
        one, other = (Down() if answer is None else answer.make(everyone) for answer in answers)
        _require_same(one, other, f"the answer {what}")
    _require_learned_uploads(method, data)


def _attributes(world: World, seed: int) -> Tensor:
    made = torch.Generator().manual_seed(seed)
    return torch.randn(world.items + COLD, WIDTH, generator=made, dtype=torch.float64).to(world.dtype)


def _forget_learning(method: Method, world: World, seed: int) -> Tensors:
    """A server that knows attributes and has forgotten all it learned: what still differs with them is not learned.

    What is learned starts at random and differs between seeds of the world; the rest is made of attributes alone.
    """
    x = _attributes(world, seed)
    # Two seeds tell what is learned: it starts at random, while a copy of attributes does not.
    server, other = (method.init_server(replace(world, seed=start), x) for start in (0, 1))
    learned = {
        name: value.is_floating_point() and not torch.equal(value, other[name]) for name, value in server.items()
    }
    # Learned tables are set to zero, so that what still differs between the servers comes straight from attributes.
    return {name: torch.zeros_like(value) if learned[name] else value for name, value in server.items()}


def _require_same(left: Down, right: Down, what: str) -> None:
    for part in ("shared", "own"):
        one, other = getattr(left, part), getattr(right, part)
        assert one.keys() == other.keys(), f"{what}: {sorted(one)} against {sorted(other)} with other attributes"
        for name, value in one.items():
            same = value.shape == other[name].shape and torch.equal(value, other[name])
            assert same, f"{what}: '{name}' tells attributes that no learned weight stands before"


def _require_learned_uploads(method: Method, data: ClientData) -> None:
    """Every upload is shaped like something that the server learns, and is not where a client's own items lie."""
    simulator = Simulator(method, data, attributes=_attributes(data.world, 0))
    learned = {tuple(value.shape) for name, value in simulator.server.items() if name != "attributes"}
    for round in range(ROUNDS):
        for members in list_nonempty_cohorts(simulator):
            for client in members.cohort.clients.reshape(-1, 1):
                # Each client alone, for in a sum of several the items of one would be hidden among the others'.
                chunk, down = data.chunk(client, members.cohort.name), method.broadcast(simulator.server, client, round)
                _, payload = method.local(state_of(simulator, members, client), down, chunk, round)
                for name, value in dense_uploads(payload).items():
                    assert tuple(value[0].shape) in learned, (
                        f"{method.info.name} uploads '{name}', which is not learned"
                    )
                    before = down.shared.get(name, torch.zeros_like(value[0]))
                    marks = _marks(value[0], before, data.world.items, np.unique(chunk.items))
                    assert not marks, f"{method.info.name}: '{name}' marks the items of its client"
        simulator.round(round)


def _marks(sent: Tensor, before: Tensor, items: int, mine: np.ndarray) -> bool:
    """Whether the rows of a table that a client has moved are its own items and no others."""
    if not sent.dim() or len(sent) != items or not len(mine):
        return False
    # Exact comparison: a row that was not touched keeps every bit.
    moved = (sent != before).reshape(items, -1).any(1).nonzero().flatten()
    return np.array_equal(moved.numpy(), mine)
