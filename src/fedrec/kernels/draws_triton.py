"""The samples of a round on an accelerator, and the rows of the table that each client needs for them.

The same integers as `samples.py` and `mf.py` draw. Every lane finds its own draw from the key and its position, so
that a user of a thousand items takes no longer than one of ten. Nothing here waits for the device: room is made for
as many rows as there are samples, and how many there are is known there alone.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from fedrec.kernels.arguments import Data, Keys
from fedrec.kernels.device import copies, halves, sent
from fedrec.random import GOLDEN, MUL_1, MUL_2, PERMUTE_ROUNDS, SWAPS

_GOLDEN, _MUL_1, _MUL_2 = tl.constexpr(GOLDEN), tl.constexpr(MUL_1), tl.constexpr(MUL_2)
_SWAPS, _ROUNDS = tl.constexpr(SWAPS), tl.constexpr(PERMUTE_ROUNDS)
LANES = 128  # positives that one program draws for
INT32 = (1 << 31) - 1


@triton.jit
def fold(key, value):
    z = key + (value.to(tl.uint64) + 1) * _GOLDEN
    z = (z ^ (z >> 30)) * _MUL_1
    z = (z ^ (z >> 27)) * _MUL_2
    return z ^ (z >> 31)


@triton.jit
def joined(high, low):
    """The key of these `device.halves`."""
    return (high.to(tl.uint32, bitcast=True).to(tl.uint64) << 32) | low.to(tl.uint32, bitcast=True).to(tl.uint64)


@triton.jit
def below(draw, bound):
    return ((draw >> 32).to(tl.int64) * bound) >> 32


@triton.jit
def _mix(x, key, mask, half):
    for turn in tl.static_range(_ROUNDS):
        multiply = fold(key, tl.full((), 2 * turn, tl.uint64)).to(tl.uint32) | 1
        add = fold(key, tl.full((), 2 * turn + 1, tl.uint64)).to(tl.uint32)
        x = (x * multiply + add) & mask
        x = x ^ (x >> half)
    return x


@triton.jit
def permuted(key, size, position):
    """Where `random.permute` sends these positions; those that are not below `size` stay."""
    bits = tl.full((), 1, tl.int32)
    while (1 << bits) < size:
        bits += 1
    mask, half = ((1 << bits) - 1).to(tl.uint32), ((bits + 1) >> 1).to(tl.uint32)
    inside = position < size
    x, outside = position, inside
    while tl.max(outside.to(tl.int32), 0) > 0:
        x = tl.where(outside, _mix(x.to(tl.uint32), key, mask, half).to(tl.int32), x)
        outside = inside & (x >= size)
    return x


@triton.jit(do_not_specialize=["count"])
def _permute(out, keys, sizes, positions, owners, count, LANES: tl.constexpr):
    """As `permuted`, every position in the order of its own owner."""
    at = tl.program_id(0).to(tl.int64) * LANES + tl.arange(0, LANES)
    real = at < count
    owner = tl.load(owners + at, mask=real, other=0)
    key = tl.load(keys + owner, mask=real, other=0).to(tl.uint64, bitcast=True)
    size = tl.load(sizes + owner, mask=real, other=1).to(tl.int32)
    bits = tl.full([LANES], 1, tl.int32)
    for _ in range(1, 31):
        bits += ((1 << bits) < size).to(tl.int32)
    mask, half = ((1 << bits) - 1).to(tl.uint32), ((bits + 1) >> 1).to(tl.uint32)
    x, outside = tl.load(positions + at, mask=real, other=0).to(tl.int32), real
    while tl.max(outside.to(tl.int32), 0) > 0:
        x = tl.where(outside, _mix(x.to(tl.uint32), key, mask, half).to(tl.int32), x)
        outside = real & (x >= size)
    tl.store(out + at, x.to(tl.int64), mask=real)


def permute(key: Tensor, size: Tensor, position: Tensor, owner: Tensor) -> Tensor:
    """As `random.permute`, of sizes below 2^30."""
    found = torch.empty_like(position)
    if len(position):
        _permute[(triton.cdiv(len(position), LANES),)](found, key, size, position, owner, len(position), LANES=LANES)
    return found


@triton.jit
def _shuffled(key, size, position):
    """Where `random.shuffle` sends each of these positions."""
    for turn in tl.static_range(_SWAPS):
        pivot = below(fold(key, tl.full((), 2 * turn, tl.uint64)), size)
        coins = fold(key, tl.full((), 2 * turn + 1, tl.uint64))
        other = pivot - position
        other = tl.where(other < 0, other + size, other)
        swapped = (fold(coins, tl.maximum(position, other)) >> 63) > 0
        position = tl.where(swapped, other, position)
    return position


@triton.jit
def _outside(rank, gap, begin, count, longest, real):
    """The rank-th item that is none of a user's: rank + #{k: gap[k] <= rank}, found by bisection."""
    before = tl.zeros_like(rank)
    left = count
    while longest > 0:  # as many turns as the longest needs
        half = (left + 1) >> 1
        inside = real & (left > 0)
        value = tl.load(gap + begin + before + half - 1, mask=inside, other=0)
        before += tl.where(inside & (value <= rank), half, 0)
        left -= half
        longest -= (longest + 1) >> 1
    return rank + before


@triton.jit(do_not_specialize=["high", "low", "positives"])
def _draw(keys, owner, places, users, user_ptr, items, pool_ptr, gap, positive_ptr, high, low, positives, n_items,
          slots, UNIQUE: tl.constexpr, SLOTS: tl.constexpr, LANES: tl.constexpr):  # fmt: skip
    """(client, item) of every sample as one number: for each client its positives, then the negatives of the first
    positive, of the second, ..."""
    at = tl.program_id(0).to(tl.int64) * LANES + tl.arange(0, LANES)
    real = at < positives
    client = tl.load(owner + at, mask=real, other=0)
    place = tl.load(places + client, mask=real, other=0)
    first = tl.load(positive_ptr + client, mask=real, other=0)
    count = tl.load(positive_ptr + client + 1, mask=real, other=0) - first
    index = at - first
    start = client * n_items
    out = keys + first * (1 + slots)
    item = tl.load(items + tl.load(user_ptr + place, mask=real, other=0) + index, mask=real, other=0)
    tl.store(out + index, (start + item).to(keys.dtype.element_ty), mask=real)

    begin = tl.load(pool_ptr + place, mask=real, other=0)
    gaps = tl.load(pool_ptr + place + 1, mask=real, other=0) - begin
    longest = tl.max(gaps, 0)
    pool = n_items - gaps
    key = fold(joined(high, low), tl.load(users + place, mask=real, other=0))
    column = tl.arange(0, SLOTS)[None, :]
    taken = tl.zeros([LANES, SLOTS], tl.int64)  # of the ranks taken so far in ascending order, each less its number
    for slot in range(slots):
        position = index * slots + slot
        if UNIQUE:
            rank = _shuffled(fold(key, position // pool), pool, position % pool)
        else:
            again = pool < slots  # with replacement
            rank = below(fold(key, position), tl.where(again, pool, pool - slot))
            here = rank[:, None]
            earlier = (column < slot) & (again[:, None] == 0)
            rank += tl.sum((earlier & (taken <= here)).to(tl.int64), 1)
            taken = tl.where(earlier & (taken > here), taken - 1, taken)
            taken = tl.where(column == slot, here, taken)
        drawn = _outside(rank, gap, begin, gaps, longest, real)
        tl.store(out + count + position, (start + drawn).to(keys.dtype.element_ty), mask=real)


@dataclass(frozen=True)
class Drawn:
    """The samples of some clients, and their rows: those of client k are row_ptr[k]:row_ptr[k + 1], by item."""

    clients: Tensor
    positive_ptr: Tensor  # where a client's positives begin; its samples begin at (1 + slots) times as much
    row: Tensor  # of every sample
    row_ptr: Tensor
    item: Tensor  # of every row; `items` where there is no row
    client: Tensor  # of every row, by its position among the clients
    items: int

    def by_item(self) -> tuple[Tensor, Tensor]:
        """All rows in the order of items, clients ascending within one, and where each item's begin."""
        item, row = torch.sort(self.item, stable=True)
        return row, torch.searchsorted(item, torch.arange(self.items + 1, dtype=item.dtype, device=item.device))


def draw(data: Data, n_items: int, slots: int, keys: Keys, device: torch.device) -> Drawn:
    positives = data.user_ptr[data.places + 1] - data.user_ptr[data.places]
    total, count = int(positives.sum()), len(positives)
    clients, places = sent(data.clients, device), sent(data.places, device)
    users, user_ptr, items, pool_ptr, gap = (
        copies.of(array, device) for array in (data.users, data.user_ptr, data.items, data.pool_ptr, data.gap)
    )
    positive_ptr = torch.zeros(count + 1, dtype=torch.int64, device=device)
    torch.cumsum(user_ptr[places + 1] - user_ptr[places], 0, out=positive_ptr[1:])
    owner = torch.repeat_interleave(positive_ptr.diff(), output_size=total)
    small = count * n_items <= INT32
    pairs = torch.empty(total * (1 + slots), dtype=torch.int32 if small else torch.int64, device=device)
    if total:
        _draw[(triton.cdiv(total, LANES),)](
            pairs, owner, places, users, user_ptr, items, pool_ptr, gap, positive_ptr, *halves(keys.negatives), total,
            n_items, slots, UNIQUE=data.unique, SLOTS=triton.next_power_of_2(max(slots, 1)), LANES=LANES,
        )  # fmt: skip
    return _number(pairs, clients, positive_ptr, n_items, slots)


def _number(pairs: Tensor, clients: Tensor, positive_ptr: Tensor, n_items: int, slots: int) -> Drawn:
    """Number the distinct pairs of client and item, without asking how many there are."""
    device, samples = pairs.device, len(pairs)
    ascending, sample = torch.sort(pairs)
    before = torch.zeros(samples + 1, dtype=torch.int32, device=device)  # distinct pairs before each place
    new = torch.ones(samples, dtype=torch.bool, device=device)
    torch.ne(ascending[1:], ascending[:-1], out=new[1:])
    torch.cumsum(new, 0, dtype=torch.int32, out=before[1:])
    number = before[1:] - 1
    at = number.long()
    # pairs that are equal write the same
    item = torch.full((samples,), n_items, dtype=torch.int32, device=device)
    item.scatter_(0, at, (ascending % n_items).int())
    client = torch.zeros(samples, dtype=torch.int32, device=device)
    client.scatter_(0, at, torch.div(ascending, n_items, rounding_mode="floor").int())
    row = torch.empty(samples, dtype=torch.int32, device=device).scatter_(0, sample, number)
    return Drawn(clients, positive_ptr, row, before[positive_ptr * (1 + slots)].long(), item, client, n_items)
