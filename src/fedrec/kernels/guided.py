"""Compiled training of the network on [user; item] where each client's whole item table is drawn towards a guide.

As `ncf.py` from a common table, with a pull of every row towards the client's own guide at every step. Rows without
samples keep the same part of their distance to it with every step, so they are written once, when the steps are known.
"""

from __future__ import annotations

import numpy as np
from numba import njit, prange

from fedrec.kernels.mf import FAST, draw_client, drawing_space, fold, store_rows, take_rows
from fedrec.kernels.ncf import count_samples, network_space, train_network
from fedrec.kernels.streamed import gather_past


@njit(**FAST)
def _between(table, guide, left, out):
    """guide + left * (table - guide)."""
    by = out.dtype.type(left)
    for i in range(len(out)):
        for f in range(out.shape[1]):
            out[i, f] = guide[i, f] + by * (table[i, f] - guide[i, f])


@njit(**FAST)
def _train_block(lo, hi, data, slots, pairs, keys, settings, net, user, table, flat, guides, strength, own, loss, seen):
    """Clients lo:hi one after another; see `train_guided`."""
    n_items, width = table.shape
    slot, order, slot_of, ids = drawing_space(data, lo, hi, slots, n_items)
    held, target = np.empty((len(ids) - 1, width), table.dtype), np.empty((len(ids) - 1, width), table.dtype)
    near, each = np.empty_like(table), np.arange(n_items)
    scratch = network_space(net, order, held, flat.shape[1], settings.adam)
    for k in range(lo, hi):
        place = data.places[k]
        mine, used = draw_client(data, k, keys.negatives, slots, n_items, slot, slot_of, ids)
        samples = (mine, data.user_ptr[place + 1] - data.user_ptr[place], slots, pairs)
        rows, guide, which, left = held[:used], target[:used], ids[:used], 1.0
        take_rows(rows, table, which)
        take_rows(guide, guides[k], which)
        if used > 0:
            order_key = fold(keys.order, np.uint64(data.clients[k]))
            loss[k], epochs = train_network(
                user[k], rows, flat[k], net, samples, order_key, settings, guide, strength, scratch
            )
            count = count_samples(samples)
            seen[k] = epochs * count
            steps = epochs * ((count + settings.batch - 1) // settings.batch)
            # Such a row keeps the same share of its distance at every step, so nobody has to go through them.
            left = (1.0 - settings.rate_item * strength) ** steps
        _between(table, guides[k], left, near)
        store_rows(rows, near, which)
        # The much larger `own` is written once, and not read.
        gather_past(near, each, own[k])


@njit(parallel=True, cache=True, **FAST)
def train_guided(data, slots, pairs, keys, settings, net, user, table, flat, guides, strength, own, blocks, loss, seen):
    """Train clients of one user each from `table` [items, d]; `own` [clients, items, d] becomes what they then have.

    The gradient of a row has `strength` * (row - guide) added to it. Otherwise as `ncf.train_networks`.
    """
    for b in prange(len(blocks) - 1):
        _train_block(
            blocks[b],
            blocks[b + 1],
            data,
            slots,
            pairs,
            keys,
            settings,
            net,
            user,
            table,
            flat,
            guides,
            strength,
            own,
            loss,
            seen,
        )
