"""Compiled training of a linear scorer of item rows, w.q + b, one client after another on every core.

As `mf.py`, with the head (w, b) instead of a user vector. Where the head moves first, there are two passes over every
batch. Draws the same samples as `samples.py` and takes the same steps as `training/local_training.py`.
"""

from __future__ import annotations

import numpy as np
from numba import njit, prange

from fedrec.kernels.bounds import LEAST_LOG, LEAST_SLOPE
from fedrec.kernels.mf import (
    EXACT,
    FAST,
    bce_slopes,
    draw_client,
    drawing_space,
    fold,
    leave_rows,
    order_samples,
    row_space,
    take_rows,
)


@njit(**EXACT)
def write_saturated_slopes(batch, n_pos, logits):
    """As `bce_slopes`, where logits pass a sigmoid in single precision: `losses.bce_slope` with saturate=released."""
    one, least = np.float32(1.0), np.float32(LEAST_SLOPE)
    loss = 0.0
    for t in range(len(batch)):
        liked = batch[t] < n_pos
        p = one / (one + np.exp(-np.float32(logits[t])))
        flat = p * (one - p)
        logits[t] = (p - np.float32(liked)) * (flat / (least if flat < least else flat))
        # log1p, because 1 - p would round a small p away.
        loss -= max(np.log(p) if liked else np.log1p(-p), LEAST_LOG)
    return loss


@njit(**FAST)
def slopes(head, bias, rows, slot, batch, n_pos, saturate, touched, slope):
    """The rows of a batch's samples into `touched`, dloss/dlogit into `slope`; returns the summed loss."""
    for t in range(len(batch)):
        touched[t] = slot[batch[t]]
    for t in range(len(batch)):
        # Read once: for all the compiler knows, writing a logit might change it.
        k, total = touched[t], bias
        for f in range(len(head)):
            total += head[f] * rows[k, f]
        slope[t] = total
    return write_saturated_slopes(batch, n_pos, slope) if saturate else bce_slopes(batch, n_pos, slope)


@njit(**FAST)
def move(head, bias, rows, touched, slope, gradient, rates, decay, moves_head, moves_rows):
    """Move the head, the touched rows or both against their gradients."""
    # Before the rows move, because the gradient of the head is by the rows as they were.
    if moves_head:
        gradient[:] = 0.0
        _add_rows(gradient, rows, touched, slope)
    # Before the head moves, because the rows go by the head as it was.
    if moves_rows:
        _move_rows(rows, touched, slope, head, rates[1])
    if moves_head:
        step, shrink = head.dtype.type(rates[0]), head.dtype.type(decay)
        for f in range(len(head)):
            head[f] -= step * (gradient[f] + shrink * head[f])
        bias[0] -= step * (slope.sum() + shrink * bias[0])


@njit(**FAST)
def _add_rows(gradient, rows, touched, slope):
    """Add slope * row of every sample, four at a time: the sums are read and written once for them."""
    fours = len(touched) // 4 * 4
    for t in range(0, fours, 4):
        i, j, k, m = touched[t], touched[t + 1], touched[t + 2], touched[t + 3]
        a, b, c, d = slope[t], slope[t + 1], slope[t + 2], slope[t + 3]
        for f in range(len(gradient)):
            gradient[f] += (a * rows[i, f] + b * rows[j, f]) + (c * rows[k, f] + d * rows[m, f])
    for t in range(fours, len(touched)):
        k, a = touched[t], slope[t]
        for f in range(len(gradient)):
            gradient[f] += a * rows[k, f]


@njit(**FAST)
def _move_rows(rows, touched, slope, head, rate):
    """A row that was drawn twice moves twice: the head is the same both times."""
    for t in range(len(touched)):
        k, step = touched[t], head.dtype.type(rate * slope[t])
        for f in range(len(head)):
            rows[k, f] -= step * head[f]


@njit(**FAST)
def _train(head, bias, rows, slot, n_pos, order_key, settings, scratch):
    """All epochs of one client; returns the summed loss and how many epochs it is from."""
    batch, decay, in_turn, saturate = settings.batch, settings.decay, settings.in_turn, settings.saturate
    order, touched, slope, gradient = scratch
    loss, average = 0.0, 0.0
    for epoch in range(settings.epochs):
        order_samples(order_key, epoch, len(slot), batch, order)
        for low in range(0, len(slot), batch):
            now = order[low : min(low + batch, len(slot))]
            scale = 1.0 / len(now) if settings.mean else 1.0
            # Decay is divided by the scale where it is used, because these rates have it in them and decay is no mean.
            rates = (settings.rate_head * scale, settings.rate_row * scale)
            hit, by = touched[: len(now)], slope[: len(now)]
            loss += slopes(head, bias[0], rows, slot, now, n_pos, saturate, hit, by)
            if in_turn:
                move(head, bias, rows, hit, by, gradient, rates, decay / scale, True, False)
                slopes(head, bias[0], rows, slot, now, n_pos, saturate, hit, by)
            move(head, bias, rows, hit, by, gradient, rates, decay / scale, not in_turn, True)
        before, average = average, loss / (len(slot) * (epoch + 1))
        if epoch > 0 and abs(average - before) / abs(before + 1e-5) < settings.early_exit:
            return loss, epoch + 1
    return loss, settings.epochs


@njit(**FAST)
def _train_block(
    low,
    high,
    part,
    data,
    n_items,
    slots,
    keys,
    settings,
    heads,
    biases,
    table,
    shared,
    own,
    changed,
    weight,
    loss,
    seen,
):
    """Clients low:high one after another; see `train_linear`."""
    clients, places, user_ptr = data.clients, data.places, data.user_ptr
    dtype, width = table.dtype, table.shape[2]
    slot, order, slot_of, ids = drawing_space(data, low, high, slots, n_items)
    held_most, size = len(ids) - 1, min(len(slot), settings.batch)
    part[:] = 0.0
    held, space = row_space(table, own, changed, held_most)
    scratch = (order, np.empty(size, dtype=np.uint32), np.empty(size, dtype), np.empty(width, dtype))
    for k in range(low, high):
        n_pos = user_ptr[places[k] + 1] - user_ptr[places[k]]
        mine, used = draw_client(data, k, keys.negatives, slots, n_items, slot, slot_of, ids)
        rows, which = held[:used], ids[:used]
        take_rows(rows, table[0 if shared else k], which)
        if n_pos > 0:
            loss[k], epochs = _train(
                heads[k], biases[k], rows, mine, n_pos, fold(keys.order, np.uint64(clients[k])), settings, scratch
            )
            seen[k] = epochs * len(mine)
        leave_rows(rows, which, table, k, shared, own, changed, space, part, weight)


@njit(parallel=True, cache=True, **FAST)
def train_linear(
    data, n_items, slots, keys, settings, heads, biases, table, shared, own, changed, weight, blocks, parts, loss, seen
):
    """Train clients of one user each. `heads` [clients, d] and `biases` [clients, 1] are updated in place.

    Otherwise as `ncf.train_networks`, by `arguments.HeadSettings`.
    """
    for b in prange(len(blocks) - 1):
        _train_block(
            blocks[b],
            blocks[b + 1],
            parts[b],
            data,
            n_items,
            slots,
            keys,
            settings,
            heads,
            biases,
            table,
            shared,
            own,
            changed,
            weight,
            loss,
            seen,
        )
