"""Gram matrices of histories on an accelerator: one item's row is one program, which visits its users.

Users come in ascending order and nobody else writes to the row, so that a sum has one order and repeats bit by bit.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

LANES = 256  # items of a history that are added at a time
WARPS = 4


@triton.jit
def _add_pairs(total, history, user, ptr, place_of, begins, weight, block, longest, n_items, LANES: tl.constexpr):
    item = tl.program_id(0).to(tl.int64)
    total += item * n_items
    for t in range(tl.load(begins + item), tl.load(begins + item + 1)):
        place = tl.load(place_of + t)
        owner = tl.load(user + place)
        first = tl.load(ptr + owner)
        count = tl.load(ptr + owner + 1) - first
        by = tl.load(weight + owner)
        corner = longest - count
        line = block + (corner + place - first) * longest + corner
        for q in range(0, count, LANES):
            lane = q + tl.arange(0, LANES)
            real = lane < count
            cell = total + tl.load(history + first + lane, mask=real, other=0)
            mine = by * tl.load(line + lane, mask=real, other=0.0)
            tl.store(cell, tl.load(cell, mask=real, other=0.0) + mine, mask=real)
        # The next user may have the same items.
        tl.debug_barrier()


def add_pairs(history: Tensor, ptr: Tensor, weight: Tensor, block: Tensor, total: Tensor) -> None:
    """Add to `total` [items, items] every user's weight * block at the items of its history, none of which comes twice.

    The history of user k is `history[ptr[k]:ptr[k + 1]]`; its block is the lower right corner of `block`.
    """
    n_items, device = len(total), total.device
    user = torch.repeat_interleave(ptr.diff(), output_size=len(history))
    # Stable, so that the users of an item stay ascending and its sums have one order.
    item, place_of = torch.sort(history, stable=True)
    begins = torch.searchsorted(item, torch.arange(n_items + 1, device=device))
    _add_pairs[(n_items,)](
        total, history, user, ptr, place_of, begins, weight, block, len(block), n_items, LANES=LANES, num_warps=WARPS
    )
