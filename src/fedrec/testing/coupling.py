"""How far one client's data moves what leaves: the same secrets, the same broadcast, and neighbouring data.

An epsilon stands on the declared sensitivity. This measures it, over all that clients send together.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial

import numpy as np
import torch
from torch import Tensor

from fedrec.federation.clients import ClientData
from fedrec.federation.contract import Down, Method
from fedrec.federation.discrete import DiscreteGaussian, WholeClip, unit_of
from fedrec.federation.schema import preview_names
from fedrec.federation.server_side import ServerSide
from fedrec.federation.simulator import Simulator
from fedrec.federation.update import Update

# Small enough that every upload is really clipped; an unclipped one would say nothing about the bound.
NORM = 0.5
# As many items as before, but others: the sizes of neighbouring data stay equal.
SHIFTED = 17


def replace_items(data: ClientData, place: int) -> ClientData:
    """Return the same data but for the items of one user, as many others."""
    items, history = data.items.copy(), data.history.copy()
    mine = slice(data.user_ptr[place], data.user_ptr[place + 1])
    # Sorted again, because items ascend within a user and kernels rely on it.
    items[mine] = np.sort((items[mine] + SHIFTED) % data.world.items)
    history[mine] = (history[mine] + SHIFTED) % data.world.items
    return replace(data, items=items, history=history)


def measure_distances(method: Method, data: ClientData, place: int, attributes: Tensor | None = None) -> list[float]:
    """Return, for each round, how many clipping norms apart the uploads from neighbouring data are.

    Empty where something leaves that no noise reaches: then no epsilon is printed.
    """
    unit = unit_of(NORM)
    noised = (WholeClip(NORM, unit), DiscreteGaussian(1.0, unit=unit))
    covered = Simulator(method, data, noised, attributes=attributes)
    # With noise for this question only: it asks what noise would reach, and the distances are measured without it.
    if preview_names(covered.server_side, covered.client_setup())[1]:
        return []
    # Clipped but not noised, since the noise would hide the distance that is to be measured.
    both = [Simulator(method, each, noised[:1], attributes=attributes) for each in (data, replace_items(data, place))]
    # what clients are answered may differ from then on, which is no further loss but that of the first round
    rounds = 2 if type(method).answer is Method.answer else 1
    return list(_distances(both, rounds))


def _distances(both: list[Simulator], rounds: int) -> Iterator[float]:
    for number in range(min(rounds, both[0].method.rounds)):
        # Both start from the same broadcast, for the bound is on one round given what went down.
        both[1].server = {name: value.clone() for name, value in both[0].server.items()}
        updates = [_train(simulator, number) for simulator in both]
        yield _distance(*updates) / NORM
        both[0].server_side.aggregate(updates[0], both[0].server_side.plan(number), number)


def _train(simulator: Simulator, number: int) -> Update:
    side = simulator.server_side
    plan = side.plan(number)
    broadcast = partial(_broadcast, side, number)
    return simulator.client_side.train(plan.train, plan.uploads(), number, broadcast)[0]


def _broadcast(side: ServerSide, number: int, clients: np.ndarray) -> Down:
    return side.broadcast(clients, number)


def _distance(one: Update, other: Update) -> float:
    """Of all sums and single uploads together."""
    # The server sees weights as well, so a difference there would be a loss that no distance shows.
    assert one.weights == other.weights, "weights of means leave as well"
    square = sum(float((one.totals[name] - other.totals[name]).square().sum()) for name in one.totals)
    for name, parts in one.gathered.items():
        pairs = zip(parts, other.gathered[name], strict=True)
        square += sum(float((mine.double() - its.double()).square().sum()) for (_, mine), (_, its) in pairs)
    return float(square**0.5)


def find_attributes(items: int) -> Tensor:
    """Some of every item, for methods that see them."""
    return torch.eye(items, 6).double()
