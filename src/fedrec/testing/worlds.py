"""Small worlds that show a method's mistakes, and what a simulation in them ends with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedrec.federation.client_side import CohortState
from fedrec.federation.clients import ClientData, Forbidden, Histories, Unique, concatenate_ranges
from fedrec.federation.contract import Method, State, Tensors, World
from fedrec.federation.simulator import Simulator

# Uneven on purpose: batches end ragged, one user fills two batches, and some have a single item.
ITEMS_PER_USER = (3, 15, 1, 7, 2, 9, 4, 5, 1, 6, 2, 8)
# Far more than the tiny worlds take, so that all clients share a chunk.
WHOLE = 8 << 30
# Less than any client takes, so that each is alone in its chunk.
SINGLE = 2


def tiny_world(
    items: int = 40,
    *,
    per_user: Sequence[int] = ITEMS_PER_USER,
    silos: Sequence[int] | None = None,
    empty: bool = False,
    seed: int = 0,
    negatives: int = 4,
    forbidden: Forbidden | None = None,
    unique: Unique = "positive",
    **world: Any,
) -> ClientData:
    """Twelve users in float64: one with 75 samples, two with a single item, with `empty` one with none.

    `silos` are the numbers of users of each client (default: one each). A user's index in the data set is not its
    place, nor are items in time order ascending, so that taking one for the other shows. `world`: fields of `World`.
    """
    counts = [*per_user[:-1], 0] if empty else list(per_user)
    # A fixed seed: the world is the same for every method, so that a failure can be repeated.
    rng = np.random.default_rng(7)
    # Indices are shuffled, or code that takes a place for an index would pass.
    users = rng.permutation(len(counts))
    user = np.repeat(users, counts)
    item = np.concatenate([rng.choice(items, count, replace=False) for count in counts])
    # Rows are out of order for the same reason.
    time = rng.permutation(len(user))
    sizes = [1] * len(counts) if silos is None else list(silos)
    assert sum(sizes) == len(counts), f"the silos must hold {len(counts)} users together"
    # Float64, so that tolerances can be tight enough to tell a mistake from rounding.
    world = {"dtype": torch.float64} | world
    facts = World(items=items, clients=len(sizes), seed=seed, **world)
    client_ptr = np.concatenate([[0], np.cumsum(sizes)])
    return ClientData.build(
        facts,
        user[time],
        item[time],
        users=users,
        client_ptr=client_ptr,
        negatives=negatives,
        forbidden=forbidden,
        unique=unique,
    )


def add_one_item(data: ClientData, places: Sequence[int]) -> tuple[Histories, np.ndarray]:
    """The histories of all users, those at some places with an item more that is new to them; and these items."""
    rng, user, item, added = np.random.default_rng(5), [], [], []
    for place, index in enumerate(data.users):
        mine = data.history[data.user_ptr[place] : data.user_ptr[place + 1]]
        if place in places:
            # An item that is new to the user, because a repeated one could leave the scores as they were.
            added.append(int(rng.choice(np.setdiff1d(np.arange(data.world.items), mine))))
            mine = np.append(mine, added[-1])
        user.append(np.full(len(mine), index))
        item.append(mine)
    return data.histories(np.concatenate(user), np.concatenate(item)), np.array(added)


LAYOUTS: Mapping[str, Sequence[int] | None] = {"devices": None, "silos": (5, 4, 3), "central": (12,)}
# Half of the devices, so that some have stale state; companies are few, and usually all take part.
PARTICIPATION = {"devices": 0.5, "silos": 1.0, "central": 1.0}


def outcome(simulator: Simulator, round: int) -> Tensors:
    """Everything a run ends with, by name: `server.*`, `client.*`, `user.*` (of clients in order) and `scores`."""
    found = {f"server.{name}": value for name, value in simulator.server.items()}
    for members in simulator.cohorts:
        mark = f"@{members.cohort.name}" if len(simulator.cohorts) > 1 else ""
        found |= {f"client.{name}{mark}": value for name, value in members.state.per_client.items()}
        found |= {f"user.{name}{mark}": value for name, value in members.state.per_user.items()}
    found["scores"] = all_scores(simulator, round)
    # Copies, since further rounds may write into the same tensors.
    return {name: value.detach().clone() for name, value in found.items()}


def all_scores(simulator: Simulator, round: int, known: Histories | None = None) -> Tensor:
    """[users, items], users by their index in the data set; `known`: the histories to answer from."""
    parts = list(simulator.scores(round, known=known))
    users = np.concatenate([users for users, _ in parts])
    return torch.cat([scores for _, scores in parts])[torch.from_numpy(np.argsort(users))]


def run(method: Method, data: ClientData, rounds: int, **options: Any) -> Tensors:
    """The outcome of a simulation; `options` are those of `Simulator`."""
    simulator = Simulator(method, data, **options)
    for number in range(rounds):
        simulator.round(number)
    return outcome(simulator, rounds)


def assert_close(left: Mapping[str, Tensor], right: Mapping[str, Tensor], tolerance: float, what: str) -> None:
    """The same names, and the same values within `tolerance` (relative and absolute; 0: to the last bit)."""
    assert left.keys() == right.keys(), f"{what}: {sorted(left)} against {sorted(right)}"
    for name, value in left.items():
        assert value.shape == right[name].shape, f"{what}: {name} is {value.shape} against {right[name].shape}"
        # Zero means bit for bit, which even the smallest tolerances of allclose would not demand.
        same = torch.equal(value, right[name]) if tolerance == 0 else _near(value, right[name], tolerance)
        assert same, f"{what}: {name} differs by up to {_gap(value, right[name]):.3g}"


def _near(left: Tensor, right: Tensor, tolerance: float) -> bool:
    # Booleans and integers have no tolerance of their own, so all are compared as numbers.
    return torch.allclose(left.double(), right.double(), rtol=tolerance, atol=tolerance)


def _gap(left: Tensor, right: Tensor) -> float:
    return float((left.double() - right.double()).abs().max()) if left.numel() else 0.0


def list_nonempty_cohorts(simulator: Simulator) -> list[CohortState]:
    return [members for members in simulator.cohorts if len(members.cohort.clients)]


def state_of(simulator: Simulator, members: CohortState, clients: np.ndarray) -> State:
    """A copy of what some clients hold, in any order."""
    _, where = members.positions(clients)
    users = torch.from_numpy(concatenate_ranges(members.user_ptr[where], members.user_ptr[where + 1]))
    return State(
        {name: value[torch.from_numpy(where)].clone() for name, value in members.state.per_client.items()},
        {name: value[users].clone() for name, value in members.state.per_user.items()},
    )


def name_tensors(state: State) -> Tensors:
    """A state's tensors under one name each."""
    clients = {f"client.{name}": value for name, value in state.per_client.items()}
    return clients | {f"user.{name}": value for name, value in state.per_user.items()}


def lost_in(simulator: Simulator, round: int) -> np.ndarray:
    """Clients whose uploads are lost in a round."""
    uploads = simulator.server_side.plan(round).uploads()
    return np.setdiff1d(uploads, simulator.draw_arrivals(uploads, round))
