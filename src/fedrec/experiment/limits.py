"""What a simulation must hold at once, said before it begins: the system would end it later, and give no reason."""

from __future__ import annotations

import dataclasses
import math
import os
import weakref
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from fedrec.errors import FedrecError
from fedrec.experiment.machine import memory_of, size_text
from fedrec.federation.clients import ClientData
from fedrec.federation.contract import Method, cohorts_of
from fedrec.federation.schema import schema_of
from fedrec.federation.simulator import Simulator

# Times the rough bound: beyond that no closer look, which makes everything once without its numbers, is needed.
SURELY = 4
# Where half of a setting would still overflow, it is divided by this much for the trial.
UNCOUNTED = 1000
# whole numbers that say how long something goes on: no tensor grows with them
NOT_SIZES = ("rounds", "epochs", "batch")


@dataclass(frozen=True)
class Needs:
    """Bytes that are held together, by what they are."""

    parts: Mapping[str, int]

    @property
    def total(self) -> int:
        return sum(self.parts.values())

    def describe(self) -> str:
        named = [f"{name} {size_text(size)}" for name, size in self.parts.items() if size * 20 >= self.total]
        return f"{size_text(self.total)} ({', '.join(named)})"


def require_room(method: Method, data: ClientData, attributes: Tensor | None = None) -> None:
    """Refuse a simulation whose state cannot be held, before any of it is made."""
    room = memory_of(data.world.device)
    if room is None or SURELY * _rough(method, data) < room:
        return
    needs = needs_of(method, data, attributes)
    if needs.total * _sharing() > room:
        raise _too_large(method, needs, room, " or ".join(_remedies(method, data, attributes, needs)))


def require_room_for_uploads(simulator: Simulator) -> None:
    """Refuse one whose server would gather more uploads than can be held, before any client trains."""
    method, world, room = simulator.method, simulator.world, memory_of(simulator.world.device)
    sending = max(1, int(world.participation * world.clients))
    held = sum(value.nbytes for value in simulator.server.values())
    kept = simulator.client_side.state_bytes()[0]
    if room is None or SURELY * (sending * held + kept) < room:
        return
    fields = schema_of(simulator.server_side, simulator.client_setup()).fields.values()
    each = sum(math.prod(kind.shape) * kind.dtype.itemsize for kinds in fields for kind in kinds if kind.gathered)
    needs = Needs({"the server": held, "client state": kept, "gathered uploads": sending * each})
    if needs.total * _sharing() > room:
        raise _too_large(method, needs, room, "let fewer clients take part in a round (--participation)")


def require_room_to_open(model: Path, device: torch.device) -> None:
    """Refuse a model that cannot be held twice: as it is read, and where it is used.

    Its file says how large it is; to work it out as for a run that begins takes longer than to open it.
    """
    room, size = memory_of(device), model.stat().st_size if model.is_file() else 0
    if room is not None and 2 * size > room:
        raise FedrecError(
            f"{model} holds {size_text(size)} and needs twice that to be opened, and there is room for "
            f"{size_text(room)}; open it on a machine with more memory"
        )


def needs_of(method: Method, data: ClientData, attributes: Tensor | None = None) -> Needs:
    """By making everything without its numbers (torch's device `meta`), and one client's work beside it."""
    meta = torch.device("meta")
    # The device `meta` computes shapes without numbers, so even what cannot be held can be measured.
    world = replace(data.world, device=meta)
    shapes = replace(data, world=world)
    try:
        with meta, _Peak() as made:
            server = method.init_server(world, None if attributes is None else attributes.to(meta))
            states = [
                method.init_clients(world, shapes.chunk(data.select_hosted(cohort.clients), cohort.name))
                for cohort in cohorts_of(method, world)
            ]
    except RuntimeError as error:
        # Only this one means a size beyond int64; any other error is the method's own and must be seen.
        if "overflow" not in str(error):
            raise
        return Needs({"one tensor": torch.iinfo(torch.int64).max})  # more bytes than can be counted
    held = sum(value.nbytes for value in server.values())
    kept = sum(value.nbytes for state in states for value in (*state.per_client.values(), *state.per_user.values()))
    footprint = method.footprint(data.world)
    largest = int(data.positives.max(initial=0)) * (1 + data.negatives) * footprint.sample + footprint.client
    work = max(largest, footprint.score, made.most - held - kept)
    return Needs({"the server": held, "client state": kept, "working memory": work})


class _Peak(TorchDispatchMode):
    """The most bytes of tensors that existed together."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.now = self.most = 0
        self._known: set[int] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        for value in made if isinstance(made, tuple | list) else (made,):
            if isinstance(value, Tensor):
                self._count(value.untyped_storage())
        return made

    def _count(self, storage: torch.UntypedStorage) -> None:
        # Views share their storage, which must be counted once.
        if id(storage) not in self._known:
            self._known.add(id(storage))
            self.now += storage.nbytes()
            self.most = max(self.most, self.now)
            # Counted down when it is freed, without a reference that would keep it alive.
            weakref.finalize(storage, self._gone, id(storage), storage.nbytes())

    def _gone(self, key: int, size: int) -> None:
        self._known.discard(key)
        self.now -= size


def _rough(method: Method, data: ClientData) -> int:
    """More than a method can need whose tensors have no more axes than clients, items and its largest setting."""
    width = max((value for _, value in _sizes(method)), default=1)
    world = data.world
    return (world.clients * world.items + (world.items + width) ** 2 + len(data.users)) * width * world.dtype.itemsize


def _sizes(method: Method) -> Iterator[tuple[str, int]]:
    """Settings that may be a number of columns, rows or the like."""
    for field in dataclasses.fields(method):
        value = getattr(method, field.name)
        if isinstance(value, int) and not isinstance(value, bool) and field.name not in NOT_SIZES:
            yield field.name, value


def _remedies(method: Method, data: ClientData, attributes: Tensor | None, needs: Needs) -> Iterator[str]:
    """Settings that make it smaller, found by trying them."""
    part = UNCOUNTED if needs.total >= torch.iinfo(torch.int64).max else 2
    for name, value in _sizes(method):
        try:
            found = needs_of(replace(method, **{name: max(1, value // part)}), data, attributes).total
        except (FedrecError, RuntimeError, ValueError):
            continue  # a setting that goes with another one
        # A setting that saves less than a fifth is not worth naming in the message.
        if found < 0.8 * needs.total:
            yield f"lower {name} ({value})"
    yield "use data with fewer users or items"


def _too_large(method: Method, needs: Needs, room: int, remedy: str) -> FedrecError:
    return FedrecError(
        f"{method.info.name} needs at least {needs.describe()}, but only {size_text(room)} are available; {remedy}"
    )


def _sharing() -> int:
    """Processes on this machine that hold as much each."""
    return max(1, int(os.environ.get("LOCAL_WORLD_SIZE", "1")))
