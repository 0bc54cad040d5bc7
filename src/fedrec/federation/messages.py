"""What passes between clients and server: what goes down, and uploads with the reduction that the server needs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad

from fedrec.errors import FedrecError, unknown
from fedrec.federation.stack import Stack

Tensors = dict[str, Tensor]


@dataclass(frozen=True)
class Down:
    """What goes to clients: tensors that are the same for all, and tensors with one slice per client."""

    shared: Tensors = field(default_factory=dict)
    own: Tensors = field(default_factory=dict)


@dataclass(frozen=True)
class Answer:
    """What goes back at the end of a round: to these clients, or (None) to everybody.

    `make` gives it for some of them at a time, so that it fits in memory.
    """

    clients: np.ndarray | None
    make: Callable[[np.ndarray], Down]


@dataclass(frozen=True)
class Rows:
    """One table per client that equals the common `base` except in a few rows: dense on the wire, sparse in here.

    `owner[r]` is the client (position in the chunk) of changed row r, `item[r]` its index, `value[r]` its content.
    With `shift` (one number per client), all other rows have gone that share of the way from `base` to `towards`.
    """

    base: Tensor
    owner: Tensor
    item: Tensor
    value: Tensor
    clients: int
    shift: Tensor | None = None
    towards: Tensor | None = None

    def way(self) -> Tensor | None:
        """The shift of rows that no sample touched, relative to `base`."""
        return None if self.towards is None else self.towards - self.base

    def values_if_unchanged(self) -> Tensor:
        """What the changed rows would be, had no sample touched them."""
        start, way = self.base[self.item], self.way()
        return start if way is None or self.shift is None else start + self.shift[self.owner, None] * way[self.item]

    def dense(self, out: Tensor | None = None) -> Tensor:
        """All tables whole, into `out` if it is given."""
        shape, way = (self.clients, *self.base.shape), self.way()
        table = (self.base.new_empty(shape) if out is None else out).copy_(self.base.expand(shape))
        if way is not None and self.shift is not None:
            table += self.shift[:, None, None] * way
        table[self.owner, self.item] = self.value
        return table


@dataclass(frozen=True)
class PartialSum:
    """The weighted sum over a chunk of `table - base`, already folded in by a kernel (no stage asked for more)."""

    base: Tensor
    total: Tensor
    clients: int


Upload = Tensor | Rows | PartialSum


def content(value: Upload) -> Tensor:
    """A tensor of the type, and in its last axis of the width, of what is sent."""
    return value if isinstance(value, Tensor) else value.base


def is_exact(value: Upload) -> bool:
    """Whole numbers and whatever else no stage knows how to change."""
    return not content(value).is_floating_point()


@dataclass(frozen=True)
class Sum:
    """The server needs only the sum over clients. `by_cohort`: one sum per cohort, under `name@cohort`."""

    value: Upload
    by_cohort: bool = False


@dataclass(frozen=True)
class Mean:
    """The server needs only the mean, weighted by one number per client (default: all equal).

    Weights may lie on the host whatever the device of the values: their sum is then known without a wait.
    """

    value: Upload
    weight: Tensor | None = None
    by_cohort: bool = False


@dataclass(frozen=True)
class Gather:
    """The server needs every client's own upload (similarity, clustering): kept one by one, which costs memory.

    `lengths`: how much of the last axis each client really sends. What is beyond is zero, never noise, and not counted.
    """

    value: Tensor | Rows
    lengths: Tensor | None = None

    def __post_init__(self) -> None:
        if isinstance(self.value, PartialSum):
            raise FedrecError(
                "a gathered upload is each client's own, but this table is a sum already; train it with "
                "fit(..., fold=False)"
            )

    def sent(self) -> Tensor:
        """Which entries of the last axis are real: [clients, ..., last]."""
        assert isinstance(self.value, Tensor)
        assert self.lengths is not None
        real = torch.arange(self.value.shape[-1], device=self.value.device) < self.lengths[:, None]
        return real.reshape(len(self.value), *[1] * (self.value.dim() - 2), -1)


Reduction = Sum | Mean | Gather
Uploads = dict[str, Reduction]
"""All that leaves a client in a round, by name."""


@dataclass(frozen=True)
class Ups:
    """What reached the server this round, reduced as declared."""

    reduced: Tensors
    gathered: Mapping[str, list[tuple[np.ndarray, Tensor]]]
    clients: np.ndarray

    def __getitem__(self, name: str) -> Tensor:
        if name in self.gathered:
            raise FedrecError(
                f"the upload '{name}' was gathered, one from each client; read it by ups.stacked('{name}')"
            )
        if name not in self.reduced:
            raise unknown("upload", name, [*self.reduced, *self.gathered])
        return self.reduced[name]

    def __contains__(self, name: str) -> bool:
        return name in self.reduced or name in self.gathered

    def stacked(self, name: str) -> tuple[np.ndarray, Tensor]:
        """Individual uploads: client ids (ascending) and one tensor with a leading client axis.

        Where last axes differ in length, the shorter ones are filled up with zeros.
        """
        stack = self.stack(name)
        # a copy even of one part: the server owns it, and clients keep changing theirs
        values = stack.take_all()
        return stack.clients, values.clone() if any(values is part for part in stack.parts) else values

    def stack(self, name: str) -> Stack:
        """As `stacked`, without a copy of all: for what can be done block by block."""
        if name in self.reduced:
            raise FedrecError(f"the upload '{name}' is a sum or a mean; read it by ups['{name}']")
        if name not in self.gathered:
            raise unknown("upload", name, [*self.reduced, *self.gathered])
        parts = self.gathered[name]
        ids = np.concatenate([clients for clients, _ in parts])
        longest = max(value.shape[-1] for _, value in parts)
        values = tuple(_pad_last_axis(value, longest) for _, value in parts)
        # Ascending already, as it is without cohorts, so no order need be kept.
        if (np.diff(ids) > 0).all():
            return Stack(ids, values)
        order = np.argsort(ids, kind="stable")
        return Stack(ids[order], values, torch.from_numpy(order))


def _pad_last_axis(value: Tensor, length: int) -> Tensor:
    """The last axis filled up with zeros, unless it is the one of the clients."""
    full = value.dim() == 1 or value.shape[-1] == length
    return value if full else pad(value, (0, length - value.shape[-1]))


def replicate(tensors: Tensors, clients: int) -> Tensors:
    """One copy of every tensor per client."""
    return {name: value.unsqueeze(0).repeat(clients, *[1] * value.dim()) for name, value in tensors.items()}
