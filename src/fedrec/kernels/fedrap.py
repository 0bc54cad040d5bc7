"""Compiled training of FedRAP's two tables, one client after another on every core.

All samples of a row share its logit and its regularisers, so that a batch is two numbers per row: how many samples it
has there, and how many of them are liked. Draws the same samples as `samples.py` and takes the same steps as
`fedrap.Additive`.
"""

from __future__ import annotations

import math

import numpy as np
from numba import njit, prange

from fedrec.kernels.mf import EXACT, FAST, draw_client, drawing_space, fold, order_samples, store_rows, take_rows


@njit(**EXACT)
def _count(batch, slot, n_pos, share, seen, liked):
    for j in range(len(batch)):
        row = slot[batch[j]]
        seen[row] += share
        liked[row] += share if batch[j] < n_pos else 0.0


@njit(**FAST)
def _move(own, shared, head, slope, pull, price, lasso, rate, decay):
    """One step of a row's two halves, by the slope of its logit and by its regularisers."""
    one = own.dtype.type(1)
    for f in range(len(own)):
        d, c = own[f], shared[f]
        # At 0 the slope of an absolute value counts as 0, as in torch.
        sign = one if c > 0 else (-one if c < 0 else own.dtype.type(0))
        # Before either half moves, because both go by the same distance.
        away = pull * (d - c)
        own[f] = d - rate * (slope * head[f] - away + decay * d)
        shared[f] = c - rate * (slope * head[f] + away + price * (sign if lasso else c) + decay * c)


@njit(**FAST)
def _penalise(own, shared, head, lasso):
    """The logit without its bias, the squared distance of the two halves, and the penalty of the shared one."""
    zero = own.dtype.type(0)
    logit, apart, price = zero, zero, zero
    for f in range(len(own)):
        d, c = own[f], shared[f]
        logit += head[f] * (d + c)
        apart += (d - c) * (d - c)
        price += abs(c) if lasso else c * c
    return logit, apart, price


@njit(**FAST)
def _step(own, shared, head, bias, seen, liked, settings, pace, gradient):
    """One batch of one client on all its rows, whose counts are then forgotten; returns the loss before it."""
    apart, sparse, lasso = settings.apart, settings.sparse, settings.lasso
    real, width = own.dtype.type, own.shape[1]
    rate, loss, slopes = real(settings.rate_row * pace), 0.0, 0.0
    gradient[:] = 0.0
    for k in range(len(own)):
        logit, distance, price = _penalise(own[k], shared[k], head, lasso)
        x = logit + bias[0]
        # Of -|x|, so that neither the slope nor the loss overflows.
        e = math.exp(-abs(x))
        slope = seen[k] * (1.0 if x >= 0 else e) / (1.0 + e) - liked[k]
        softplus = max(x, 0.0) + math.log(1.0 + e)
        loss += seen[k] * (softplus - apart * distance / width + sparse * price / width) - liked[k] * x
        slopes += slope
        by = real(slope)
        for f in range(width):
            gradient[f] += by * (own[k, f] + shared[k, f])
        pull, cost = real(seen[k] * 2.0 * apart / width), real(seen[k] * sparse / width * (1.0 if lasso else 2.0))
        _move(own[k], shared[k], head, by, pull, cost, lasso, rate, real(settings.decay))
        seen[k] = liked[k] = 0.0
    step, decay = real(settings.rate_head * pace), real(settings.decay_head)
    for f in range(width):
        head[f] -= step * (gradient[f] + decay * head[f])
    bias[0] -= step * (real(slopes) + decay * bias[0])
    return loss


@njit(**FAST)
def _train(own, shared, head, bias, slot, n_pos, order_key, settings, scratch):
    """All epochs of one client; returns the summed loss, the epochs it is from, and what is left of untouched rows."""
    batch, epochs, mean = settings.batch, settings.epochs, settings.mean
    order, seen, liked, gradient = scratch
    for k in range(len(own)):
        seen[k] = liked[k] = 0.0
    loss, average, pace, left = 0.0, 0.0, 1.0, 1.0
    for epoch in range(epochs):
        order_samples(order_key, epoch, len(slot), batch, order)
        for low in range(0, len(slot), batch):
            now = order[low : min(low + batch, len(slot))]
            _count(now, slot, n_pos, 1.0 / len(now) if mean else 1.0, seen, liked)
            found = _step(own, shared, head, bias, seen, liked, settings, pace, gradient)
            # A mean counts by its samples, or a short last batch would weigh as much as a full one.
            loss += found * len(now) if mean else found
            # Rows without samples all decay alike, so one factor stands for a pass over the table.
            left *= 1.0 - settings.rate_row * settings.decay * pace
            pace *= settings.slower
        before, average = average, loss / (len(slot) * (epoch + 1))
        if epoch > 0 and abs(average - before) / abs(before + 1e-5) < settings.early_exit:
            return loss, epoch + 1, left
    return loss, epochs, left


@njit(**FAST)
def _add_changes(part, rows, base, ids, left):
    """Beyond what happens to rows without samples, of which `left` remains."""
    for k in range(len(ids)):
        for f in range(part.shape[1]):
            part[ids[k], f] += rows[k, f] - left * base[ids[k], f]


@njit(**FAST)
def _shrink(table, left):
    for k in range(len(table)):
        for f in range(table.shape[1]):
            table[k, f] *= left


@njit(**FAST)
def _train_block(low, high, part, data, n_items, slots, keys, settings, common, own, heads, biases, left, loss, count):
    """Clients low:high one after another; see `train_additive`."""
    clients, places, user_ptr = data.clients, data.places, data.user_ptr
    dtype, width = own.dtype, own.shape[2]
    slot, order, slot_of, ids = drawing_space(data, low, high, slots, n_items)
    rows = len(ids) - 1
    part[:] = 0.0
    held, shared = np.empty((rows, width), dtype), np.empty((rows, width), dtype)
    scratch = (order, np.empty(rows), np.empty(rows), np.empty(width, dtype))
    for k in range(low, high):
        begin, end = user_ptr[places[k]], user_ptr[places[k] + 1]
        n_pos = end - begin
        if n_pos == 0:
            continue
        mine, used = draw_client(data, k, keys.negatives, slots, n_items, slot, slot_of, ids)
        which = ids[:used]
        take_rows(held, own[k], which)
        take_rows(shared, common, which)
        loss[k], epochs, left[k] = _train(
            held[:used],
            shared[:used],
            heads[k],
            biases[k],
            mine,
            n_pos,
            fold(keys.order, np.uint64(clients[k])),
            settings,
            scratch,
        )
        count[k] = epochs * len(mine)
        # Without decay, a pass over the whole table would change nothing.
        if left[k] != 1.0:
            _shrink(own[k], dtype.type(left[k]))
        # After the table has shrunk, because these rows have decayed in their own steps.
        store_rows(held, own[k], which)
        _add_changes(part, shared, common, which, dtype.type(left[k]))


@njit(parallel=True, cache=True, **FAST)
def train_additive(data, n_items, slots, keys, settings, common, own, heads, biases, blocks, parts, left, loss, count):
    """Train clients of one user each by `arguments.AdditiveSettings`.

    `own` [clients, items, d], `heads` [clients, d], `biases` [clients, 1] are updated in place.
    `parts` [blocks, items, d] becomes each block's sum of shared tables, less `left` of `common` for every client:
    weight decay leaves that much of a row without samples. `loss` and `count` are each client's.
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
            common,
            own,
            heads,
            biases,
            left,
            loss,
            count,
        )
