"""Compiled training of a linear scorer of item rows together with a contrastive loss of the client's whole table.

As `linear.py` on own tables, one client after another on every core; at a batch the whole table also takes a step
against `contrast.evaluate`. Takes the same steps as `methods/cluster/contrastive.py`.
"""

from __future__ import annotations

import numpy as np
from numba import njit, prange

from fedrec.kernels.contrast import aligned_zeros, contrast_space, evaluate
from fedrec.kernels.contrast import products as products_of_one
from fedrec.kernels.linear import move, slopes
from fedrec.kernels.mf import EXACT, FAST, draw_client, drawing_space, fold, order_samples


@njit(**FAST)
def _descend(table, slope, rate):
    by = table.dtype.type(rate)
    for i in range(len(table)):
        for f in range(table.shape[1]):
            table[i, f] -= by * slope[i, f]


@njit(**FAST)
def _train(head, bias, table, items, n_pos, order_key, settings, terms, pull, given, known, scratch, space):
    """All epochs of one client; returns its two summed losses and of how many tables the second one is.

    `given`: whether `known` is the contrastive loss of the table as it is, with its gradient.
    """
    batch, decay, in_turn, saturate = settings.batch, settings.decay, settings.in_turn, settings.saturate
    order, touched, logits, gradient, slope = scratch
    loss, contrast, turns = 0.0, 0.0, 0
    for epoch in range(settings.epochs):
        # Every epoch has an order of its own from one key, so nothing is kept from one to the next.
        order_samples(order_key, epoch, len(items), batch, order)
        for low in range(0, len(items), batch):
            now = order[low : min(low + batch, len(items))]
            scale = 1.0 / len(now) if settings.mean else 1.0
            rates = (settings.rate_head * scale, settings.rate_row * scale)
            hit, by = touched[: len(now)], logits[: len(now)]
            loss += slopes(head, bias[0], table, items, now, n_pos, saturate, hit, by)
            if in_turn:
                move(head, bias, table, hit, by, gradient, rates, decay / scale, True, False)
                # The head has moved, and the slopes with it; the loss stays that before the step.
                slopes(head, bias[0], table, items, now, n_pos, saturate, hit, by)
            due = low == 0 or not pull.once
            if due:
                # Only before its first step is the table the one that `known` is of.
                contrast += _contrast(table, terms, given and turns == 0, known, space, slope)
                turns += 1
            move(head, bias, table, hit, by, gradient, rates, decay / scale, not in_turn, True)
            # By the slope from before the move, as one step of both losses together.
            if due:
                _descend(table, slope, settings.rate_row * pull.strength)
    return loss, contrast, turns


@njit(**FAST)
def _contrast(table, terms, given, known, space, slope):
    if not given:
        return evaluate(table, terms, space, slope)
    slope[:] = known[1]
    return known[0]


@njit(**EXACT)
def _items(mine, ids):
    """Numbers of rows to items, in place."""
    for j in range(len(mine)):
        mine[j] = ids[mine[j]]


@njit(**FAST)
def _train_block(
    low, high, data, slots, keys, settings, terms, pull, heads, biases, tables, same, known, loss, seen, contrast, turns
):
    """Clients low:high one after another; see `train_contrastive`."""
    n_items, width, dtype = tables.shape[1], tables.shape[2], tables.dtype
    slot, order, slot_of, ids = drawing_space(data, low, high, slots, n_items)
    size = min(len(slot), settings.batch)
    space = contrast_space(n_items, width, aligned_zeros(pull.tiles))
    scratch = (
        order,
        np.empty(size, dtype=np.uint32),
        np.empty(size, dtype),
        np.empty(width, dtype),
        np.empty((n_items, width), dtype),
    )
    for k in range(low, high):
        n_pos = data.user_ptr[data.places[k] + 1] - data.user_ptr[data.places[k]]
        if n_pos == 0:
            continue
        mine, _ = draw_client(data, k, keys.negatives, slots, n_items, slot, slot_of, ids)
        _items(mine, ids)
        order_key = fold(keys.order, np.uint64(data.clients[k]))
        loss[k], contrast[k], turns[k] = _train(
            heads[k],
            biases[k],
            tables[k],
            mine,
            n_pos,
            order_key,
            settings,
            terms,
            pull,
            same[k],
            known,
            scratch,
            space,
        )
        seen[k] = settings.epochs * len(mine)


@njit(parallel=True, cache=True, **FAST)
def train_contrastive(
    data, slots, keys, settings, terms, pull, heads, biases, tables, same, known, blocks, loss, seen, contrast, turns
):
    """Train clients of one user each, whose `tables` [clients, items, d] are updated in place, as heads and biases.

    `pull` and `terms`: `arguments.ContrastSettings` and `ContrastTerms`. Tables of the clients in `same` are equal, and
    `known` is the contrastive loss of these with its gradient. `contrast`, `turns`: each client's summed contrastive
    loss, and of how many tables it is. Otherwise as `linear.train_linear`.
    """
    for b in prange(len(blocks) - 1):
        _train_block(
            blocks[b],
            blocks[b + 1],
            data,
            slots,
            keys,
            settings,
            terms,
            pull,
            heads,
            biases,
            tables,
            same,
            known,
            loss,
            seen,
            contrast,
            turns,
        )


def products(*arguments):
    """Operations in the products of `train_contrastive`, but for what was `known`."""
    tables, same, turns = arguments[8], arguments[9], arguments[-1]
    # Those without samples take no step.
    known = same & (turns > 0)
    return products_of_one(tables[0]) * int(turns.sum() - known.sum())
