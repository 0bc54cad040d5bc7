"""Users' items as sequences: windows of them in time order, their samples, batches, dropout.

Sequences of different lengths go through a network in bands: runs of similar length, filled up to the longest, as many
at a time as fit a fixed budget. So neither the length of others nor the size of a chunk decides how much memory
a step takes.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from fedrec.federation.clients import Chunk, pointers
from fedrec.federation.contract import Tensors
from fedrec.models import Sequential
from fedrec.random import Purpose, below, fold_tensor, permute
from fedrec.training.personal_head import PersonalHead
from fedrec.training.samples import negatives

SequenceLoss = Literal["bce", "bpr", "ce"]
Crop = Literal["last", "random"]
"""Of a history longer than the model reads, what a round trains on: the last items, or a random stretch."""
# Fixed, so that neither the longest history nor the size of a chunk decides how much memory a step takes.
FLOATS = 32 << 20  # of a band's activations
FLOATS_ON_GPU = 1 << 30
# A share to be dropped is told well enough by 16 bits, so that one hash serves four activations.
LANES = 4  # draws of 16 bits in one hash


def windows(ptr: np.ndarray, length: int, targets: bool) -> tuple[np.ndarray, np.ndarray]:
    """Where in flat histories, user k's at `ptr[k]:ptr[k + 1]`, each user's window ends, and how many items it has.

    The last `length` items; with `targets`, of those that have a successor, whose place is the end.
    """
    last = 1 if targets else 0
    # Clipped at 0: where the last item is set aside, a user without items would have a length of -1.
    return ptr[1:] - last, np.clip(np.diff(ptr) - last, 0, length)


def training_windows(chunk: Chunk, length: int, round: int, crop: Crop) -> tuple[np.ndarray, np.ndarray]:
    """As `windows` with targets. A random window has the same size and a new place every round, so that a user's whole
    history is trained on over the rounds."""
    end, size = windows(chunk.user_ptr, length, targets=True)
    if crop == "last":
        return end, size
    earlier = np.maximum(np.diff(chunk.user_ptr) - 1 - size, 0)  # steps that are left out
    key = fold_tensor(chunk.secret.stream(Purpose.CROP, round), torch.from_numpy(chunk.users))
    return end - below(key, torch.from_numpy(earlier + 1)).numpy(), size


def bands(lengths: Sequence[int], model: Sequential, device: torch.device) -> Iterator[slice]:
    """Runs of sequences (longest first) that fit the budget together and are at least half as long as their first.

    On a GPU they may be shorter: there, filling up costs less than another pass through the network.
    """
    gpu = device.type != "cpu"
    # Negated, because bisection wants ascending numbers and sequences come longest first.
    ascending = [-length for length in lengths]
    start = 0
    while start < len(lengths) and lengths[start] > 0:
        longest = lengths[start]
        # From half the length on: so at most half of what a band computes is filling.
        similar = bisect_right(ascending, -1 if gpu else -((longest + 1) // 2))
        stop = min(similar, start + max(1, (FLOATS_ON_GPU if gpu else FLOATS) // model.floats(longest)))
        yield slice(start, stop)
        start = stop


def fill(start: Tensor, size: Tensor, longest: int) -> tuple[Tensor, Tensor]:
    """`[sequences, longest]` places start, start + 1, ... and which are real; the filling repeats the first."""
    step = torch.arange(longest, device=size.device)
    real = step < size[:, None]
    return start[:, None] + step * real, real


def user_vectors(model: Sequential, chunk: Chunk, tensors: Tensors, head: PersonalHead | None = None) -> Tensor:
    """The last hidden state of every user's sequence; zero where there is none.

    `tensors` are the item table `item` and the dense weights: common, or with a leading client axis. With a `head`,
    which needs a common table, every user's own vector is added.
    """
    ends, sizes = windows(chunk.context.ptr, model.length, targets=False)
    # Stable: the order of users of equal length decides the bands, and with them the last digits.
    by_length = np.argsort(-sizes, kind="stable")
    end, size, order = (chunk.tensor(part) for part in (ends, sizes, by_length))
    history, table, own = chunk.tensor(chunk.context.items), tensors["item"], tensors["item"].dim() == 3
    # Zero for users without items, whose scores are then all equal instead of undefined.
    vectors = table.new_zeros(len(size), model.dim)
    lengths = sizes[by_length].tolist()
    for band in bands(lengths, model, size.device):
        users = order[band]
        at, _ = fill(end[users] - size[users], size[users], lengths[band.start])
        client = chunk.owner[users]
        rows = table[client[:, None], history[at]] if own else table[history[at]]
        hidden = model.encode(rows, weights_of(tensors, client) if own else tensors)
        vectors[users] = hidden[torch.arange(len(users), device=at.device), size[users] - 1]
        if head is not None:
            vectors[users] += head(hidden, history[at], size[users], table)
    return vectors


def weights_of(dense: Tensors, owner: Tensor) -> Tensors:
    """Every sequence's weights; one client's are shared by its sequences without copies."""
    return {
        name: value[0] if len(value) == 1 else value.index_select(0, owner)
        for name, value in dense.items()
        if name != "item"
    }


def pack(model: Sequential, dense: Tensors) -> Tensor:
    """All weights of a network as rows of one table: the numbers of each fill rows of the model's width."""
    return torch.cat([dense[name].reshape(-1, model.dim) for name in model.dense_shapes()])


def unpack(model: Sequential, network: Tensor) -> Tensors:
    """The weights by name, as views of a table of them; it may have leading axes."""
    shapes = model.dense_shapes()
    rows = network.split([math.prod(shape) // model.dim for shape in shapes.values()], -2)
    return {
        name: part.flatten(-2).unflatten(-1, shape) for (name, shape), part in zip(shapes.items(), rows, strict=True)
    }


class Dropout:
    """Zeroes a part of a network's activations, sequence by sequence: a draw is keyed by sequence, layer and step."""

    def __init__(self, rate: float, key: Tensor, stride: int) -> None:
        self.rate, self.key, self.stride = rate, key, stride  # no step has more than `stride` numbers

    def __call__(self, site: int, x: Tensor) -> Tensor:
        """`x` is [sequences, steps, numbers], or has heads before the steps; what is filled up moves no draw."""
        if self.rate == 0:
            return x
        heads, (steps, numbers) = x.shape[1:-2].numel(), x.shape[-2:]
        head, step, group = (torch.arange(n, device=x.device) for n in (heads, steps, -(-numbers // LANES)))
        # Steps count most: filling a sequence up adds steps at its end, and must not move the draws of the real ones.
        position = (step[:, None] * heads + head[:, None, None]) * self.stride + group
        hashed = fold_tensor(fold_tensor(self.key, site).reshape(-1, 1, 1, 1), position)
        draws = hashed.view(torch.int16)[..., :numbers].reshape(x.shape)  # from -2^15 to 2^15 - 1
        # Compared as integers: as numbers between 0 and 1, draws would take as much room again as the activations.
        kept = draws >= round(self.rate * (1 << 16)) - (1 << 15)
        return x * (kept.to(x.dtype) / (1 - self.rate))


@dataclass(frozen=True)
class SequenceBatch:
    """One step of the clients that still have sequences, the first `clients` in the order that was chosen.

    `sequence` numbers them, longest first, `lengths` says how long, `key` is of each one's dropout, `size` is each
    client's number of samples. `longest` is the longest sequence of the epoch and `room` the steps of its largest
    batch, so that batches can be given one shape.
    """

    clients: int
    sequence: Tensor
    lengths: list[int]
    key: Tensor
    size: Tensor
    longest: int
    room: int
    same_shape: bool = False  # lengths, then, are no longer the sequences' own

    def pad(self) -> SequenceBatch:
        """The same, filled up as every other batch of as many sequences."""
        return replace(self, lengths=[self.longest] * len(self.lengths), same_shape=True)


class SequenceSamples:
    """A chunk's sequences of one round, each position but the last a sample of the next item and of its negatives.

    As in `Samples`: clients are ordered by their number of sequences, then steps, largest first; the working set is the
    distinct (client, item) pairs, here of the windows. Users with fewer than two items have no sequence.
    """

    def __init__(
        self,
        chunk: Chunk,
        round: int,
        loss: SequenceLoss,
        batch_size: int,
        length: int,
        slots: int | None,
        crop: Crop,
    ) -> None:
        self.chunk, self.round, self.batch_size = chunk, round, batch_size
        # what depends on the data alone is found on the host, which has to know most of it
        users = np.diff(chunk.client_ptr)
        end, size = training_windows(chunk, length, round, crop)
        owner = np.repeat(np.arange(len(users)), users)
        sequences = np.bincount(owner[size > 0], minlength=len(users))
        steps = np.bincount(owner, size, len(users)).astype(np.int64)
        # The number of the client comes last, so that ties are broken alike on every platform.
        order = np.lexsort((np.arange(len(users)), -steps, -sequences))
        owner_of_user = np.argsort(order)[owner]
        user_order = np.argsort(owner_of_user, kind="stable")
        user = user_order[size[user_order] > 0]  # of every sequence, client after client
        self.sizes, self.owners = size[user], owner_of_user[user]  # of every sequence
        self.clients = chunk.clients[order]
        self.user_ends = pointers(users[order]).tolist()
        self.order, self.user_order = chunk.tensor(order), chunk.tensor(user_order)
        self.owner_of_user, self.user = chunk.tensor(owner_of_user[user_order]), chunk.tensor(user)
        self.owner_of_sequence, self.size = chunk.tensor(self.owners), chunk.tensor(self.sizes)
        self.start = chunk.tensor(pointers(self.sizes)[:-1])
        self.sequences = sequences[order]
        self._find_rows(chunk.tensor(end[user]), slots)
        self.per_step = self.neg.shape[1] + (0 if loss == "bpr" else 1)
        self.count = chunk.tensor(steps[order] * self.per_step)

    def _find_rows(self, end: Tensor, slots: int | None) -> None:
        """The working set (`owner`, `item`), and for every step its rows in there: of input, target and negatives."""
        chunk, n_items = self.chunk, self.chunk.world.items
        sequence, at = self._steps(end)
        history = chunk.tensor(chunk.history)
        drawn = negatives(chunk, self.round)[at + 1][:, :slots]
        met = torch.cat([history[at, None], history[at + 1, None], drawn], 1)
        distinct, inverse = torch.unique(self.owner_of_sequence[sequence][:, None] * n_items + met, return_inverse=True)
        self.owner, self.item = distinct // n_items, distinct % n_items
        self.input, self.target, self.neg = inverse[:, 0], inverse[:, 1], inverse[:, 2:]

    def _steps(self, end: Tensor) -> tuple[Tensor, Tensor]:
        """Of every step its sequence, and where in the chunk's history it is."""
        sequence = torch.repeat_interleave(self.size, output_size=int(self.sizes.sum()))
        step = torch.arange(len(sequence), device=end.device) - self.start[sequence]
        return sequence, (end - self.size)[sequence] + step

    def epoch(self, number: int) -> Iterator[SequenceBatch]:
        """Every sequence once, `batch_size` of each client at a time, in an order of each client's own.

        The order is found on the host, which has to know it, so that a GPU is never waited for.
        """
        chunk, batch = self.chunk, self.batch_size
        owner = torch.from_numpy(self.owners)
        key = fold_tensor(chunk.secret.stream(Purpose.ORDER, self.round), torch.from_numpy(self.clients))
        position = torch.arange(len(owner)) - torch.from_numpy(pointers(self.sequences))[owner]
        # The epoch is part of the key and not of a running state: a resumed run goes on with the same order.
        places = permute(fold_tensor(key, number), torch.from_numpy(self.sequences), position, owner)
        step = places.numpy() // batch
        user = chunk.tensor(chunk.users)[self.user]
        drop = fold_tensor(fold_tensor(chunk.secret.stream(Purpose.DROPOUT, self.round), user), number)
        longest = np.argsort(-self.sizes, kind="stable")
        # Stable, so that inside a batch sequences stay longest first, as bands need them.
        by_step = longest[np.argsort(step[longest], kind="stable")]
        order, owner = chunk.tensor(by_step), self.owner_of_sequence
        lengths, fewer = self.sizes[by_step].tolist(), (-self.sequences).tolist()
        counts = np.bincount(step).tolist()
        parts = [lengths[begin:end] for begin, end in pairwise(accumulate(counts, initial=0))]
        most, room = max(lengths, default=0), max(map(sum, parts), default=0)
        for now, (chosen, mine) in enumerate(zip(order.split(counts), parts, strict=True)):
            active = bisect_left(fewer, -now * self.batch_size)
            size = torch.zeros_like(self.count[:active]).index_add(0, owner[chosen], self.size[chosen] * self.per_step)
            yield SequenceBatch(active, chosen, mine, drop[chosen], size, most, room)


class WholeCatalogue(SequenceSamples):
    """As `SequenceSamples`, with all items of a single client in the working set, under their own numbers, and no
    negatives: every item is one."""

    def _find_rows(self, end: Tensor, slots: int | None) -> None:
        history, (_, at) = self.chunk.tensor(self.chunk.history), self._steps(end)
        self.item = torch.arange(self.chunk.world.items, device=at.device)
        self.owner = torch.zeros_like(self.item)
        self.input, self.target, self.neg = history[at], history[at + 1], at.new_empty(len(at), 0)
