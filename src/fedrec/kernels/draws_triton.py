"""The samples of a round on an accelerator, and the rows of the table that each client needs for them.

The same integers as `samples.py` and `mf.py` draw. Every lane finds its own draw from the key and its position, so
that a user of a thousand items takes no longer than one of ten. Nothing here waits for the device: room is made for
as many rows as there are samples, and how many there are is known there alone.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
import triton
import triton.language as tl
from torch import Tensor

from fedrec.kernels.arguments import Data, Keys
from fedrec.kernels.device import copies, halves, sent, to_device
from fedrec.random import GOLDEN, MUL_1, MUL_2, PERMUTE_ROUNDS, SWAPS

_GOLDEN, _MUL_1, _MUL_2 = tl.constexpr(GOLDEN), tl.constexpr(MUL_1), tl.constexpr(MUL_2)
_SWAPS, _ROUNDS = tl.constexpr(SWAPS), tl.constexpr(PERMUTE_ROUNDS)
LANES = 128  # positives that one program draws for
INT32 = (1 << 31) - 1


@triton.jit
def fold(key, value):
    # splitmix64: the integers that numpy, numba and torch draw
    z = key + (value.to(tl.uint64) + 1) * _GOLDEN
    z = (z ^ (z >> 30)) * _MUL_1
    z = (z ^ (z >> 27)) * _MUL_2
    return z ^ (z >> 31)


@triton.jit
def join_halves(high, low):
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
def permute_positions(key, size, position):
    """Where `random.permute` sends these positions; those that are not below `size` stay."""
    bits = tl.full((), 1, tl.int32)
    while (1 << bits) < size:
        bits += 1
    mask, half = ((1 << bits) - 1).to(tl.uint32), ((bits + 1) >> 1).to(tl.uint32)
    inside = position < size
    # cycle walking: what lands beyond `size` goes round again; less than half of the range lies there
    x, outside = position, inside
    while tl.max(outside.to(tl.int32), 0) > 0:
        x = tl.where(outside, _mix(x.to(tl.uint32), key, mask, half).to(tl.int32), x)
        outside = inside & (x >= size)
    return x


# Not specialised by `count`, so that one kernel serves rounds of every size.
@triton.jit(do_not_specialize=["count"])
def _permute(out, keys, sizes, positions, owners, count, LANES: tl.constexpr):
    """As `permute_positions`, every position in the order of its own owner."""
    at = tl.program_id(0).to(tl.int64) * LANES + tl.arange(0, LANES)
    real = at < count
    owner = tl.load(owners + at, mask=real, other=0)
    key = tl.load(keys + owner, mask=real, other=0).to(tl.uint64, bitcast=True)
    size = tl.load(sizes + owner, mask=real, other=1).to(tl.int32)
    # lanes have sizes of their own, so all of them take the most turns that any could need
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
def _shuffle_positions(key, size, position):
    """Where `random.shuffle` sends each of these positions."""
    for turn in tl.static_range(_SWAPS):
        pivot = below(fold(key, tl.full((), 2 * turn, tl.uint64)), size)
        coins = fold(key, tl.full((), 2 * turn + 1, tl.uint64))
        # swap-or-not: a position and its mirror image at the pivot look at one coin
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
    # As many turns as the longest needs, because all lanes go through the loop together.
    while longest > 0:
        half = (left + 1) >> 1
        inside = real & (left > 0)
        value = tl.load(gap + begin + before + half - 1, mask=inside, other=0)
        before += tl.where(inside & (value <= rank), half, 0)
        left -= half
        longest -= (longest + 1) >> 1
    return rank + before


@triton.jit(do_not_specialize=["high", "low", "positives"])
def _draw(
    keys,
    owner,
    places,
    users,
    user_ptr,
    items,
    pool_ptr,
    gap,
    positive_ptr,
    high,
    low,
    positives,
    n_items,
    slots,
    UNIQUE: tl.constexpr,
    SLOTS: tl.constexpr,
    LANES: tl.constexpr,
):
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
    key = fold(join_halves(high, low), tl.load(users + place, mask=real, other=0))
    column = tl.arange(0, SLOTS)[None, :]
    taken = tl.zeros([LANES, SLOTS], tl.int64)  # of the ranks taken so far in ascending order, each less its number
    for slot in range(slots):
        position = index * slots + slot
        if UNIQUE:
            rank = _shuffle_positions(fold(key, position // pool), pool, position % pool)
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


@triton.jit(do_not_specialize=["samples"])
def _mark(new, ascending, samples, LANES: tl.constexpr):
    """new[i + 1]: whether the i-th pair is not the one before it."""
    at = tl.program_id(0).to(tl.int64) * LANES + tl.arange(0, LANES)
    real = at < samples
    pair = tl.load(ascending + at, mask=real, other=0)
    before = tl.load(ascending + at - 1, mask=real & (at > 0), other=-1)
    tl.store(new + at + 1, (pair != before).to(tl.int32), mask=real)


@triton.jit(do_not_specialize=["samples"])
def _number(row, item, client, ascending, sample, before, samples, n_items, LANES: tl.constexpr):
    """The row of every sample, and what every row is of; where there is no row, of no item."""
    at = tl.program_id(0).to(tl.int64) * LANES + tl.arange(0, LANES)
    real = at < samples
    pair = tl.load(ascending + at, mask=real, other=0)
    number = tl.load(before + at + 1, mask=real, other=1) - 1
    tl.store(row + tl.load(sample + at, mask=real, other=0), number, mask=real)
    # pairs that are equal write the same
    tl.store(item + number, (pair % n_items).to(tl.int32), mask=real)
    tl.store(client + number, (pair // n_items).to(tl.int32), mask=real)
    nothing = real & (at >= tl.load(before + samples))
    tl.store(item + at, tl.zeros_like(number) + n_items, mask=nothing)
    tl.store(client + at, tl.zeros_like(number), mask=nothing)


@dataclass(frozen=True)
class Layout:
    """What follows from who takes part: where a client's positives begin, and the client of every positive."""

    clients: Tensor
    places: Tensor
    positive_ptr: Tensor
    owner: Tensor
    turn: Tensor  # clients by their work, the longest first

    @staticmethod
    def from_data(data: Data, device: torch.device) -> Layout:
        positives = data.user_ptr[data.places + 1] - data.user_ptr[data.places]
        # The longest first: one that starts last would leave all the others waiting.
        ptr, turn = np.concatenate([[0], np.cumsum(positives)]), np.argsort(-positives, kind="stable")
        positive_ptr = to_device(ptr, device)
        owner = torch.repeat_interleave(positive_ptr.diff(), output_size=int(ptr[-1]))
        return Layout(
            sent(data.clients, device), sent(data.places, device), positive_ptr, owner, to_device(turn, device)
        )


class Layouts:
    """Those of the last chunks: where everybody takes part they are the same in every round."""

    def __init__(self, most: int = 4) -> None:
        self._kept: dict[tuple[object, ...], Layout] = {}
        self._most = most

    def get(self, data: Data, device: torch.device) -> Layout:
        who = (data.clients.tobytes(), data.places.tobytes(), data.user_ptr.tobytes(), device)
        if who not in self._kept:
            # Bounded, because every round may have another set of clients.
            while len(self._kept) >= self._most:
                self._kept.pop(next(iter(self._kept)))
            self._kept[who] = Layout.from_data(data, device)
        return self._kept[who]


layouts = Layouts()


@dataclass(frozen=True)
class Drawn:
    """The samples of some clients, and their rows: those of client k are row_ptr[k]:row_ptr[k + 1], by item."""

    clients: Tensor
    positive_ptr: Tensor  # where a client's positives begin; its samples begin at (1 + slots) times as much
    turn: Tensor  # the order in which clients are trained
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
    layout = layouts.get(data, device)
    total, count = len(layout.owner), len(layout.clients)
    users, user_ptr, items, pool_ptr, gap = (
        copies.get(array, device) for array in (data.users, data.user_ptr, data.items, data.pool_ptr, data.gap)
    )
    # Half the width, where it is enough, is half of what the sort has to move.
    small = count * n_items <= INT32
    pairs = torch.empty(total * (1 + slots), dtype=torch.int32 if small else torch.int64, device=device)
    if total:
        _draw[(triton.cdiv(total, LANES),)](
            pairs,
            layout.owner,
            layout.places,
            users,
            user_ptr,
            items,
            pool_ptr,
            gap,
            layout.positive_ptr,
            *halves(keys.negatives),
            total,
            n_items,
            slots,
            UNIQUE=data.unique,
            SLOTS=triton.next_power_of_2(max(slots, 1)),
            LANES=LANES,
        )
    return _number_pairs(pairs, layout, n_items, slots)


def _number_pairs(pairs: Tensor, layout: Layout, n_items: int, slots: int) -> Drawn:
    """Number the distinct pairs of client and item, without asking how many there are."""
    device, samples = pairs.device, len(pairs)
    # Sorted and not hashed: atomics would number the pairs in another order every run.
    ascending, sample = torch.sort(pairs)
    new = torch.zeros(samples + 1, dtype=torch.int32, device=device)
    row, item, client = (torch.empty(samples, dtype=torch.int32, device=device) for _ in range(3))
    grid = (triton.cdiv(samples, LANES),)
    if samples:
        _mark[grid](new, ascending, samples, LANES=LANES)
    before = torch.cumsum(new, 0, dtype=torch.int32)  # distinct pairs before each place
    if samples:
        _number[grid](row, item, client, ascending, sample, before, samples, n_items, LANES=LANES)
    row_ptr = before[layout.positive_ptr * (1 + slots)].long()
    return Drawn(layout.clients, layout.positive_ptr, layout.turn, row, row_ptr, item, client, n_items)
