"""FedRAP's two tables on an accelerator: `fedrap.train_additive` with one client as one program.

As there, a batch is two numbers per row: how many samples it has, and how many of them are liked. The rows that clients
touch lie in two scratches, own and shared, client after client; sums have one order, so that a run repeats bit by bit.
"""

from __future__ import annotations

import numpy as np
import torch
import triton
import triton.language as tl
from torch import Tensor

from fedrec.kernels.arguments import AdditiveSettings, Data, Keys
from fedrec.kernels.device import constants, halves
from fedrec.kernels.draws_triton import draw, fold
from fedrec.kernels.rows_triton import (
    add_changes,
    client_of,
    copy_rows,
    entries,
    lanes,
    last_epoch,
    order_samples,
    row_sums,
    scale_of,
)

WARPS = 4  # of a program


@triton.jit
def _count(row, order, seen, liked, low, size, n_pos, scale, LANES: tl.constexpr):
    """Add the samples of one batch to the counts of its rows."""
    for t in range(0, size, LANES):
        lane = t + tl.arange(0, LANES)
        real = lane < size
        sample = tl.load(order + low + lane, mask=real, other=0)
        held = tl.load(row + sample, mask=real, other=-1)
        total, first = row_sums(held, tl.where(real, scale, 0.0), real)
        good, _ = row_sums(held, tl.where(sample < n_pos, scale, 0.0), real)
        tl.store(seen + held, tl.load(seen + held, mask=first, other=0.0) + total, mask=first)
        tl.store(liked + held, tl.load(liked + held, mask=first, other=0.0) + good, mask=first)
        # The next tile may add to the same rows.
        tl.debug_barrier()


@triton.jit
def _step(
    head,
    bias,
    own,
    shared,
    seen,
    liked,
    begin,
    used,
    rate,
    decay,
    apart,
    sparse,
    d,
    LASSO: tl.constexpr,
    LANES: tl.constexpr,
    FACTORS: tl.constexpr,
):
    """Move all rows of a client by one batch, whose counts are then forgotten.

    Returns the loss before it and the gradients of the head and of its bias, without their decay.
    """
    real_type: tl.constexpr = own.dtype.element_ty
    loss, slopes = tl.full((), 0.0, tl.float64), tl.full((), 0.0, tl.float64)
    gradient = tl.zeros([FACTORS], real_type)
    for t in range(0, used, LANES):
        lane = t + tl.arange(0, LANES)
        real, row = lane < used, begin + lane
        at, there = entries(row, real, d, FACTORS)
        mine, common = tl.load(own + at, mask=there, other=0.0), tl.load(shared + at, mask=there, other=0.0)
        n = tl.load(seen + row, mask=real, other=0.0)
        good = tl.load(liked + row, mask=real, other=0.0)
        both, gap = mine + common, mine - common
        x = (tl.sum(both * head[None, :], 1) + bias).to(tl.float64)
        e = tl.exp(-tl.abs(x))
        slope = n * tl.where(x >= 0, 1.0, e) / (1.0 + e) - good
        distance = tl.sum(gap * gap, 1).to(tl.float64)
        if LASSO:
            price = tl.sum(tl.abs(common), 1).to(tl.float64)
            by_price = tl.where(common > 0, 1.0, tl.where(common < 0, -1.0, 0.0)).to(real_type)
            cost = n * sparse / d
        else:
            price = tl.sum(common * common, 1).to(tl.float64)
            by_price = common
            cost = n * sparse / d * 2.0
        softplus = tl.maximum(x, 0.0) + tl.log(1.0 + e)
        each = n * (softplus - apart * distance / d + sparse * price / d) - good * x
        loss += tl.sum(tl.where(real, each, 0.0), 0)
        slopes += tl.sum(tl.where(real, slope, 0.0), 0)
        by = slope.to(real_type)[:, None]
        gradient += tl.sum(by * both, 0)
        away = (n * 2.0 * apart / d).to(real_type)[:, None] * gap
        pulled = by * head[None, :]
        # Several threads may hold the same number: all read it before one writes.
        tl.debug_barrier()
        tl.store(own + at, mine - rate * (pulled - away + decay * mine), mask=there)
        tl.store(
            shared + at,
            common - rate * (pulled + away + cost.to(real_type)[:, None] * by_price + decay * common),
            mask=there,
        )
        tl.store(seen + row, tl.zeros_like(n), mask=real)
        tl.store(liked + row, tl.zeros_like(n), mask=real)
    tl.debug_barrier()
    return loss, gradient, slopes


@triton.jit(do_not_specialize=["high", "low"])
def _train(
    turn,
    clients,
    positive_ptr,
    row_ptr,
    row,
    item,
    common,
    tables,
    heads,
    biases,
    own,
    shared,
    seen,
    liked,
    order,
    settings,
    left,
    losses,
    counts,
    high,
    low,
    n_items,
    slots,
    epochs,
    batch,
    d,
    MEAN: tl.constexpr,
    LASSO: tl.constexpr,
    LANES: tl.constexpr,
    FACTORS: tl.constexpr,
):
    """All epochs of one client; see `train_additive`."""
    real_type: tl.constexpr = own.dtype.element_ty
    k, start, n_pos, begin, used, key = client_of(turn, clients, positive_ptr, row_ptr, high, low, slots)
    if n_pos == 0:
        return
    count = n_pos * (1 + slots)
    row += start
    order += start
    rate_head, rate_row = tl.load(settings), tl.load(settings + 1)
    decay_head, decay = tl.load(settings + 2).to(real_type), tl.load(settings + 3)
    apart, sparse = tl.load(settings + 4), tl.load(settings + 5)
    early_exit, slower = tl.load(settings + 6), tl.load(settings + 7)
    copy_rows(common, shared, item, begin, used, d, False, LANES, FACTORS)
    copy_rows(tables + k * n_items * d, own, item, begin, used, d, False, LANES, FACTORS)
    factor = tl.arange(0, FACTORS)
    head = tl.load(heads + k * d + factor, mask=factor < d, other=0.0)
    bias = tl.load(biases + k)
    pace, kept = tl.full((), 1.0, tl.float64), tl.full((), 1.0, tl.float64)
    total, average = tl.full((), 0.0, tl.float64), tl.full((), 0.0, tl.float64)
    epoch, stop = tl.full((), 0, tl.int32), tl.full((), 0, tl.int32) + epochs
    while epoch < stop:
        order_samples(order, fold(key, epoch), count, batch, LANES)
        for b in range(0, count, batch):
            size = tl.minimum(batch, count - b)
            scale = scale_of(size, MEAN)
            _count(row, order, seen, liked, b, size, n_pos, scale, LANES)
            loss, gradient, slopes = _step(
                head,
                bias,
                own,
                shared,
                seen,
                liked,
                begin,
                used,
                (rate_row * pace).to(real_type),
                decay.to(real_type),
                apart,
                sparse,
                d,
                LASSO,
                LANES,
                FACTORS,
            )
            step = (rate_head * pace).to(real_type)
            head -= step * (gradient + decay_head * head)
            bias -= step * (slopes.to(real_type) + decay_head * bias)
            # A mean counts by its samples, or a short last batch would weigh as much as a full one.
            total += loss / scale
            kept *= 1.0 - rate_row * decay * pace
            pace *= slower
        epoch += 1
        average, stop = last_epoch(total, average, count, epoch, stop, early_exit)
    tl.store(heads + k * d + factor, head, mask=factor < d)
    tl.store(biases + k, bias)
    tl.store(left + k, kept)
    tl.store(losses + k, total)
    tl.store(counts + k, epoch.to(tl.int64) * count)


@triton.jit
def _store_rows(tables, own, row_ptr, item, n_items, d, LANES: tl.constexpr, FACTORS: tl.constexpr):
    """A client's rows back into its table."""
    k = tl.program_id(0).to(tl.int64)
    begin = tl.load(row_ptr + k)
    used = (tl.load(row_ptr + k + 1) - begin).to(tl.int32)
    copy_rows(own, tables + k * n_items * d, item, begin, used, d, True, LANES, FACTORS)


def train_additive(
    data: Data,
    n_items: int,
    slots: int,
    keys: Keys,
    settings: AdditiveSettings,
    common: Tensor,
    own: Tensor,
    heads: Tensor,
    biases: Tensor,
    blocks: np.ndarray,
    parts: Tensor,
    left: Tensor,
    loss: Tensor,
    count: Tensor,
) -> None:
    """As `fedrap.train_additive`, with tensors of the device; the first of `parts` becomes the sum of all clients."""
    drawn = draw(data, n_items, slots, keys, common.device)
    samples, d = len(drawn.row), common.shape[1]
    held, shared = common.new_empty(2, samples, d)
    # Shares of a batch are added up here, as in double precision in `fedrap.py`.
    seen, liked = torch.zeros(2, samples, dtype=torch.float64, device=common.device)
    order = torch.empty(samples, dtype=torch.int32, device=common.device)
    factors = triton.next_power_of_2(d)
    shape = {"LANES": lanes(factors), "FACTORS": factors, "num_warps": WARPS, "num_stages": 1}
    turn = drawn.turn
    numbers = constants(
        common.device,
        settings.rate_head,
        settings.rate_row,
        settings.decay_head,
        settings.decay,
        settings.apart,
        settings.sparse,
        settings.early_exit,
        settings.slower,
    )
    _train[(len(turn),)](
        turn,
        drawn.clients,
        drawn.positive_ptr,
        drawn.row_ptr,
        drawn.row,
        drawn.item,
        common,
        own,
        heads,
        biases,
        held,
        shared,
        seen,
        liked,
        order,
        numbers,
        left,
        loss,
        count,
        *halves(keys.order),
        n_items,
        slots,
        settings.epochs,
        settings.batch,
        d,
        MEAN=settings.mean,
        LASSO=settings.lasso,
        **shape,
    )
    # Without decay, a pass over all tables would change nothing.
    if settings.decay:
        own.mul_(left.to(own.dtype)[:, None, None])
    # After the tables have shrunk, because these rows have decayed in their own steps.
    _store_rows[(len(turn),)](own, held, drawn.row_ptr, drawn.item, n_items, d, **shape)
    add_changes(drawn, shared, common[None], torch.ones_like(left), parts[0], left)
    # The caller adds up all blocks, and the first one has everything.
    parts[1:] = 0.0
