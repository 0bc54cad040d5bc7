"""The network on [user; item] on an accelerator: `ncf.train_networks`, one client a program.

A tile of samples passes through the network layer by layer; what enters the layers, and its gradients, lie in a scratch
of the client, from which every loop takes one input, one output or one sample at a time. As in `ncf.py` the user's half
of the first layer is one vector for the whole batch. No sum depends on the order in which programs run.
"""

from __future__ import annotations

import numpy as np
import torch
import triton
import triton.language as tl
from torch import Tensor

from fedrec.kernels.arguments import Data, Keys, Layers, NetworkSettings
from fedrec.kernels.device import constants, halves
from fedrec.kernels.draws_triton import draw, fold
from fedrec.kernels.rows_triton import (
    adam,
    add_changes,
    bce,
    bpr,
    client_of,
    copy_rows,
    entries,
    lanes,
    last_epoch,
    order_samples,
    scale_of,
)

WIDEST = 64  # units of a layer that are held at once
WIDTH = 1024  # numbers that move at once
WARPS = 4


@triton.jit
def _layer(shapes, layer, depth, d):
    """Of a layer: its inputs that differ from sample to sample, its outputs, where their activations begin, where the
    weights that act on the inputs begin, the length of a weight's row, and where the bias begins."""
    wide, before = tl.load(shapes + layer), tl.load(shapes + depth + 1 + layer)
    out = tl.load(shapes + layer + 1)
    height = tl.load(shapes + 2 * (depth + 1) + layer)
    shared = tl.where(layer == 0, d, 0)  # of the first layer, the user's half comes before
    return wide - shared, out, height, before + shared, wide, before + out * wide


@triton.jit
def _forward(flat, shift, shapes, act, real, d, depth, tall, LANES: tl.constexpr, WIDE: tl.constexpr):
    """From the item rows in `act` [lanes, tall] to the logits at the end of its rows."""
    lane = tl.arange(0, LANES)
    for layer in range(depth):
        inputs, outputs, height, weight, length, bias = _layer(shapes, layer, depth, d)
        for block in range(0, outputs, WIDE):
            unit = block + tl.arange(0, WIDE)
            there = unit < outputs
            first = tl.load(shift + unit, mask=there & (layer == 0), other=0.0)
            later = tl.load(flat + bias + unit, mask=there & (layer > 0), other=0.0)
            y = tl.zeros([LANES, WIDE], act.dtype.element_ty) + (first + later)[None, :]
            for i in range(inputs):
                x = tl.load(act + lane * tall + height + i)
                w = tl.load(flat + weight + unit * length + i, mask=there, other=0.0)
                y += x[:, None] * w[None, :]
            if layer < depth - 1:
                # Compared and not maximised, so that what is not a number stays so.
                y = tl.where(y < 0.0, 0.0, y)
            at = (lane * tall + height + inputs)[:, None] + unit[None, :]
            tl.store(act + at, tl.where(real[:, None], y, 0.0), mask=there[None, :])
        tl.debug_barrier()


@triton.jit
def _add_weight_gradient(gradient, shapes, layer, act, delta, columns, d, depth, tall, WIDE: tl.constexpr):
    inputs, outputs, height, weight, length, bias = _layer(shapes, layer, depth, d)
    for block in range(0, outputs, WIDE):
        out = block + tl.arange(0, WIDE)
        leaves = out < outputs
        slope = tl.zeros([WIDE], act.dtype.element_ty)
        for s in range(columns):
            slope += tl.load(delta + s * tall + height + inputs + out, mask=leaves, other=0.0)
        tl.store(gradient + bias + out, tl.load(gradient + bias + out, mask=leaves, other=0.0) + slope, mask=leaves)
        for part in range(0, inputs, WIDE):
            unit = part + tl.arange(0, WIDE)
            enters = unit < inputs
            change = tl.zeros([WIDE, WIDE], act.dtype.element_ty)
            for s in range(columns):
                dy = tl.load(delta + s * tall + height + inputs + out, mask=leaves, other=0.0)
                x = tl.load(act + s * tall + height + unit, mask=enters, other=0.0)
                change += dy[:, None] * x[None, :]
            at, there = weight + out[:, None] * length + unit[None, :], leaves[:, None] & enters[None, :]
            tl.store(gradient + at, tl.load(gradient + at, mask=there, other=0.0) + change, mask=there)


@triton.jit
def _multiply_back(flat, shapes, layer, act, delta, d, depth, tall, LANES: tl.constexpr, WIDE: tl.constexpr):
    lane = tl.arange(0, LANES)
    inputs, outputs, height, weight, length, _ = _layer(shapes, layer, depth, d)
    for block in range(0, inputs, WIDE):
        unit = block + tl.arange(0, WIDE)
        enters = unit < inputs
        dx = tl.zeros([LANES, WIDE], act.dtype.element_ty)
        for o in range(outputs):
            dy = tl.load(delta + lane * tall + height + inputs + o)
            w = tl.load(flat + weight + o * length + unit, mask=enters, other=0.0)
            dx += dy[:, None] * w[None, :]
        at = (lane * tall + height)[:, None] + unit[None, :]
        # rows themselves, which enter the first layer, are not rectified
        off = (layer > 0) & (tl.load(act + at, mask=enters[None, :], other=0.0) <= 0.0)
        tl.store(delta + at, tl.where(off, 0.0, dx), mask=enters[None, :])


@triton.jit
def _backward(
    flat,
    gradient,
    shapes,
    act,
    delta,
    columns,
    d,
    depth,
    tall,
    HEAD: tl.constexpr,
    TABLE: tl.constexpr,
    LANES: tl.constexpr,
    WIDE: tl.constexpr,
):
    """From dloss/dlogit at the end of the rows of `delta` to that of the item rows, where the table moves.

    Where the head moves, the gradients of the weights are added to.
    """
    for up in range(depth):
        layer = depth - 1 - up
        if HEAD:
            _add_weight_gradient(gradient, shapes, layer, act, delta, columns, d, depth, tall, WIDE)
        if (layer > 0) | TABLE:
            _multiply_back(flat, shapes, layer, act, delta, d, depth, tall, LANES, WIDE)
        tl.debug_barrier()


@triton.jit
def _add_row_gradients(
    row_gradient, row, real, rows_of, delta, columns, tall, d, LANES: tl.constexpr, FACTORS: tl.constexpr
):
    """Add the gradients of a tile's samples to those of their rows: the first sample of a row adds those of all."""
    lane, factor = tl.arange(0, LANES), tl.arange(0, FACTORS)
    total = tl.zeros([LANES, FACTORS], delta.dtype.element_ty)
    earlier = tl.zeros([LANES], tl.int32)
    for s in range(columns):
        same = row == tl.load(rows_of + s)
        dx = tl.load(delta + s * tall + factor, mask=factor < d, other=0.0)
        total += tl.where(same[:, None], dx[None, :], 0.0)
        earlier += (same & (lane > s)).to(tl.int32)
    at, there = entries(row, real & (earlier == 0), d, FACTORS)
    tl.store(row_gradient + at, tl.load(row_gradient + at, mask=there, other=0.0) + total, mask=there)
    tl.debug_barrier()


@triton.jit
def _user_half(flat, shapes, p, shift, d, depth, FACTORS: tl.constexpr, WIDE: tl.constexpr):
    """What the first layer adds to every sample: weight p + bias."""
    factor = tl.arange(0, FACTORS)
    _, outputs, _, _, length, bias = _layer(shapes, tl.full((), 0, tl.int32), depth, d)
    for block in range(0, outputs, WIDE):
        unit = block + tl.arange(0, WIDE)
        inside = (unit < outputs)[:, None] & (factor < d)[None, :]
        half = tl.load(flat + unit[:, None] * length + factor[None, :], mask=inside, other=0.0)
        known = tl.load(flat + bias + unit, mask=unit < outputs, other=0.0)
        tl.store(shift + unit, tl.sum(half * p[None, :], 1) + known, mask=unit < outputs)
    tl.debug_barrier()


@triton.jit
def _user_gradients(flat, gradient, shapes, p, d, depth, FACTORS: tl.constexpr, WIDE: tl.constexpr):
    """Of p, returned, and of the user's half of the first layer, both from the gradient of its bias."""
    factor = tl.arange(0, FACTORS)
    _, outputs, _, _, length, bias = _layer(shapes, tl.full((), 0, tl.int32), depth, d)
    slope = tl.zeros_like(p)
    for block in range(0, outputs, WIDE):
        unit = block + tl.arange(0, WIDE)
        at, inside = unit[:, None] * length + factor[None, :], (unit < outputs)[:, None] & (factor < d)[None, :]
        known = tl.load(gradient + bias + unit, mask=unit < outputs, other=0.0)
        slope += tl.sum(tl.load(flat + at, mask=inside, other=0.0) * known[:, None], 0)
        tl.store(gradient + at, known[:, None] * p[None, :], mask=inside)
    tl.debug_barrier()
    return slope


@triton.jit
def _move(value, gradient, first, second, size, rate, step, floor, decay, ADAM: tl.constexpr, WIDTH: tl.constexpr):
    """One step of a run of numbers, whose gradient is then forgotten."""
    for t in range(0, size, WIDTH):
        at = t + tl.arange(0, WIDTH)
        there = at < size
        held = tl.load(value + at, mask=there, other=0.0)
        slope = tl.load(gradient + at, mask=there, other=0.0) + decay * held
        if ADAM:
            m, v = tl.load(first + at, mask=there, other=0.0), tl.load(second + at, mask=there, other=0.0)
            held, m, v = adam(held, slope, m, v, step, floor)
            tl.store(first + at, m, mask=there)
            tl.store(second + at, v, mask=there)
        else:
            held -= rate * slope
        # All have read before one writes, because several threads may hold the same number.
        tl.debug_barrier()
        tl.store(value + at, held, mask=there)
        tl.store(gradient + at, tl.zeros_like(slope), mask=there)
    tl.debug_barrier()


@triton.jit
def _pass(
    p,
    rows,
    row_gradient,
    flat,
    gradient,
    shapes,
    shift,
    act,
    delta,
    lane_rows,
    row,
    order,
    low,
    size,
    n_pos,
    slots,
    scale,
    d,
    depth,
    tall,
    PAIRS: tl.constexpr,
    HEAD: tl.constexpr,
    TABLE: tl.constexpr,
    LANES: tl.constexpr,
    FACTORS: tl.constexpr,
    WIDE: tl.constexpr,
):
    """Add the gradients of a batch with respect to what moves; returns that of p, and the summed loss."""
    real_type: tl.constexpr = rows.dtype.element_ty
    factor, lane = tl.arange(0, FACTORS), tl.arange(0, LANES)
    _user_half(flat, shapes, p, shift, d, depth, FACTORS, WIDE)
    total = tl.full((), 0.0, tl.float64)
    columns = 2 * size if PAIRS else size
    for t in range(0, columns, LANES):
        column = t + lane
        real = column < columns
        if PAIRS:
            sample = tl.load(order + low + column // 2, mask=real, other=0)
            held = tl.load(row + tl.where(column % 2 == 0, sample // slots, n_pos + sample), mask=real, other=-1)
        else:
            sample = tl.load(order + low + column, mask=real, other=0)
            held = tl.load(row + sample, mask=real, other=-1)
        tl.store(lane_rows + lane, held)
        at, there = entries(held, real, d, FACTORS)
        into = (lane * tall)[:, None] + factor[None, :]
        tl.store(act + into, tl.load(rows + at, mask=there, other=0.0), mask=(factor < d)[None, :])
        tl.debug_barrier()
        _forward(flat, shift, shapes, act, real, d, depth, tall, LANES, WIDE)
        logit = tl.load(act + lane * tall + tall - 1)
        if PAIRS:
            # The other half of a pair is in the neighbouring lane.
            beside = tl.load(act + (lane ^ 1) * tall + tall - 1)
            liked = lane % 2 == 0
            slope, loss = bpr(tl.where(liked, logit - beside, beside - logit))
            slope = tl.where(liked, -slope, slope)
            # Both lanes have the loss of their pair, which counts once.
            loss = tl.where(liked, loss, 0.0)
        else:
            slope, loss = bce(logit, sample < n_pos)
        total += tl.sum(tl.where(real, loss, 0.0), 0)
        tl.store(delta + lane * tall + tall - 1, tl.where(real, scale * slope, 0.0).to(real_type))
        tl.debug_barrier()
        here = tl.minimum(columns - t, LANES)
        _backward(flat, gradient, shapes, act, delta, here, d, depth, tall, HEAD, TABLE, LANES, WIDE)
        if TABLE:
            _add_row_gradients(row_gradient, held, real, lane_rows, delta, here, tall, d, LANES, FACTORS)
    gradient_of_p = tl.zeros_like(p)
    if HEAD:
        gradient_of_p += _user_gradients(flat, gradient, shapes, p, d, depth, FACTORS, WIDE)
    return gradient_of_p, total


@triton.jit(do_not_specialize=["high", "low"])
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
    rows,
    row_gradient,
    first,
    second,
    flats,
    gradients,
    firsts,
    seconds,
    order,
    shifts,
    acts,
    deltas,
    lane_rows,
    shapes,
    settings,
    losses,
    seen,
    high,
    low,
    n_items,
    slots,
    epochs,
    batch,
    d,
    weights,
    depth,
    tall,
    PAIRS: tl.constexpr,
    ADAM: tl.constexpr,
    MEAN: tl.constexpr,
    PHASES: tl.constexpr,
    SHARED: tl.constexpr,
    LEAVES: tl.constexpr,
    LANES: tl.constexpr,
    FACTORS: tl.constexpr,
    WIDE: tl.constexpr,
    WIDTH: tl.constexpr,
):
    """All epochs of one client; see `train_networks`."""
    real_type: tl.constexpr = rows.dtype.element_ty
    k, start, n_pos, begin, used, key = client_of(turn, clients, positive_ptr, row_ptr, high, low, slots)
    if n_pos == 0:
        return
    count = n_pos * slots if PAIRS else n_pos * (1 + slots)
    row += start
    order += start
    flat, gradient = flats + k * weights, gradients + k * weights
    flat_first, flat_second = firsts, seconds
    if ADAM:
        flat_first += k * weights
        flat_second += k * weights
        first += begin * d
        second += begin * d
    shift = shifts + k * tall
    act, delta, lane_rows = acts + k * LANES * tall, deltas + k * LANES * tall, lane_rows + k * LANES
    rate_vector, rate_row, rate_flat = tl.load(settings), tl.load(settings + 1), tl.load(settings + 2)
    early_exit, decay = tl.load(settings + 3), tl.load(settings + 4).to(real_type)
    if not SHARED:
        table += k * n_items * d
    copy_rows(table, rows, item, begin, used, d, False, LANES, FACTORS)
    factor = tl.arange(0, FACTORS)
    p = tl.load(vectors + k * d + factor, mask=factor < d, other=0.0)
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
            fix = tl.sqrt(1.0 - left_2)
            by, floor = fix / (1.0 - left_1), (1e-8 * fix).to(real_type)
            for phase in tl.static_range(PHASES):  # p and the network move in the first, the rows in the last
                slope, loss = _pass(
                    p,
                    rows,
                    row_gradient,
                    flat,
                    gradient,
                    shapes,
                    shift,
                    act,
                    delta,
                    lane_rows,
                    row,
                    order,
                    b,
                    size,
                    n_pos,
                    slots,
                    scale,
                    d,
                    depth,
                    tall,
                    PAIRS,
                    phase == 0,
                    phase == PHASES - 1,
                    LANES,
                    FACTORS,
                    WIDE,
                )
                if phase == 0:
                    total += loss
                    if ADAM:
                        p, m, v = adam(p, slope, m, v, (rate_vector * by).to(real_type), floor)
                    else:
                        p -= rate_vector.to(real_type) * slope
                    _move(
                        flat,
                        gradient,
                        flat_first,
                        flat_second,
                        weights,
                        rate_flat.to(real_type),
                        (rate_flat * by).to(real_type),
                        floor,
                        decay,
                        ADAM,
                        WIDTH,
                    )
                if phase == PHASES - 1:
                    _move(
                        rows + begin * d,
                        row_gradient + begin * d,
                        first,
                        second,
                        used * d,
                        rate_row.to(real_type),
                        (rate_row * by).to(real_type),
                        floor,
                        tl.full((), 0.0, real_type),
                        ADAM,
                        WIDTH,
                    )
        epoch += 1
        average, stop = last_epoch(total, average, count, epoch, stop, early_exit)
    tl.store(vectors + k * d + factor, p, mask=factor < d)
    if LEAVES:
        copy_rows(rows, home + k * n_items * d, item, begin, used, d, True, LANES, FACTORS)
    tl.store(losses + k, total)
    tl.store(seen + k, epoch.to(tl.int64) * count)


def train_networks(
    data: Data,
    n_items: int,
    slots: int,
    pairs: bool,
    keys: Keys,
    settings: NetworkSettings,
    net: Layers,
    user: Tensor,
    table: Tensor,
    flat: Tensor,
    shared: bool,
    own: Tensor,
    changed: Tensor,
    weight: Tensor,
    blocks: np.ndarray,
    parts: Tensor,
    loss: Tensor,
    seen: Tensor,
) -> None:
    """As `ncf.train_networks`, with tensors of the device; the first of `parts` becomes the sum of all clients."""
    drawn = draw(data, n_items, slots, keys, table.device)
    device, samples, d, (clients, weights) = table.device, len(drawn.row), table.shape[2], flat.shape
    depth, tall = len(net.widths) - 1, int(net.heights[-1])
    rows, row_gradient = table.new_empty(samples, d), table.new_zeros(samples, d)
    moments = table.new_zeros(2, samples if settings.adam else 0, d)
    flat_moments = table.new_zeros(2, clients if settings.adam else 0, weights)
    factors, wide = triton.next_power_of_2(d), triton.next_power_of_2(max(d, *(int(n) for n in net.widths[1:])))
    many = lanes(factors)
    shifts, acts, deltas = (table.new_empty(clients, n, tall) for n in (1, many, many))
    order, lane_rows = (torch.empty(n, dtype=torch.int32, device=device) for n in (samples, clients * many))
    if shared and len(own):
        own.copy_(table.expand_as(own))
    turn = drawn.turn
    by = constants(
        device, settings.rate_user, settings.rate_item, settings.rate_dense, settings.early_exit, settings.decay
    )
    # Whole numbers of this size are exact as doubles, so they can use the same cache of constants.
    shapes = constants(device, *net.widths.tolist(), *net.starts.tolist(), *net.heights.tolist()).long()
    _train[(clients,)](
        turn,
        drawn.clients,
        drawn.positive_ptr,
        drawn.row_ptr,
        drawn.row,
        drawn.item,
        table,
        own if shared else table,
        user,
        rows,
        row_gradient,
        *moments,
        flat,
        torch.zeros_like(flat),
        *flat_moments,
        order,
        shifts,
        acts,
        deltas,
        lane_rows,
        shapes,
        by,
        loss,
        seen,
        *halves(keys.order),
        n_items,
        slots,
        settings.epochs,
        settings.batch,
        d,
        weights,
        depth,
        tall,
        PAIRS=pairs,
        ADAM=settings.adam,
        MEAN=settings.mean,
        PHASES=settings.phases,
        SHARED=shared,
        LEAVES=not shared or len(own) > 0,
        LANES=many,
        FACTORS=factors,
        WIDE=min(wide, WIDEST),
        WIDTH=WIDTH,
        num_warps=WARPS,
        num_stages=1,
    )
    if shared:
        add_changes(drawn, rows, table, weight, parts[0])
        parts[1:] = 0.0
