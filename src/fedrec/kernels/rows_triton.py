"""Local training of a client's vector and item rows on an accelerator: one client is one program.

As `mf.py`: with the vector fixed during a step, all samples of a row share one direction, so a batch is gone through
to add up every row's coefficient, then its rows are moved. The rows that clients touch lie in one scratch, client
after client. Nothing is added atomically and every sum has one order: a run repeats bit by bit. The interpreter runs a
program in one thread and cannot show that a barrier is missing: they stand wherever a program reads what it wrote, or
overwrites what it read.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from fedrec.kernels.arguments import Keys
from fedrec.kernels.bounds import LEAST_LOG, LEAST_SLOPE
from fedrec.kernels.device import constants, halves
from fedrec.kernels.draws_triton import Drawn, fold, join_halves, permute_positions

_LEAST_SLOPE, _LEAST_LOG = tl.constexpr(LEAST_SLOPE), tl.constexpr(LEAST_LOG)
_LEAST_LOGIT = tl.constexpr(-88.7)  # below, the exponential is infinite in single precision
TILE = 8192  # numbers of rows that a program holds at once
LANES = 32  # samples in a tile, at most
WARPS = 2  # of a program
SUM_LANES, SUM_WARPS = 128, 4  # of one that adds up an item's changes


@triton.jit
def row_sums(row, value, real):
    """For every lane the sum over the lanes of its row, and whether it is the first of them."""
    lane = tl.arange(0, row.shape[0])
    # all pairs of lanes are compared in place of atomic additions, whose order would differ from run to run
    same = (row[:, None] == row[None, :]) & real[None, :]
    total = tl.sum(tl.where(same, value[None, :], 0.0), 1)
    earlier = tl.sum((same & (lane[None, :] < lane[:, None])).to(tl.int32), 1)
    return total, real & (earlier == 0)


@triton.jit
def _add_slopes(row, slope, real, coef, touched):
    """Add the slopes of a tile to the coefficients of its rows; `touched` becomes each row once and -1 elsewhere."""
    total, first = row_sums(row, slope, real)
    # By the first lane of a row alone: lanes that write the same number would lose each other's sums.
    tl.store(coef + row, tl.load(coef + row, mask=first, other=0.0) + total, mask=first)
    tl.store(touched, tl.where(first, row, -1), mask=real)


@triton.jit
def _logits(rows, row, p, real, d, FACTORS: tl.constexpr):
    """Dot products of p with the rows of a tile."""
    at, there = entries(row, real, d, FACTORS)
    return tl.sum(tl.load(rows + at, mask=there, other=0.0) * p[None, :], 1)


@triton.jit
def bce(logit, liked):
    """dloss/dlogit and the loss of pointwise samples, in double precision."""
    # e is of -|x|, at most 1: neither the slope nor the loss overflows, and small slopes keep all their digits
    x = logit.to(tl.float64)
    label = liked.to(tl.float64)
    e = tl.exp(-tl.abs(x))
    return tl.where(x >= 0, 1.0, e) / (1.0 + e) - label, tl.maximum(x, 0.0) - x * label + tl.log(1.0 + e)


@triton.jit
def bpr(difference):
    """The same for pairs: loss = log(1 + exp(-x)) of x = positive - negative."""
    x = difference.to(tl.float64)
    e = tl.exp(-tl.abs(x))
    return tl.where(x >= 0, e, 1.0) / (1.0 + e), tl.maximum(-x, 0.0) + tl.log(1.0 + e)


@triton.jit
def _slope_saturated(logit, liked):
    """As `linear.write_saturated_slopes`: logits pass a sigmoid in single precision."""
    x = logit.to(tl.float32)
    p = tl.where(x < _LEAST_LOGIT, 0.0, 1.0 / (1.0 + tl.exp(-tl.where(x < _LEAST_LOGIT, 0.0, x))))
    flat = p * (1.0 - p)
    slope = (p - liked.to(tl.float32)) * (flat / tl.maximum(flat, _LEAST_SLOPE))
    chance = tl.where(liked, p.to(tl.float64), 1.0 - p.to(tl.float64))
    log = tl.log(tl.where(chance <= 0, 1.0, chance))
    return slope.to(tl.float64), -tl.where((chance <= 0) | (log < _LEAST_LOG), _LEAST_LOG, log)


@triton.jit
def adam(value, gradient, first, second, scale, floor):
    m = 0.9 * first + 0.1 * gradient
    v = 0.999 * second + 0.001 * gradient * gradient
    return value - scale * m / (tl.sqrt(v) + floor), m, v


@triton.jit
def entries(row, real, d, FACTORS: tl.constexpr):
    """Offsets of the numbers of some rows, and which of them there are."""
    factor = tl.arange(0, FACTORS)
    # In 64 bits, because rows times factors may pass 2 ** 31.
    return row.to(tl.int64)[:, None] * d + factor[None, :], real[:, None] & (factor < d)[None, :]


@triton.jit
def _slopes(
    p,
    bias,
    row,
    rows,
    coef,
    order,
    touched,
    samples,
    low,
    size,
    n_pos,
    slots,
    d,
    PAIRS: tl.constexpr,
    SATURATE: tl.constexpr,
    LANES: tl.constexpr,
    FACTORS: tl.constexpr,
):
    """Add dloss/dlogit of one batch to the coefficients of its rows; returns the summed loss.

    `row`, `order` and `touched` begin with the client; what pairs touch beside their positives is `samples` further on.
    """
    real_type: tl.constexpr = rows.dtype.element_ty
    total = tl.full((), 0.0, tl.float64)
    for t in range(0, size, LANES):
        lane = t + tl.arange(0, LANES)
        real = lane < size
        sample = tl.load(order + low + lane, mask=real, other=0)
        out = touched + low + lane
        if PAIRS:
            liked = tl.load(row + sample // slots, mask=real, other=-1)
            other = tl.load(row + n_pos + sample, mask=real, other=-1)
            difference = _logits(rows, liked, p, real, d, FACTORS) - _logits(rows, other, p, real, d, FACTORS)
            slope, loss = bpr(difference)
            _add_slopes(liked, -slope.to(real_type), real, coef, out)
            _add_slopes(other, slope.to(real_type), real, coef, out + samples)
        else:
            held = tl.load(row + sample, mask=real, other=-1)
            logit = _logits(rows, held, p, real, d, FACTORS) + bias
            if SATURATE:
                slope, loss = _slope_saturated(logit, sample < n_pos)
            else:
                slope, loss = bce(logit, sample < n_pos)
            _add_slopes(held, slope.to(real_type), real, coef, out)
        total += tl.sum(tl.where(real, loss, 0.0), 0)
        # The next tile may add to the same rows.
        tl.debug_barrier()
    return total


@triton.jit
def _descend(
    p,
    rows,
    coef,
    touched,
    samples,
    low,
    size,
    rate,
    d,
    MOVES: tl.constexpr,
    PAIRS: tl.constexpr,
    LANES: tl.constexpr,
    FACTORS: tl.constexpr,
):
    """Move the rows of a batch, if they move, each once; returns the gradients of p and of a bias."""
    real_type: tl.constexpr = rows.dtype.element_ty
    gradient, slope = tl.zeros([FACTORS], real_type), tl.full((), 0.0, real_type)
    for t in range(0, size, LANES):
        lane = t + tl.arange(0, LANES)
        for side in tl.static_range(2 if PAIRS else 1):
            row = tl.load(touched + side * samples + low + lane, mask=lane < size, other=-1)
            c = tl.load(coef + row, mask=row >= 0, other=0.0)
            # A row of an earlier tile has moved, and its coefficient is 0 since.
            moved = c != 0.0
            at, there = entries(row, moved, d, FACTORS)
            held = tl.load(rows + at, mask=there, other=0.0)
            gradient += tl.sum(c[:, None] * held, 0)
            slope += tl.sum(c, 0)
            # Several threads may hold the same number: all read it before one writes.
            tl.debug_barrier()
            if MOVES:
                # As in `mf.py`, multiplied in double precision and rounded once.
                step = (rate * c.to(tl.float64)).to(real_type)
                tl.store(rows + at, held - step[:, None] * p[None, :], mask=there)
            tl.store(coef + row, tl.zeros_like(c), mask=moved)
        tl.debug_barrier()
    return gradient, slope


@triton.jit
def _descend_adam(
    p,
    rows,
    coef,
    first,
    second,
    start,
    item,
    begin,
    used,
    scale,
    pull,
    step,
    floor,
    d,
    MOVES: tl.constexpr,
    PULL: tl.constexpr,
    LANES: tl.constexpr,
    FACTORS: tl.constexpr,
):
    """The same by Adam: rows go on moving after the batches that touched them, so all of them are visited.

    A `pull` draws rows back to where they were in `start`, the table.
    """
    real_type: tl.constexpr = rows.dtype.element_ty
    gradient = tl.zeros([FACTORS], real_type)
    for t in range(0, used, LANES):
        lane = t + tl.arange(0, LANES)
        real, row = lane < used, begin + lane
        c = (tl.load(coef + row, mask=real, other=0.0) * scale).to(real_type)
        at, there = entries(row, real, d, FACTORS)
        held = tl.load(rows + at, mask=there, other=0.0)
        gradient += tl.sum(c[:, None] * held, 0)
        if MOVES:
            slope = c[:, None] * p[None, :]
            if PULL:
                from_, _ = entries(tl.load(item + row, mask=real, other=0), real, d, FACTORS)
                slope += (2.0 * pull).to(real_type) * (held - tl.load(start + from_, mask=there, other=0.0))
            m, v = tl.load(first + at, mask=there, other=0.0), tl.load(second + at, mask=there, other=0.0)
            held, m, v = adam(held, slope, m, v, step, floor)
            tl.debug_barrier()  # as in `_descend`
            tl.store(rows + at, held, mask=there)
            tl.store(first + at, m, mask=there)
            tl.store(second + at, v, mask=there)
        tl.debug_barrier()
        # Behind the barrier, or a slower thread would read the zero.
        tl.store(coef + row, tl.zeros_like(c), mask=real)
    tl.debug_barrier()
    return gradient


@triton.jit
def copy_rows(source, target, item, begin, used, d, BACK: tl.constexpr, LANES: tl.constexpr, FACTORS: tl.constexpr):
    """A client's rows from its table into the scratch, or `BACK`."""
    for t in range(0, used, LANES):
        lane = t + tl.arange(0, LANES)
        real, row = lane < used, begin + lane
        in_scratch, there = entries(row, real, d, FACTORS)
        in_table, _ = entries(tl.load(item + row, mask=real, other=0), real, d, FACTORS)
        if BACK:
            tl.store(target + in_table, tl.load(source + in_scratch, mask=there), mask=there)
        else:
            tl.store(target + in_scratch, tl.load(source + in_table, mask=there), mask=there)
    tl.debug_barrier()


@triton.jit
def order_samples(order, key, count, batch, LANES: tl.constexpr):
    """The order of a client's samples in an epoch."""
    for t in range(0, count, LANES):
        lane = t + tl.arange(0, LANES)
        sample = lane
        if count > batch:  # else one batch: its order does not matter
            sample = permute_positions(key, count, lane)
        tl.store(order + lane, sample, mask=lane < count)
    tl.debug_barrier()


@triton.jit
def client_of(turn, clients, positive_ptr, row_ptr, high, low, slots):
    """The client of a program: its position, where its samples begin, its positives, its rows, the key of its order."""
    k = tl.load(turn + tl.program_id(0))
    start, begin = tl.load(positive_ptr + k), tl.load(row_ptr + k)
    n_pos = (tl.load(positive_ptr + k + 1) - start).to(tl.int32)
    used = (tl.load(row_ptr + k + 1) - begin).to(tl.int32)
    return k, start * (1 + slots), n_pos, begin, used, fold(join_halves(high, low), tl.load(clients + k))


@triton.jit
def scale_of(size, MEAN: tl.constexpr):
    """What the loss of every sample of a batch counts."""
    scale = tl.full((), 1.0, tl.float64)
    if MEAN:
        scale = scale / size.to(tl.float64)
    return scale


@triton.jit
def last_epoch(total, before, count, epoch, stop, early_exit):
    """The mean loss since the start after so many epochs, and after which of them a client stops."""
    average = total / (count.to(tl.float64) * epoch.to(tl.float64))
    settled = (epoch > 1) & (tl.abs(average - before) / tl.abs(before + 1e-5) < early_exit)
    return average, tl.where(settled, epoch, stop)


@triton.jit(do_not_specialize=["high", "low", "samples"])
def _train(
    turn,
    clients,
    positive_ptr,
    row_ptr,
    row,
    item,
    table,
    home,
    vectors,
    biases,
    rows,
    coef,
    first,
    second,
    order,
    touched,
    settings,
    losses,
    seen,
    high,
    low,
    samples,
    n_items,
    slots,
    epochs,
    batch,
    d,
    PAIRS: tl.constexpr,
    ADAM: tl.constexpr,
    MEAN: tl.constexpr,
    PULL: tl.constexpr,
    PHASES: tl.constexpr,
    SHARED: tl.constexpr,
    LEAVES: tl.constexpr,
    BIAS: tl.constexpr,
    SATURATE: tl.constexpr,
    LANES: tl.constexpr,
    FACTORS: tl.constexpr,
):
    """All epochs of one client; see `train`."""
    real_type: tl.constexpr = rows.dtype.element_ty
    k, start, n_pos, begin, used, key = client_of(turn, clients, positive_ptr, row_ptr, high, low, slots)
    if n_pos == 0:
        return
    count = n_pos * slots if PAIRS else n_pos * (1 + slots)
    row += start
    order += start
    touched += start
    rate_vector, rate_row = tl.load(settings), tl.load(settings + 1)
    early_exit, pull, decay = tl.load(settings + 2), tl.load(settings + 3), tl.load(settings + 4)
    if not SHARED:
        table += k * n_items * d
    copy_rows(table, rows, item, begin, used, d, False, LANES, FACTORS)
    factor = tl.arange(0, FACTORS)
    p = tl.load(vectors + k * d + factor, mask=factor < d, other=0.0)
    bias = tl.full((), 0.0, real_type)
    if BIAS:
        bias = tl.load(biases + k)
    m, v = tl.zeros_like(p), tl.zeros_like(p)
    left_1, left_2 = tl.full((), 1.0, tl.float64), tl.full((), 1.0, tl.float64)  # of Adam's first moments
    total, average = tl.full((), 0.0, tl.float64), tl.full((), 0.0, tl.float64)
    epoch, stop = tl.full((), 0, tl.int32), tl.full((), 0, tl.int32) + epochs
    while epoch < stop:
        order_samples(order, fold(key, epoch), count, batch, LANES)
        for b in range(0, count, batch):
            size = tl.minimum(batch, count - b)
            scale = scale_of(size, MEAN)
            left_1 *= 0.9
            left_2 *= 0.999
            # As in `mf.py`, corrections for the start go into rate and floor.
            fix = tl.sqrt(1.0 - left_2)
            floor = (1e-8 * fix).to(real_type)
            for phase in tl.static_range(PHASES):  # the vector moves in the first, the rows in the last
                loss = _slopes(
                    p,
                    bias,
                    row,
                    rows,
                    coef,
                    order,
                    touched,
                    samples,
                    b,
                    size,
                    n_pos,
                    slots,
                    d,
                    PAIRS,
                    SATURATE,
                    LANES,
                    FACTORS,
                )
                if ADAM:
                    gradient = _descend_adam(
                        p,
                        rows,
                        coef,
                        first,
                        second,
                        table,
                        item,
                        begin,
                        used,
                        scale,
                        pull,
                        (rate_row * fix / (1.0 - left_1)).to(real_type),
                        floor,
                        d,
                        phase == PHASES - 1,
                        PULL,
                        LANES,
                        FACTORS,
                    )
                else:
                    gradient, slope = _descend(
                        p,
                        rows,
                        coef,
                        touched,
                        samples,
                        b,
                        size,
                        rate_row * scale,
                        d,
                        phase == PHASES - 1,
                        PAIRS,
                        LANES,
                        FACTORS,
                    )
                if phase == 0:
                    total += loss
                    if ADAM:
                        p, m, v = adam(p, gradient, m, v, (rate_vector * fix / (1.0 - left_1)).to(real_type), floor)
                    else:
                        step = (rate_vector * scale).to(real_type)
                        if BIAS:
                            # Divided by the scale, because the step has it in it and decay is no mean.
                            shrink = (decay / scale).to(real_type)
                            gradient += shrink * p
                            bias -= step * (slope + shrink * bias)
                        p -= step * gradient
        epoch += 1
        average, stop = last_epoch(total, average, count, epoch, stop, early_exit)
    tl.store(vectors + k * d + factor, p, mask=factor < d)
    if BIAS:
        tl.store(biases + k, bias)
    if LEAVES:
        copy_rows(rows, home + k * n_items * d, item, begin, used, d, True, LANES, FACTORS)
    tl.store(losses + k, total)
    tl.store(seen + k, epoch.to(tl.int64) * count)


@triton.jit
def _add_changes(
    total,
    rows,
    table,
    row_of,
    begins,
    client,
    weight,
    left,
    d,
    SHRUNK: tl.constexpr,
    LANES: tl.constexpr,
    FACTORS: tl.constexpr,
):
    """The weighted sum over clients of the changes of one item's row, clients ascending."""
    item = tl.program_id(0).to(tl.int64)
    factor = tl.arange(0, FACTORS)
    start = tl.load(table + item * d + factor, mask=factor < d, other=0.0)
    low, high = tl.load(begins + item), tl.load(begins + item + 1)
    # In double precision: the changes of single clients are small beside their sum.
    change = tl.zeros([FACTORS], tl.float64)
    for t in range(low, high, LANES):
        lane = t + tl.arange(0, LANES)
        row = tl.load(row_of + lane, mask=lane < high, other=0)
        owner = tl.load(client + row, mask=lane < high, other=0)
        by = tl.load(weight + owner, mask=lane < high, other=0.0)
        at, there = entries(row, lane < high, d, FACTORS)
        before = start[None, :]
        if SHRUNK:
            before = tl.load(left + owner, mask=lane < high, other=0.0).to(start.dtype)[:, None] * before
        held = tl.load(rows + at, mask=there, other=0.0) - before
        change += tl.sum(tl.where(there, by[:, None] * held.to(tl.float64), 0.0), 0)
    tl.store(total + item * d + factor, change, mask=factor < d)


class Training(NamedTuple):
    """What differs between models: the settings in their own words, and whether there is a bias."""

    rate_vector: float
    rate_row: float
    batch: int
    epochs: int
    mean: bool
    early_exit: float
    phases: int
    pull: float = 0.0
    decay: float = 0.0
    adam: bool = False
    pairs: bool = False
    saturate: bool = False


def train(
    drawn: Drawn,
    slots: int,
    keys: Keys,
    by: Training,
    vectors: Tensor,
    biases: Tensor | None,
    table: Tensor,
    shared: bool,
    own: Tensor,
    losses: Tensor,
    seen: Tensor,
) -> Tensor:
    """Train clients, as `mf.train_clients`, and return the rows that they end with, in the order of `drawn`.

    `vectors` [clients, d] and `biases`, if there are any, are updated in place, and so is `table` unless it is shared.
    """
    device, samples, d = table.device, len(drawn.row), table.shape[2]
    rows = table.new_empty(samples, d)
    coef = table.new_zeros(samples)
    moments = table.new_zeros(2, samples if by.adam else 0, d)
    order, touched = (torch.empty(n * samples, dtype=torch.int32, device=device) for n in (1, 2 if by.pairs else 1))
    if shared and len(own):
        own.copy_(table.expand_as(own))
    factors = triton.next_power_of_2(d)
    turn = drawn.turn
    settings = constants(device, by.rate_vector, by.rate_row, by.early_exit, by.pull, by.decay)
    _train[(len(turn),)](
        turn,
        drawn.clients,
        drawn.positive_ptr,
        drawn.row_ptr,
        drawn.row,
        drawn.item,
        table,
        own if shared else table,
        vectors,
        vectors if biases is None else biases,
        rows,
        coef,
        *moments,
        order,
        touched,
        settings,
        losses,
        seen,
        *halves(keys.order),
        samples,
        drawn.items,
        slots,
        by.epochs,
        by.batch,
        d,
        PAIRS=by.pairs,
        ADAM=by.adam,
        MEAN=by.mean,
        PULL=by.pull > 0,
        PHASES=by.phases,
        SHARED=shared,
        LEAVES=not shared or len(own) > 0,
        BIAS=biases is not None,
        SATURATE=by.saturate,
        LANES=lanes(factors),
        FACTORS=factors,
        num_warps=WARPS,
        num_stages=1,
    )
    return rows


def add_changes(
    drawn: Drawn, rows: Tensor, table: Tensor, weight: Tensor, total: Tensor, left: Tensor | None = None
) -> None:
    """`total` [items, d] becomes the sum over clients of weight * (row now - row at the start).

    `left`: what each client has left of a row at the start that no sample touched.
    """
    factors = triton.next_power_of_2(table.shape[2])
    row_of, begins = drawn.by_item()
    _add_changes[(drawn.items,)](
        total,
        rows,
        table,
        row_of,
        begins,
        drawn.client,
        weight,
        weight if left is None else left,
        table.shape[2],
        SHRUNK=left is not None,
        LANES=lanes(factors, SUM_LANES),
        FACTORS=factors,
        num_warps=SUM_WARPS,
        num_stages=1,
    )


def lanes(factors: int, most: int | None = None) -> int:
    return max(16, min(most or LANES, TILE // factors))
