"""The training samples of a round: negatives, their order, mini-batches. Device-neutral torch.

The compiled kernels draw the same integers (`kernels/`); a test compares the two.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from fedrec.federation.clients import Chunk, concatenate_ranges, pointers
from fedrec.federation.contract import World
from fedrec.kernels import find as find_kernel
from fedrec.random import Purpose, below, fold_tensor, permute, shuffle

Loss = Literal["bce", "bpr"]


def negatives(chunk: Chunk, round: int) -> Tensor:
    """`[positives, negatives]` items for every positive of the chunk, as unique as `ClientData.unique` asks."""
    data, device = chunk.data, chunk.world.device
    start = chunk.tensor(chunk.user_ptr)
    # Every draw is keyed by user and position, so that the size of chunks does not change what a client samples.
    owner = owners(start, int(chunk.user_ptr[-1]))  # the user (position in the chunk) of every positive
    pool = chunk.tensor(chunk.world.items - np.diff(data.pool.indptr)[chunk.places])
    key = fold_tensor(chunk.secret.stream(Purpose.NEGATIVES, round), chunk.tensor(chunk.users))
    index = torch.arange(len(owner), device=device) - start[owner]
    ranks = _draw_by_user if data.unique == "user" else _draw_by_positive
    return allowed_item(chunk, owner, ranks(key, pool, owner, index, data.negatives))


def owners(ptr: Tensor, total: int) -> Tensor:
    """Whose each of `total` entries is, where those of k are ptr[k]:ptr[k + 1].

    The host knows how many there are: a device would have to be asked.
    """
    return torch.repeat_interleave(ptr.diff(), output_size=total)


def _draw_by_positive(key: Tensor, pool: Tensor, owner: Tensor, index: Tensor, slots: int) -> Tensor:
    """Ranks without replacement within one positive: slot s draws among the pool less the s ranks already taken.

    A pool smaller than the number of slots is drawn with replacement.
    """
    pool, key = pool[owner], key[owner]
    # Otherwise a user who met nearly all items could not take part.
    replace = pool < slots
    taken: list[Tensor] = []
    ranks = torch.empty(len(owner), slots, dtype=torch.int64, device=owner.device)
    for s in range(slots):
        free = torch.where(replace, pool, pool - s)
        rank = below(fold_tensor(key, index * slots + s), free)
        # In ascending order, because each item that is stepped over raises the rank that meets the next.
        for other in torch.stack(taken).sort(0).values if taken else ():
            rank = rank + ((rank >= other) & ~replace).to(rank.dtype)
        taken.append(rank)
        ranks[:, s] = rank
    return ranks


def _draw_by_user(key: Tensor, pool: Tensor, owner: Tensor, index: Tensor, slots: int) -> Tensor:
    """Ranks without replacement within one user: their pool in an order of the round, taken from its beginning.

    Where more are needed than it has, it is gone through again in another order: no item comes a second time before
    each came once.
    """
    position = index[:, None] * slots + torch.arange(slots, device=owner.device)
    turn = position // pool[owner, None]
    turns = owner.new_zeros(len(pool)).scatter_reduce(0, owner, turn[:, -1] + 1, "amax")
    first = turns.cumsum(0) - turns
    of = torch.repeat_interleave(torch.arange(len(pool), device=owner.device), turns)  # the user of every turn
    orders = fold_tensor(key[of], torch.arange(len(of), device=owner.device) - first[of])
    ranks = shuffle(orders, pool[of], (position % pool[owner, None]).flatten(), (first[owner, None] + turn).flatten())
    return ranks.view(position.shape)


def allowed_item(chunk: Chunk, owner: Tensor, rank: Tensor) -> Tensor:
    """The rank-th item of each user's pool. One sorted array serves all users: each has its own range of values."""
    ptr, places, stride = chunk.data.pool.indptr, chunk.places, chunk.world.items + 1
    gap = chunk.tensor(chunk.data.pool.gap[concatenate_ranges(ptr[places], ptr[places + 1])])
    start = chunk.tensor(pointers(np.diff(ptr)[places]))
    user = owners(start, len(gap))
    # By rank, not by rejection: the number of tries would differ, and clients could not be drawn for side by side.
    before = torch.searchsorted(gap + user * stride, rank + owner[:, None] * stride, right=True)
    return rank + before - start[owner][:, None]


@dataclass(frozen=True)
class Batch:
    """One step of the clients that still have samples: the first `clients` of the order that `Samples` chose.

    `pos`, `neg`, `user` are `[clients, size]`; `neg` is None under a pointwise loss, where `label` says what `pos` is.
    They index the working set and the users as `Samples` orders them. `valid` marks real samples, the rest is padding.
    """

    clients: int
    user: Tensor
    pos: Tensor
    neg: Tensor | None
    label: Tensor
    valid: Tensor
    size: Tensor


def permute_samples(world: World, key: Tensor, size: Tensor, position: Tensor, owner: Tensor) -> Tensor:
    """As `random.permute`; by a kernel where there is one, which knows by itself when it is done."""
    kernel = find_kernel("permute", world.device, world.compiled)
    return permute(key, size, position, owner) if kernel is None else kernel(key, size, position, owner)


class Samples:
    """A chunk's samples of one round, with its working set: the distinct (client, item) pairs that they touch.

    Clients are ordered by size, largest first, so that those with a b-th batch are a prefix, and so are their rows.
    """

    def __init__(self, chunk: Chunk, round: int, loss: Loss, batch_size: int) -> None:
        self.chunk, self.round, self.loss, self.batch_size = chunk, round, loss, batch_size
        n_items = chunk.world.items
        # Stable, so that clients of equal size keep one order on every platform.
        largest = np.argsort(-chunk.positives, kind="stable")
        self.order = chunk.tensor(largest)
        self.positives = chunk.tensor(chunk.positives[largest])
        per_positive = chunk.data.negatives + (1 if loss == "bce" else 0)
        counts = chunk.positives[largest] * per_positive
        self.count, self.samples = chunk.tensor(counts), int(counts.sum())
        users = np.diff(chunk.client_ptr)
        self.user_ends = pointers(users[largest]).tolist()  # of the first clients, by their number
        owner_of_user = np.repeat(np.argsort(largest), users)
        user_order = np.argsort(owner_of_user, kind="stable")
        self.user_order, self.owner_of_user = chunk.tensor(user_order), chunk.tensor(owner_of_user[user_order])
        user_of_positive = owners(chunk.tensor(chunk.user_ptr), len(chunk.items))
        self._user = chunk.tensor(np.argsort(user_order))[user_of_positive]
        owner = chunk.tensor(owner_of_user)[user_of_positive]
        item = chunk.tensor(chunk.items)
        drawn = negatives(chunk, round)
        keys = torch.cat([owner * n_items + item, (owner[:, None] * n_items + drawn).reshape(-1)])
        # Only rows that samples touch: whole tables of all clients would not fit, and most rows have no gradient.
        distinct, inverse = torch.unique(keys, return_inverse=True)
        self.owner, self.item = distinct // n_items, distinct % n_items
        self._pos, self._neg = inverse[: len(item)], inverse[len(item) :]
        self.steps = -(-counts // batch_size)  # per epoch

    def epoch(self, number: int) -> Iterator[Batch]:
        """The batches of one epoch, every sample once, in an order of each client's own."""
        device, size = self.count.device, self.batch_size
        start = self.count.cumsum(0) - self.count
        user, pos, neg, label = self._shuffle(number, start)
        offset = torch.arange(size, device=device)[None]
        # ascending, so that the clients with more than `step` batches are found by bisection
        done = self.steps[::-1]
        for step in range(int(done[-1]) if len(done) else 0):
            active = len(done) - int(np.searchsorted(done, step, side="right"))
            count = self.count[:active, None]
            valid = step * size + offset < count
            # Filling repeats the last sample, whose row surely exists; it is not valid, so it weighs nothing.
            at = start[:active, None] + torch.minimum(step * size + offset, count - 1)
            yield Batch(active, user[at], pos[at], None if neg is None else neg[at], label[at], valid, valid.sum(1))

    def _shuffle(self, epoch: int, start: Tensor) -> tuple[Tensor, Tensor, Tensor | None, Tensor]:
        """Users, rows, paired rows and labels of all samples, client after client, each client's in its own order."""
        chunk, device, slots = self.chunk, self.count.device, self.chunk.data.negatives
        owner = torch.repeat_interleave(self.count, output_size=self.samples)
        clients = chunk.tensor(chunk.clients)[self.order]
        key = fold_tensor(fold_tensor(chunk.secret.stream(Purpose.ORDER, self.round), clients), epoch)
        # A permutation by key, one per client: an order drawn for the whole chunk would depend on who else is in it.
        sample = permute_samples(
            chunk.world, key, self.count, torch.arange(len(owner), device=device) - start[owner], owner
        )
        first = chunk.tensor(chunk.user_ptr[chunk.client_ptr[:-1]])[self.order][owner]
        if self.loss == "bpr":
            anchor = first + sample // slots
            label = torch.ones(len(owner), dtype=chunk.world.dtype, device=device)
            return self._user[anchor], self._pos[anchor], self._neg[first * slots + sample], label
        n = self.positives[owner]
        positive, drawn = sample < n, (sample - n).clamp(min=0)
        anchor = first + torch.where(positive, sample, drawn // max(slots, 1))
        rows = torch.cat([self._pos, self._neg])
        at = torch.where(positive, anchor, len(self._pos) + first * slots + drawn)
        return self._user[anchor], rows[at], None, positive.to(chunk.world.dtype)
