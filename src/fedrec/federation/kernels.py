"""Compiled training of matrix factorisation, one client after another on every core.

With p fixed during a step, all samples of a row share one direction: the gradient of row i is (a scalar) * p. A
client's rows live in a scratch table that stays in cache; only the sum over clients, or the client's own table,
is written. Draws the same samples as `samples.py` and takes the same steps as `training.py`.
"""

from __future__ import annotations

import math

import numpy as np
from numba import njit, prange

from fedrec.random import GOLDEN, MUL_1, MUL_2, PERMUTE_ROUNDS

_GOLDEN, _MUL_1, _MUL_2 = np.uint64(GOLDEN), np.uint64(MUL_1), np.uint64(MUL_2)
_30, _27, _31, _32, _1 = np.uint64(30), np.uint64(27), np.uint64(31), np.uint64(32), np.uint64(1)
FAST = {"reassoc", "contract", "nsz", "arcp"}  # not nnan or ninf: a diverged run must show


@njit(inline="always")
def fold(key, value):
    z = key + _GOLDEN * (value + _1)
    z = (z ^ (z >> _30)) * _MUL_1
    z = (z ^ (z >> _27)) * _MUL_2
    return z ^ (z >> _31)


@njit(inline="always")
def below(draw, bound):
    return np.int64(((draw >> _32) * np.uint64(bound)) >> _32)


@njit
def draw_negatives(key, slots, n_items, positives, gap, out):
    """The negatives of one user into out[: positives * slots]; `gap` as in `clients.Pool`."""
    pool = n_items - len(gap)
    replace = pool < slots
    taken = np.empty(slots, dtype=np.int64)
    for p in range(positives):
        for s in range(slots):
            rank = below(fold(key, np.uint64(p * slots + s)), pool if replace else pool - s)
            if not replace:
                at = 0
                while at < s and taken[at] <= rank:  # `taken` is ascending
                    rank += 1
                    at += 1
                for t in range(s, at, -1):
                    taken[t] = taken[t - 1]
                taken[at] = rank
            lo, hi = 0, len(gap)
            while lo < hi:
                mid = (lo + hi) >> 1
                if gap[mid] <= rank:
                    lo = mid + 1
                else:
                    hi = mid
            out[p * slots + s] = rank + lo


@njit
def permutation(key, size, out):
    """The same permutation as `random.permute`."""
    bits = 1
    while (1 << bits) < size:
        bits += 1
    mask, half = np.uint64((1 << bits) - 1), np.uint64((bits + 1) >> 1)
    multiply = np.empty(PERMUTE_ROUNDS, dtype=np.uint64)
    add = np.empty(PERMUTE_ROUNDS, dtype=np.uint64)
    for r in range(PERMUTE_ROUNDS):
        multiply[r] = fold(key, np.uint64(2 * r)) | _1
        add[r] = fold(key, np.uint64(2 * r + 1))
    for j in range(size):
        x = np.uint64(j)
        while True:
            for r in range(PERMUTE_ROUNDS):
                x = (x * multiply[r] + add[r]) & mask
                x = x ^ (x >> half)
            if x < np.uint64(size):
                break
        out[j] = x


@njit(fastmath=FAST, inline="always")
def _dot(a, b):
    total = a[0] * b[0]
    for f in range(1, len(a)):
        total += a[f] * b[f]
    return total


@njit(fastmath=FAST, inline="always")
def _axpy(scale, x, y):
    a = y.dtype.type(scale)  # a float64 factor would halve the vector width of float32 tables
    for f in range(len(y)):
        y[f] += a * x[f]


@njit(fastmath=FAST, inline="always")
def _adam(value, grad_scale, grad, first, second, rate, fix_1, fix_2):
    """One Adam step on a vector whose gradient is grad_scale * grad."""
    for f in range(len(value)):
        g = grad_scale * grad[f]
        first[f] = 0.9 * first[f] + 0.1 * g
        second[f] = 0.999 * second[f] + 0.001 * g * g
        value[f] -= rate * (first[f] / fix_1) / (math.sqrt(second[f] / fix_2) + 1e-8)


@njit(fastmath=FAST, inline="always")
def _bce_step(p, rows, slot, order, lo, hi, n_pos, coef, grad):
    """Coefficients of the touched rows and the gradient of p for one pointwise batch; returns the summed loss."""
    loss = 0.0
    for t in range(lo, hi):
        sample = order[t]
        q = rows[slot[sample]]
        x = _dot(p, q)
        e = math.exp(-abs(x))
        probability = 1.0 / (1.0 + e) if x >= 0 else e / (1.0 + e)
        label = 1.0 if sample < n_pos else 0.0
        loss += max(x, 0.0) - x * label + math.log1p(e)
        c = probability - label
        coef[slot[sample]] += c
        _axpy(c, q, grad)
    return loss


@njit(fastmath=FAST, inline="always")
def _bpr_step(p, rows, slot, order, lo, hi, n_pos, slots, coef, grad):
    """The same for pairs: x = p (q_i - q_j), loss = log(1 + exp(-x))."""
    loss = 0.0
    for t in range(lo, hi):
        pair = order[t]
        i, j = slot[pair // slots], slot[n_pos + pair]
        x = _dot(p, rows[i]) - _dot(p, rows[j])
        e = math.exp(-abs(x))
        c = -(e / (1.0 + e) if x >= 0 else 1.0 / (1.0 + e))
        loss += max(-x, 0.0) + math.log1p(e)
        coef[i] += c
        coef[j] -= c
        _axpy(c, rows[i], grad)
        _axpy(-c, rows[j], grad)
    return loss


@njit(fastmath=FAST)
def _train(p, rows, used, slot, n_pos, slots, pairs, order_key, order, hyper, coef, grad, moments):
    """All epochs of one client on its scratch rows. Returns the summed loss."""
    rate_user, rate_item, batch, epochs, adam, mean = hyper
    count = n_pos * slots if pairs else n_pos * (1 + slots)
    first, second, first_p, second_p = moments
    if adam:
        first[:used] = 0.0
        second[:used] = 0.0
        first_p[:] = 0.0
        second_p[:] = 0.0
    loss, step = 0.0, 0
    for epoch in range(epochs):
        permutation(fold(order_key, np.uint64(epoch)), count, order)
        for lo in range(0, count, batch):
            hi = min(lo + batch, count)
            grad[:] = 0.0
            coef[:used] = 0.0
            if pairs:
                loss += _bpr_step(p, rows, slot, order, lo, hi, n_pos, slots, coef, grad)
            else:
                loss += _bce_step(p, rows, slot, order, lo, hi, n_pos, coef, grad)
            scale = 1.0 / (hi - lo) if mean else 1.0
            step += 1
            if adam:
                fix_1, fix_2 = 1.0 - 0.9**step, 1.0 - 0.999**step
                for k in range(used):
                    _adam(rows[k], coef[k] * scale, p, first[k], second[k], rate_item, fix_1, fix_2)
                _adam(p, scale, grad, first_p, second_p, rate_user, fix_1, fix_2)
            else:
                for k in range(used):
                    if coef[k] != 0.0:
                        _axpy(-rate_item * scale * coef[k], p, rows[k])
                _axpy(-rate_user * scale, grad, p)
    return loss


@njit(parallel=True, fastmath=FAST, cache=True)
def train_clients(clients, places, users, user_ptr, items, pool_ptr, gap, n_items, slots, pairs, keys, hyper,
                  user, table, shared, weight, blocks, total, loss):  # fmt: skip
    """Train clients of one user each. `user` [clients, d] is updated in place.

    shared: `table` [1, items, d] is everybody's start, and total[b] gathers weight * (own table - start) of block b.
    otherwise: `table` [clients, items, d] is updated in place. Clients blocks[b]:blocks[b + 1] form block b: a fixed
    division, so that the order of summation does not depend on the number of cores.
    """
    d = user.shape[1]
    for b in prange(len(blocks) - 1):
        most = 0
        for k in range(blocks[b], blocks[b + 1]):
            most = max(most, user_ptr[places[k] + 1] - user_ptr[places[k]])
        samples = most * (1 + slots)
        used_most = min(samples, n_items)
        rows = np.empty((used_most, d), dtype=table.dtype)
        coef = np.empty(used_most, dtype=table.dtype)
        ids = np.empty(used_most, dtype=np.int64)
        grad = np.empty(d, dtype=table.dtype)
        size = used_most if hyper[4] else 1
        moments = (np.empty((size, d), dtype=table.dtype), np.empty((size, d), dtype=table.dtype),
                   np.empty(d, dtype=table.dtype), np.empty(d, dtype=table.dtype))  # fmt: skip
        slot = np.empty(samples, dtype=np.int64)
        order = np.empty(samples, dtype=np.int64)
        slot_of = np.full(n_items, -1, dtype=np.int64)
        for k in range(blocks[b], blocks[b + 1]):
            place = places[k]
            lo, n_pos = user_ptr[place], user_ptr[place + 1] - user_ptr[place]
            if n_pos == 0:
                continue
            start = table[0] if shared else table[k]
            slot[:n_pos] = items[lo : lo + n_pos]
            draw_negatives(fold(keys[0], np.uint64(users[place])), slots, n_items, n_pos,
                           gap[pool_ptr[place] : pool_ptr[place + 1]], slot[n_pos:])  # fmt: skip
            used = 0
            for j in range(n_pos * (1 + slots)):
                item = slot[j]
                if slot_of[item] < 0:
                    slot_of[item] = used
                    ids[used] = item
                    rows[used] = start[item]
                    used += 1
                slot[j] = slot_of[item]
            loss[k] = _train(user[k], rows, used, slot, n_pos, slots, pairs, fold(keys[1], np.uint64(clients[k])),
                             order, hyper, coef, grad, moments)  # fmt: skip
            for r in range(used):
                item = ids[r]
                slot_of[item] = -1
                if shared:
                    for f in range(d):
                        total[b, item, f] += weight[k] * (rows[r, f] - start[item, f])
                else:
                    start[item] = rows[r]
