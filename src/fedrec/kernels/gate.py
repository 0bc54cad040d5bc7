"""Compiled guidance of FedRKG with the inner product: gates are trained and committed one client after another.

Tables and user vectors are fixed while a gate is trained, so that a row's two inner products with the user vector
are formed once. Draws the same samples as `samples.py` and takes the same steps as `methods/personal/gate.py`.
"""

from __future__ import annotations

import math

import numpy as np
from numba import njit, prange

from fedrec.kernels.mf import FAST, draw_client, drawing_space, fold, order_samples, take_rows


@njit(**FAST)
def _dot(left, right):
    total = left.dtype.type(0)
    for f in range(len(left)):
        total += left[f] * right[f]
    return total


@njit(**FAST)
def _sigmoid(x):
    # Of -|x|, so that nothing overflows on either side.
    e = math.exp(-abs(x))
    return (1.0 if x >= 0 else e) / (1.0 + e)


@njit(**FAST)
def _fold_halves(weight, own, common):
    """W . [P; P_g; P - P_g] as one product with P and one with P_g."""
    d = len(own)
    for f in range(d):
        own[f] = weight[f] + weight[2 * d + f]
        common[f] = weight[d + f] - weight[2 * d + f]


@njit(**FAST)
def _step(rows, towards, scores, batch, slot, n_pos, weight, bias, rate, scale, keep, scratch):
    """One batch of one client: the slope of every row's logit first, then the gate moves against their sums.

    Returns the summed loss before the step.
    """
    touched, coef, halves, gradient = scratch
    loss, product = 0.0, 1.0  # product of 1 + exp(-|x|): one logarithm serves many samples
    _fold_halves(weight, halves[0], halves[1])
    for t in range(len(batch)):
        k = slot[batch[t]]
        touched[t] = k
        gate = _sigmoid(_dot(halves[0], rows[k]) + _dot(halves[1], towards[k]) + bias[0])
        x = keep * scores[0, k] + 2.0 * (1.0 - keep) * gate * scores[1, k]
        label, e = 1.0 if batch[t] < n_pos else 0.0, math.exp(-abs(x))
        error = (1.0 if x >= 0 else e) / (1.0 + e) - label
        loss += max(x, 0.0) - x * label
        product *= 1.0 + e
        # A batch may have any size, so the product is taken out before it can overflow.
        if product > 1e300:
            loss += math.log(product)
            product = 1.0
        coef[k] += scale * error * 2.0 * (1.0 - keep) * gate * (1.0 - gate) * scores[1, k]
    gradient[:] = 0.0
    total, d = 0.0, rows.shape[1]
    for t in range(len(batch)):
        k = touched[t]
        c = rows.dtype.type(coef[k])
        total += coef[k]
        # A row that was drawn twice counts once: its second visit finds nothing.
        coef[k] = 0.0
        for f in range(d):
            gradient[0, f] += c * rows[k, f]
            gradient[1, f] += c * towards[k, f]
    by = rows.dtype.type(rate)
    for f in range(d):
        mine, theirs = gradient[0, f], gradient[1, f]
        weight[f] -= by * mine
        weight[d + f] -= by * theirs
        # The third part acts on the difference of the two rows.
        weight[2 * d + f] -= by * (mine - theirs)
    bias[0] -= by * rows.dtype.type(total)
    return loss + math.log(product)


@njit(**FAST)
def _commit(table, common, weight, bias, keep, halves):
    """P <- keep P + 2 (1 - keep) g P_g, for all items."""
    real = table.dtype.type
    _fold_halves(weight, halves[0], halves[1])
    for i in range(len(table)):
        gate = _sigmoid(_dot(halves[0], table[i]) + _dot(halves[1], common[i]) + bias[0])
        share, old = real(2.0 * (1.0 - keep) * gate), real(keep)
        for f in range(table.shape[1]):
            table[i, f] = old * table[i, f] + share * common[i, f]


@njit(**FAST)
def _guide_block(low, high, data, n_items, slots, keys, settings, user, tables, common, gates, biases, loss, seen):
    clients, places, user_ptr = data.clients, data.places, data.user_ptr
    batch, epochs, keep = settings.batch, settings.epochs, settings.keep
    dtype, width = tables.dtype, tables.shape[2]
    slot, order, slot_of, ids = drawing_space(data, low, high, slots, n_items)
    samples, held = len(slot), len(ids) - 1
    rows, towards, scores = np.empty((held, width), dtype), np.empty((held, width), dtype), np.empty((2, held), dtype)
    halves = np.empty((2, width), dtype)
    scratch = (np.empty(min(samples, batch), dtype=np.uint32), np.zeros(held), halves, np.empty((2, width), dtype))
    for k in range(low, high):
        begin, end = user_ptr[places[k]], user_ptr[places[k] + 1]
        if epochs > 0 and end > begin:
            mine, used = draw_client(data, k, keys.negatives, slots, n_items, slot, slot_of, ids)
            take_rows(rows, tables[k], ids[:used])
            take_rows(towards, common, ids[:used])
            for r in range(used):
                scores[0, r], scores[1, r] = _dot(user[k], rows[r]), _dot(user[k], towards[r])
            for epoch in range(epochs):
                order_samples(fold(keys.order, np.uint64(clients[k])), epoch, len(mine), batch, order)
                for first in range(0, len(mine), batch):
                    now = order[first : min(first + batch, len(mine))]
                    loss[k] += _step(
                        rows,
                        towards,
                        scores,
                        now,
                        mine,
                        end - begin,
                        gates[k],
                        biases[k],
                        settings.rate,
                        1.0 / len(now) if settings.mean else 1.0,
                        keep,
                        scratch,
                    )
            seen[k] = epochs * len(mine)
        _commit(tables[k], common, gates[k], biases[k], keep, halves)


@njit(parallel=True, cache=True, **FAST)
def guide_clients(data, n_items, slots, keys, settings, user, tables, common, gates, biases, blocks, loss, seen):
    """Clients of one user each, by `arguments.GateSettings`.

    `gates` [clients, 3 d] and `biases` [clients, 1] are trained, then `tables` guided.
    Clients blocks[b]:blocks[b + 1] form block b. `loss` and `seen` are those of training the gates.
    """
    for b in prange(len(blocks) - 1):
        _guide_block(
            blocks[b],
            blocks[b + 1],
            data,
            n_items,
            slots,
            keys,
            settings,
            user,
            tables,
            common,
            gates,
            biases,
            loss,
            seen,
        )
