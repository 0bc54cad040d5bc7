"""Several processes, on one machine or on many, by torch.distributed: `torchrun --nproc-per-node 2 -m fedrec run ...`.

Each process holds the server and a shard of the clients. A round adds up their partial sums in one all-reduce; what
a method gathers is sent to all. Sums are then the same in every process, and so is all that the server does with them.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from fedrec.federation.clients import ClientData
from fedrec.federation.contract import Tensors
from fedrec.federation.figures import Observed
from fedrec.federation.group import ALONE, Group
from fedrec.federation.update import Update, distinct
from fedrec.federation.wire import LARGEST, Ledger

Heads = Sequence[Mapping[str, Any]]
"""What every process sends, before it is sent."""


def is_one_of_several() -> bool:
    """Whether this process was started as one of several."""
    return int(os.environ.get("WORLD_SIZE", "1")) > 1 and "RANK" in os.environ


@contextmanager
def join_processes(device: torch.device) -> Iterator[Group]:
    """The processes that were started together, or this one alone. nccl between GPUs, gloo elsewhere."""
    if not is_one_of_several():
        yield ALONE
        return
    local = max(1, int(os.environ.get("LOCAL_WORLD_SIZE", "1")))
    os.environ.setdefault("NUMBA_NUM_THREADS", str(max(1, (os.cpu_count() or 1) // local)))
    backend = "gloo"
    if device.type == "cuda":
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")) % torch.cuda.device_count())
        backend = "nccl"
    dist.init_process_group(backend)
    try:
        yield Processes(device)
    finally:
        dist.destroy_process_group()


class Processes:
    """The default process group."""

    def __init__(self, device: torch.device) -> None:
        self.device, self.rank, self.size = device, dist.get_rank(), dist.get_world_size()

    @property
    def first(self) -> bool:
        return self.rank == 0

    def shard(self, data: ClientData) -> ClientData:
        """A run of clients with about as many interactions as the other processes have."""
        work = np.cumsum(data.positives + 1)
        ends = np.searchsorted(work, work[-1] * np.arange(1, self.size) / self.size, side="left")
        return data.shard(np.split(data.clients, ends)[self.rank])

    def merge_updates(self, update: Update) -> Update:
        heads = self._gather_objects(_head(update))
        gathered: dict[str, list[tuple[np.ndarray, Tensor]]] = {}
        for name in sorted({name for head in heads for name in head["gathered"]}):
            gathered[name] = list(self._parts(name, update, heads))
        totals = self._totals(update.totals, {key: shape for head in heads for key, shape in head["totals"].items()})
        weights = {key: sum(head["weights"].get(key, 0.0) for head in heads) for key in totals}
        means = frozenset().union(*(head["means"] for head in heads))
        clients = [self._share_numbers(update.clients, rank, head["clients"]) for rank, head in enumerate(heads)]
        return Update(totals, weights, means, gathered, distinct(clients))

    def _totals(self, mine: Tensors, shapes: Mapping[str, tuple[int, ...]]) -> Tensors:
        """All sums as one array, added up over processes."""
        names = sorted(shapes)
        sizes = [int(np.prod(shapes[name])) for name in names]
        flat = torch.zeros(sum(sizes), dtype=torch.float64, device=self.device)
        parts = dict(zip(names, flat.split(sizes), strict=True))
        for name, value in mine.items():
            parts[name].copy_(value.flatten())
        dist.all_reduce(flat)
        return {name: part.reshape(shapes[name]) for name, part in parts.items()}

    def _parts(self, name: str, update: Update, heads: Heads) -> Iterator[tuple[np.ndarray, Tensor]]:
        """The single uploads of all processes, one process after another."""
        for rank, head in enumerate(heads):
            mine = update.gathered.get(name, []) if rank == self.rank else []
            for k, (shape, dtype) in enumerate(head["gathered"].get(name, [])):
                clients, value = mine[k] if mine else (None, torch.empty(shape, dtype=dtype, device=self.device))
                value = value.contiguous()
                dist.broadcast(value, rank)
                yield self._share_numbers(clients, rank, shape[0]), value

    def _share_numbers(self, numbers: np.ndarray | None, rank: int, count: int) -> np.ndarray:
        """Whole numbers of one process, to all."""
        held = np.zeros(count, dtype=np.int64) if rank != self.rank or numbers is None else np.asarray(numbers)
        sent = torch.from_numpy(np.ascontiguousarray(held, dtype=np.int64)).to(self.device)
        if count:
            dist.broadcast(sent, rank)
        return sent.cpu().numpy()

    def sum_observed(self, observed: Observed) -> Observed:
        found = Observed()
        for total, count, diverged in self._gather_objects((observed.total, observed.count, observed.diverged)):
            found.add({name: (total[name], count[name]) for name in total})
            found.diverged = found.diverged or diverged
        return found

    def sum_numbers(self, numbers: Sequence[float]) -> list[float]:
        return [float(value) for value in self.sum_arrays(np.asarray(numbers, dtype=np.float64))]

    def sum_arrays(self, array: np.ndarray) -> np.ndarray:
        flat = torch.from_numpy(np.ascontiguousarray(array)).to(self.device, copy=True)
        dist.all_reduce(flat)
        return np.asarray(flat.cpu().numpy())

    def any(self, flag: bool) -> bool:
        return self.sum_numbers([float(flag)])[0] > 0

    def share_text(self, text: str) -> str:
        return str(self._gather_objects(text)[0])

    def merge_ledgers(self, ledger: Ledger) -> Ledger:
        found = Ledger(ledger.clients)
        found.up, found.down, found.uploads = (
            self.sum_arrays(part) for part in (ledger.up, ledger.down, ledger.uploads)
        )
        for rounds, unprotected in self._gather_objects((ledger.rounds, ledger.unprotected)):
            for number, entry in rounds.items():
                known = found.rounds.setdefault(number, {})
                for name, value in entry.items():
                    old = known.get(name, 0)
                    known[name] = max(old, value) if name.startswith(LARGEST) else old + value
            for part, size in unprotected.items():
                found.unprotected[part] = found.unprotected.get(part, 0) + size
        return found

    def collect_rows(self, tensors: Tensors) -> Tensors:
        whole: Tensors = {}
        for name in sorted(tensors):  # sends and receipts meet in one order, whatever that of the dictionaries
            value = tensors[name].contiguous()
            counts = self._gather_objects(len(value))
            if not self.first:
                if len(value):
                    dist.send(value, 0)
                continue
            room = whole[name] = value.new_empty(sum(counts), *value.shape[1:])
            for rank, part in enumerate(room.split(counts)):
                if rank == 0:
                    part.copy_(value)
                elif len(part):
                    dist.recv(part, rank)
        return whole

    def offset(self, rows: int) -> int:
        return sum(self._gather_objects(rows)[: self.rank])

    def _gather_objects(self, mine: Any) -> list[Any]:
        """A small value of every process, in all of them."""
        found: list[Any] = [None] * self.size
        dist.all_gather_object(found, mine)
        return found


def _head(update: Update) -> dict[str, Any]:
    """What the other processes must know of an update before they take it."""
    return {
        "totals": {key: tuple(value.shape) for key, value in update.totals.items()},
        "weights": dict(update.weights),
        "means": update.means,
        "gathered": {
            name: [(tuple(value.shape), value.dtype) for _, value in parts] for name, parts in update.gathered.items()
        },
        "clients": len(update.clients),
    }
