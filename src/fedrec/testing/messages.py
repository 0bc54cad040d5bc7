"""What passes between clients and server, looked at from outside."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
from torch import Tensor

from fedrec.federation.clients import Chunk
from fedrec.federation.contract import (
    Answer,
    Down,
    Gather,
    Mean,
    Method,
    PartialSum,
    Plan,
    Reduction,
    Rows,
    State,
    Tensors,
    World,
)


@dataclass(frozen=True)
class Trip:
    """One call of `local`: who, what went up, what the clients hold now."""

    round: int
    chunk: Chunk
    payload: dict[str, Reduction]
    state: State


class Watched:
    """A method that keeps a note of everything that passes between it and the simulator."""

    def __init__(self, method: Method) -> None:
        self._method = method
        self.plans: dict[int, Plan] = {}
        self.downs: list[tuple[np.ndarray, Down]] = []
        self.trips: list[Trip] = []
        self.away = np.zeros(0, dtype=np.int64)  # clients that take part in no round

    def __getattr__(self, name: str) -> Any:
        # Anything not watched goes to the method itself, so that the simulator cannot tell the difference.
        return getattr(self._method, name)

    @property
    def as_method(self) -> Method:
        return cast(Method, self)

    def plan(self, world: World, server: Tensors, round: int) -> Plan:
        plan = self._method.plan(world, server, round)
        if len(self.away):
            # Taken off the plan and not only off the uploads, because a client that is away does not train either.
            plan = Plan(np.setdiff1d(plan.train, self.away), np.setdiff1d(plan.uploads(), self.away))
        self.plans[round] = plan
        return plan

    def broadcast(self, server: Tensors, clients: np.ndarray, round: int) -> Down:
        down = self._method.broadcast(server, clients, round)
        self.downs.append((clients, down))
        return down

    def answer(self, server: Tensors, plan: Plan, arrived: np.ndarray, round: int) -> Answer | None:
        answer = self._method.answer(server, plan, arrived, round)
        if answer is None:
            return None

        def make(clients: np.ndarray) -> Down:
            down = answer.make(clients)
            self.downs.append((clients, down))
            return down

        return Answer(answer.clients, make)

    def local(self, state: State, down: Down, chunk: Chunk, round: int) -> tuple[State, dict[str, Reduction]]:
        new, payload = self._method.local(state, down, chunk, round)
        self.trips.append(Trip(round, chunk, payload, new))
        return new, payload


def encode_upload(payload: Mapping[str, Reduction]) -> dict[str, bytes]:
    """Every byte of an upload as it stands in memory."""
    # Bytes rather than values: two NaNs differ as values, and the check must see the slightest change.
    return {f"{name}.{part}": value.contiguous().numpy().tobytes() for name, part, value in parts(payload)}


def parts(payload: Mapping[str, Reduction]) -> Iterator[tuple[str, str, Tensor]]:
    for name, reduction in payload.items():
        value = reduction.value
        if isinstance(value, Tensor):
            yield name, "value", value
        else:
            yield from ((name, part, tensor) for part, tensor in vars(value).items() if isinstance(tensor, Tensor))
        if isinstance(reduction, Mean) and reduction.weight is not None:
            yield name, "weight", reduction.weight


def dense_uploads(payload: Mapping[str, Reduction]) -> Tensors:
    """Every client's upload whole, with a leading client axis."""
    whole = {}
    for name, reduction in payload.items():
        assert not isinstance(reduction.value, PartialSum), f"{name} was folded although the chunk is not foldable"
        whole[name] = reduction.value.dense() if isinstance(reduction.value, Rows) else reduction.value
        if isinstance(reduction, Mean) and reduction.weight is not None:
            whole[name + " weight"] = reduction.weight
    return whole


def upload_bytes(payload: Mapping[str, Reduction], clients: int, itemsize: int) -> np.ndarray:
    """Bytes of every client's upload in the dense encoding, a weight being one more number."""
    # Counted anew from the payload, without the wire's own code, or both would share a mistake.
    total = np.zeros(clients, np.int64)
    for reduction in payload.values():
        value = reduction.value
        if isinstance(value, Tensor):
            assert len(value) == clients, "an upload has a leading client axis"
        one = value[0] if isinstance(value, Tensor) else value.base
        if isinstance(reduction, Gather) and reduction.lengths is not None:
            sent = reduction.lengths.numpy()
            # Only a client's own entries travel; the padding beside them exists in the simulation alone.
            total += sent * (one.numel() // max(1, one.shape[-1])) * one.element_size()
            continue
        total += one.numel() * one.element_size()
        total += itemsize if isinstance(reduction, Mean) and reduction.weight is not None else 0
    return total


def real(reduction: Reduction | None, one: Tensor, client: int) -> Tensor:
    """One client's upload without padding."""
    if not isinstance(reduction, Gather) or reduction.lengths is None:
        return one
    return one[..., : int(reduction.lengths[client])]


def down_bytes(down: Down, clients: int) -> int:
    own = [value for value in down.own.values() if len(value) == clients]
    assert len(own) == len(down.own), "an own tensor has a leading client axis"
    return sum(value.numel() * value.element_size() for value in down.shared.values()) + sum(
        value[0].numel() * value.element_size() for value in own
    )
