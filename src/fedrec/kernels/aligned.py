"""Compiled training of scorers whose item table is drawn to a common target, as in `training/aligned_training.py`.

Every step takes each row the same share of the way from where it is to the target. A row without samples is therefore
known from the number of steps alone; of any other row only its difference from that is held, and it shrinks by the same
factor with every step. Rows that a batch does not touch are not visited: what they missed is made up when they are.
Draws the same samples as `samples.py`.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import njit, prange

from fedrec.kernels.mf import FAST, draw_client, drawing_space, fold, order_samples
from fedrec.kernels.scorer import descend, round_up, row_of, scoring_space, store_weight, take_weight
from fedrec.kernels.vectors import LANES


class Touched(NamedTuple):
    """The rows that a client's samples touch."""

    ids: np.ndarray  # their items
    table: np.ndarray  # where all rows of all clients begin
    target: np.ndarray
    change: np.ndarray  # by how much each differs from a row without samples, ...
    stamp: np.ndarray  # ... after so many steps; -1: not at all so far


@njit(**FAST)
def _gather(space, touched, rows, left, steps):
    """The rows of a batch after so many steps; what fills up its last tile is zero."""
    d, real = rows.table.shape[1], rows.table.dtype.type
    gone = real(1.0 - left**steps)
    for t in range(len(touched)):
        r = touched[t]
        x, item, change, stamp = row_of(space.x, t, space.width, d), rows.ids[r], rows.change[r], rows.stamp[r]
        start, end = rows.table[item], rows.target[item]
        for f in range(d):
            x[f] = start[f] + gone * (end[f] - start[f])
        if stamp >= 0:
            by = real(left ** (steps - stamp))
            for f in range(d):
                x[f] += by * change[f]
    space.x[len(touched) * space.width : round_up(len(touched), LANES) * space.width] = 0.0


@njit(**FAST)
def _move_rows(space, touched, rows, left, steps, rate):
    """The differences of a batch's rows, after the next step: what is left of them, and their part of it."""
    d, real = rows.table.shape[1], rows.table.dtype.type
    for t in range(len(touched)):
        r = touched[t]
        change, slope, by = rows.change[r], row_of(space.slopes, t, space.width, d), real(rate) * space.e[t]
        if rows.stamp[r] < 0:
            for f in range(d):
                change[f] = -by * slope[f]
        else:
            # A second sample in the same batch finds the stamp of this step, so that the row shrinks only once.
            kept = real(left ** (steps + 1 - rows.stamp[r]))
            for f in range(d):
                change[f] = kept * change[f] - by * slope[f]
        rows.stamp[r] = steps + 1


@njit(**FAST)
def _train(space, mine, slot, n_pos, order_key, settings, order, touched, rows):
    """All epochs of one client; returns its steps, its summed loss and how many samples that is from."""
    left, batch = 1.0 - settings.pull, settings.batch
    steps, loss, seen = 0, 0.0, 0
    for epoch in range(settings.epochs):
        order_samples(order_key, epoch, len(slot), batch, order)
        for low in range(0, len(slot), batch):
            now = order[low : min(low + batch, len(slot))]
            if low > 0 and settings.drop and len(now) < batch:
                continue
            hit, size = touched[: len(now)], batch if low > 0 and settings.nominal else len(now)
            for t in range(len(now)):
                hit[t] = slot[now[t]]
            _gather(space, hit, rows, left, steps)
            loss += descend(space, mine, now, n_pos, size, settings)
            _move_rows(space, hit, rows, left, steps, settings.rate_item)
            steps += 1
            seen += len(now)
    return steps, loss, seen


@njit(**FAST)
def _add_changes(part, rows, left, steps):
    """What a client's rows have beyond those without samples, at the end."""
    real = part.dtype.type
    for r in range(len(rows.stamp)):
        if rows.stamp[r] >= 0:
            by, to, change = real(left ** (steps - rows.stamp[r])), part[rows.ids[r]], rows.change[r]
            for f in range(len(to)):
                to[f] += by * change[f]


@njit(**FAST)
def _train_block(
    lo, hi, part, data, slots, keys, settings, user, weight0, bias0, weight1, bias1, table, target, steps, loss, seen
):
    """Clients lo:hi one after another; see `train_aligned`."""
    n_items, d = table.shape
    slot, order, slot_of, ids = drawing_space(data, lo, hi, slots, n_items)
    most = min(len(slot), settings.batch)
    space, touched = scoring_space(most, bias0.shape[1], d, table.dtype), np.empty(most, np.int64)
    change, stamp = np.empty((len(ids) - 1, d), table.dtype), np.empty(len(ids) - 1, np.int64)
    part[:] = 0.0
    for k in range(lo, hi):
        n_pos = data.user_ptr[data.places[k] + 1] - data.user_ptr[data.places[k]]
        samples, used = draw_client(data, k, keys.negatives, slots, n_items, slot, slot_of, ids)
        mine = (user[k], weight0[k], bias0[k], weight1[k], bias1[k])
        rows = Touched(ids[:used], table, target, change, stamp[:used])
        # No row of this client has been touched yet, whatever the client before has left.
        rows.stamp[:] = -1
        take_weight(space, weight0[k], d)
        steps[k], loss[k], seen[k] = _train(
            space, mine, samples, n_pos, fold(keys.order, np.uint64(data.clients[k])), settings, order, touched, rows
        )
        store_weight(space, weight0[k], d)
        _add_changes(part, rows, 1.0 - settings.pull, steps[k])


@njit(parallel=True, cache=True, **FAST)
def train_aligned(
    data, slots, keys, settings, user, weight0, bias0, weight1, bias1, table, target, blocks, parts, steps, loss, seen
):
    """Train clients of one user each from `table` [items, d], towards `target`, by `arguments.AlignedSettings`.

    Scorers are as `scorer.py` has them (without a hidden layer, `user`, `weight0` and `bias0` are of width 0), with a
    leading axis of clients; they are updated in place. `parts` [blocks, items, d] becomes, for each block of clients,
    the sum of what their tables have beyond those without samples; `steps` how many each took, `loss` and `seen` its
    summed loss and the samples that it is from.
    """
    for b in prange(len(blocks) - 1):
        _train_block(
            blocks[b],
            blocks[b + 1],
            parts[b],
            data,
            slots,
            keys,
            settings,
            user,
            weight0,
            bias0,
            weight1,
            bias1,
            table,
            target,
            steps,
            loss,
            seen,
        )
