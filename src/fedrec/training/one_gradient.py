"""One gradient of every client's next-item loss from a common start, clients side by side, each with one sequence.

Softmax cross-entropy over all items, averaged over a sequence's steps. Unlike in `next_item_training.py` nobody moves,
so that all clients read the one table there is: only gradients are kept client by client. Logits are made, turned into
gradients and dropped for some clients at a time. What has to be known to the host is computed there, so that a GPU is
never waited for; there, all sequences are filled up to one length and the work is replayed (`replayed.py`).
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from fedrec.federation.clients import Chunk
from fedrec.models import Sequential
from fedrec.random import Purpose, fold_tensor
from fedrec.training.replayed import ReplayedFunction
from fedrec.training.sequences import Crop, Dropout, bands, training_windows, unpack

LOGITS = 1 << 22  # at a time: those of a processor should stay in its cache
LOGITS_ON_GPU = 1 << 28


@dataclass(frozen=True)
class Windows:
    """Steps of users' histories: items `met` and what came `next`, filled up; each user's number of steps."""

    met: np.ndarray
    next: np.ndarray
    size: np.ndarray

    @staticmethod
    def from_chunk(chunk: Chunk, length: int, round: int, crop: Crop) -> Windows:
        ends, size = training_windows(chunk, length, round, crop)
        step = np.arange(max(1, int(size.max(initial=0))))
        real = step < size[:, None]
        at = np.where(real, (ends - size)[:, None] + step, 0)
        items = chunk.history if len(chunk.history) else np.zeros(1, dtype=np.int64)
        return Windows(np.where(real, items[at], 0), np.where(real, items[np.where(real, at + 1, 0)], 0), size)

    def fill_to(self, steps: int) -> Windows:
        wide = ((0, 0), (0, steps - self.met.shape[1]))
        return Windows(np.pad(self.met, wide), np.pad(self.next, wide), self.size)


@dataclass
class OneGradient:
    model: Sequential
    averaged: bool  # over the steps of a sequence; otherwise summed
    crop: Crop
    _replayed: dict[tuple[int, int], ReplayedFunction | None] = field(default_factory=dict)  # by clients and items
    _recordable: bool = True

    def __call__(self, chunk: Chunk, round: int, table: Tensor, network: Tensor) -> tuple[Tensor, Tensor]:
        """Minus the gradients by the table and by the network: [clients, rows, dim] each."""
        windows = Windows.from_chunk(chunk, self.model.length, round, self.crop)
        keys = fold_tensor(chunk.secret.stream(Purpose.DROPOUT, round), chunk.tensor(chunk.users))
        # The number of the epoch, as in `sequences.py`: so dropout here is that of one epoch of local training.
        keys = fold_tensor(keys, 0)
        if table.device.type == "cpu":
            losses, *found = self._by_bands(chunk, windows, keys, table, network)
        else:
            # One length for all rounds, because what is recorded for replay has fixed shapes.
            windows = windows.fill_to(self.model.length)
            arrays = (chunk.tensor(part) for part in (windows.met, windows.next, windows.size))
            losses, *found = self._on_gpu((*arrays, keys, table, network))
        chunk.observe("loss", losses.sum(dtype=torch.float64), int(windows.size.sum()))
        return found[0], found[1]

    def _by_bands(
        self, chunk: Chunk, windows: Windows, keys: Tensor, table: Tensor, network: Tensor
    ) -> tuple[Tensor, ...]:
        """Sequences of similar length at a time; those without a step have no gradient."""
        clients = len(windows.size)
        losses = table.new_zeros(clients)
        by_item, by_network = table.new_zeros(clients, *table.shape), table.new_zeros(clients, *network.shape)
        order = np.argsort(-windows.size, kind="stable")
        for band in bands(windows.size[order].tolist(), self.model, table.device):
            some = order[band]
            longest = windows.size[some[0]]
            met, following = windows.met[some, :longest], windows.next[some, :longest]
            at, size = chunk.tensor(some), chunk.tensor(windows.size[some])
            parts = self.gradients(chunk.tensor(met), chunk.tensor(following), size, keys[at], table, network)
            for whole, part in zip((losses, by_item, by_network), parts, strict=True):
                whole[at] = part
        return losses, by_item, by_network

    def _on_gpu(self, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        """The first time as it is, which sets everything up; then replayed, where the driver can."""
        shape = (len(inputs[0]), len(inputs[4]))
        if shape not in self._replayed or not self._recordable:
            self._replayed = {shape: None}  # of one shape alone: recorded work keeps its memory
            return self.gradients(*inputs)
        recorded = self._replayed[shape]
        if recorded is None:
            try:
                recorded = self._replayed[shape] = ReplayedFunction(self.gradients, inputs)
            except RuntimeError:  # a driver that cannot record these kernels: they are started one by one
                self._recordable = False
                return self.gradients(*inputs)
        return recorded(inputs)

    def gradients(
        self, met: Tensor, following: Tensor, size: Tensor, keys: Tensor, table: Tensor, network: Tensor
    ) -> tuple[Tensor, ...]:
        """Every sequence's summed loss, and minus the gradients by table and network."""
        clients, steps = met.shape
        read = F.embedding(met, table).requires_grad_()
        # Expanded, not copied: autograd gives each client its gradient, and the weights stand there once.
        own = network.detach().expand(clients, *network.shape).requires_grad_()
        drop = Dropout(self.model.dropout, keys, max(self.model.dim, self.model.length))
        with torch.enable_grad():
            hidden = self.model.encode(read, unpack(self.model, own), drop)
        real = (torch.arange(steps, device=met.device) < size[:, None]).to(table.dtype)
        weight = real / size.clamp(min=1)[:, None] if self.averaged else real
        losses, by_hidden, by_item = softmax_slopes(hidden.detach(), table, following, -weight)
        by_read, by_network = torch.autograd.grad(hidden, [read, own], by_hidden)
        # A read row is also scored with, so its two gradients belong to one place.
        rows = met + torch.arange(clients, device=met.device)[:, None] * len(table)
        by_item.flatten(0, 1).index_add_(0, rows.flatten(), by_read.flatten(0, 1))
        return (losses * real).sum(1), by_item, by_network


def softmax_slopes(hidden: Tensor, table: Tensor, target: Tensor, weight: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Cross-entropy of the target row among all rows at every step; and how its weighted sum changes with each hidden
    state, and with each row, sequence by sequence."""
    sequences, steps, _ = hidden.shape
    losses, by_hidden = torch.empty_like(weight), torch.empty_like(hidden)
    by_item = hidden.new_empty(sequences, *table.shape)
    room = LOGITS if hidden.device.type == "cpu" else LOGITS_ON_GPU
    at_a_time = max(1, room // max(1, steps * len(table)))
    for start in range(0, sequences, at_a_time):
        some = slice(start, start + at_a_time)
        slope = F.log_softmax(hidden[some] @ table.T, -1)
        chosen = target[some].unsqueeze(-1)
        losses[some] = -slope.gather(-1, chosen).squeeze(-1)
        slope.exp_().scatter_add_(-1, chosen, slope.new_full((1, 1, 1), -1.0).expand_as(chosen))
        slope *= weight[some].unsqueeze(-1)
        by_hidden[some] = slope @ table
        torch.bmm(slope.mT, hidden[some], out=by_item[some])
    return losses, by_hidden, by_item
