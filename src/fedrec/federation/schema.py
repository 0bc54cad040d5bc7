"""What an upload must look like. An example client that has nobody's data shows it before any arrives."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from torch import Tensor

from fedrec.federation.client_side import ClientSide
from fedrec.federation.clients import ClientData, Unique
from fedrec.federation.codec import BadMessage
from fedrec.federation.contract import Gather, Mean, Method, Reduction, Sum, World
from fedrec.federation.messages import content
from fedrec.federation.server_side import ServerSide
from fedrec.federation.stages import Stage
from fedrec.federation.update import Update

# more than one, so that an axis of items cannot be taken for one of something single
EXAMPLE_ITEMS = 3
LARGEST = 1e6  # entry of one client's upload
HEAVIEST = 1e9  # weight of one client: more samples than anybody has
HEADER = 1 << 16  # bytes of a message beside its tensors


@dataclass(frozen=True)
class Field:
    """One upload of one client. `ragged`: its last axis may have any length up to the number of items.

    `equal`: every client's weight is 1, so that a sum's weight is the number of its clients.
    """

    shape: tuple[int, ...]
    dtype: torch.dtype
    gathered: bool
    mean: bool = False
    ragged: bool = False
    equal: bool = False

    def fits(self, shape: tuple[int, ...], items: int) -> bool:
        if self.ragged:
            return shape[:-1] == self.shape[:-1] and shape[-1] <= items
        return shape == self.shape


@dataclass(frozen=True)
class Schema:
    """By the server's name of an upload, what it may be: cohorts may send different shapes under one name."""

    items: int
    fields: Mapping[str, Sequence[Field]] = field(default_factory=dict)

    def limit(self, clients: int) -> int:
        """Bytes that the update of a group may have."""
        size = HEADER
        for kinds in self.fields.values():
            for kind in kinds:
                shape = (*kind.shape[:-1], self.items) if kind.ragged else kind.shape
                size += int(np.prod(shape)) * 8 * (clients if kind.gathered else 1)
        return size + 1024 * clients

    def check(self, update: Update, allowed: np.ndarray) -> None:
        """Refuse an update that is not what these clients may send."""
        strangers = np.setdiff1d(update.clients, allowed)
        if len(strangers):
            raise BadMessage(f"an upload of client {int(strangers[0])}, who was not asked in this round")
        for key, total in update.totals.items():
            weight = update.weights.get(key, float("nan"))
            if not 0 <= weight <= HEAVIEST * len(update.clients):
                raise BadMessage(
                    f"the weight of '{key}' is {weight}; it must be a non-negative number of reasonable size"
                )
            self._check(key, total, gathered=False, largest=LARGEST * max(weight, len(update.clients)))
            if (key in update.means) != self.fields[key][0].mean:
                sent, asked = ("mean", "sum") if key in update.means else ("sum", "mean")
                raise BadMessage(f"'{key}' is a {sent}; it must be a {asked}")
        for name, parts in update.gathered.items():
            for clients, value in parts:
                if len(clients) != len(value) or len(np.setdiff1d(clients, update.clients)):
                    raise BadMessage(f"'{name}' does not have one entry per client")
                self._check(name, value, gathered=True, largest=LARGEST)

    def _check(self, key: str, value: Tensor, gathered: bool, largest: float) -> None:
        known = [kind for kind in self.fields.get(key, ()) if kind.gathered == gathered]
        if not known:
            raise BadMessage(f"unexpected '{key}'; an update has {', '.join(sorted(self.fields)) or 'nothing'}")
        shape = tuple(value.shape[1:] if gathered else value.shape)
        if not any(kind.fits(shape, self.items) for kind in known):
            raise BadMessage(f"'{key}' has the shape {shape}; it must be {' or '.join(str(k.shape) for k in known)}")
        dtype = known[0].dtype if gathered else torch.float64
        if value.dtype != dtype:
            raise BadMessage(f"'{key}' is {value.dtype}; it must be {dtype}")
        if not bool(value.sum().isfinite()):
            raise BadMessage(f"'{key}' contains numbers that are not finite")
        if value.is_floating_point() and value.numel() and float(value.abs().max()) > largest:
            raise BadMessage(f"'{key}' contains huge numbers (beyond {largest:g})")


def schema_of(server: ServerSide, setup: ClientSetup) -> Schema:
    """By an example client of every cohort, in the first round in which one uploads."""
    fields: dict[str, list[Field]] = {}
    for cohort, client, number in server.first_uploads():
        example = setup.example(server.method, server.world, client)
        payload = example.preview_payload(client, number, server.broadcast(np.array([client]), number))
        for name, reduction in payload.items():
            by_cohort = not isinstance(reduction, Gather) and reduction.by_cohort
            fields.setdefault(f"{name}@{cohort.name}" if by_cohort else name, []).append(_field(reduction))
    return Schema(server.world.items, fields)


def preview_names(server: ServerSide, setup: ClientSetup) -> tuple[list[str], list[str]]:
    """Name what clients of every cohort would send, and what of it no noise reaches, by the same examples."""
    names: set[str] = set()
    unprotected: set[str] = set()
    for _, client, number in server.first_uploads():
        example = setup.example(server.method, server.world, client)
        sent, bare = example.preview_names(client, number, server.broadcast(np.array([client]), number))
        names |= sent
        unprotected |= bare
    return sorted(names), sorted(unprotected)


def _field(reduction: Reduction) -> Field:
    value, dtype = reduction.value, content(reduction.value).dtype
    shape = tuple(value.shape[1:] if isinstance(value, Tensor) else value.base.shape)
    if isinstance(reduction, Gather):
        return Field(shape, dtype, gathered=True, ragged=reduction.lengths is not None)
    assert isinstance(reduction, Sum | Mean)
    weighted = isinstance(reduction, Mean) and reduction.weight is not None
    return Field(shape, dtype, gathered=False, mean=isinstance(reduction, Mean), equal=not weighted)


@dataclass(frozen=True)
class ClientSetup:
    """How clients are set up, as far as everybody may know: settings of the protocol and what uploads pass."""

    negatives: int
    unique: Unique = "positive"
    stages: tuple[Stage, ...] = ()
    sealed: bool = False

    def example(self, method: Method, world: World, client: int) -> ClientSide:
        """A client of this number with a few items."""
        world = replace(world, compiled=False)  # one client is not worth a kernel
        items = np.arange(min(EXAMPLE_ITEMS, world.items - 1))
        data = ClientData.build(
            world,
            np.zeros_like(items),
            items,
            users=np.zeros(1, dtype=np.int64),
            client_ptr=np.array([0, 1]),
            clients=np.array([client]),
            negatives=min(self.negatives, world.items - len(items)),
            unique=self.unique,
        )
        return ClientSide(method, data, self.stages, sealed=self.sealed)
