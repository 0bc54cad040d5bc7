"""Compiled training of the network on [user; item], one client after another on every core.

With p fixed during a step, the user's half of the first layer is one vector for the whole batch: it joins the bias, and
its gradients follow from the bias's. The samples of a batch pass through the network a tile at a time, one column each,
so that every inner loop runs over samples whatever the widths of the layers are. Where p and the network move before
the rows, there are two passes over every batch. Draws the same samples as `samples.py` and takes the same steps as
`training/local_training.py`.
"""

from __future__ import annotations

import math

import numpy as np
from numba import njit, prange

from fedrec.kernels.mf import (
    EXACT,
    FAST,
    adam,
    bce_slopes,
    draw_client,
    drawing_space,
    fold,
    leave_rows,
    order_samples,
    row_space,
    take_rows,
)

# So few that their activations stay in the near caches; of pairs half as many.
TILE = 128


@njit(**EXACT)
def _layer(flat, net, layer):
    """Weight [out, in] and bias of a layer, views of all weights in one run; of the first layer both halves."""
    widths, starts = net.widths, net.starts
    middle = starts[layer] + widths[layer + 1] * widths[layer]
    return flat[starts[layer] : middle].reshape(widths[layer + 1], widths[layer]), flat[middle : starts[layer + 1]]


@njit(**EXACT)
def _item_part(weight, net, layer):
    """The columns that act on what differs from sample to sample."""
    # The user's half is left out: it is the same for all samples and has joined the bias.
    return weight[:, net.widths[0] // 2 if layer == 0 else 0 :]


@njit(**EXACT)
def _between(values, net, layer):
    """The rows of activations (or of their gradients) that enter a layer."""
    return values[net.heights[layer] : net.heights[layer + 1]]


@njit(**FAST)
def _user_part(weight, bias, p, out):
    """What the first layer adds to every sample: weight p + bias."""
    for o in range(len(out)):
        total = bias[o]
        for f in range(len(p)):
            total += weight[o, f] * p[f]
        out[o] = total


@njit(**FAST)
def _add_products(out, factors, x, n):
    """Add factor * row of every row of x, four at a time: the sums are read and written once for them."""
    fours = len(x) // 4 * 4
    for i in range(0, fours, 4):
        a, b, c, d = factors[i], factors[i + 1], factors[i + 2], factors[i + 3]
        for t in range(n):
            out[t] += (a * x[i, t] + b * x[i + 1, t]) + (c * x[i + 2, t] + d * x[i + 3, t])
    for i in range(fours, len(x)):
        a = factors[i]
        for t in range(n):
            out[t] += a * x[i, t]


@njit(**FAST)
def _multiply(weight, bias, x, y, n):
    for o in range(len(y)):
        for t in range(n):
            y[o, t] = bias[o]
        _add_products(y[o], weight[o], x, n)


@njit(**EXACT)
def _rectify(y, n):
    for o in range(len(y)):
        for t in range(n):
            # NaN stays NaN, which max() does not promise: a diverged run must show.
            y[o, t] = 0.0 if y[o, t] < 0.0 else y[o, t]


@njit(**FAST)
def _forward(flat, net, shift, act, n):
    """From the item rows in the first rows of `act` to the logits in its last one, for n columns."""
    depth = len(net.widths) - 1
    for layer in range(depth):
        weight, bias = _layer(flat, net, layer)
        y = _between(act, net, layer + 1)
        _multiply(_item_part(weight, net, layer), shift if layer == 0 else bias, _between(act, net, layer), y, n)
        # The last layer is the logit, which may be negative.
        if layer < depth - 1:
            _rectify(y, n)


@njit(**FAST)
def _add_weight_gradient(out, bias_out, x, delta, n):
    for o in range(len(delta)):
        total = out.dtype.type(0)
        for t in range(n):
            total += delta[o, t]
        bias_out[o] += total
        _add_inner_products(out[o], delta[o], x, n)


@njit(**FAST)
def _add_inner_products(out, by, x, n):
    """Of every row of x with `by`, four at a time: it is read once for them."""
    zero, fours = out.dtype.type(0), len(x) // 4 * 4
    for i in range(0, fours, 4):
        a, b, c, d = zero, zero, zero, zero
        for t in range(n):
            a += by[t] * x[i, t]
            b += by[t] * x[i + 1, t]
            c += by[t] * x[i + 2, t]
            d += by[t] * x[i + 3, t]
        out[i] += a
        out[i + 1] += b
        out[i + 2] += c
        out[i + 3] += d
    for i in range(fours, len(x)):
        a = zero
        for t in range(n):
            a += by[t] * x[i, t]
        out[i] += a


@njit(**FAST)
def _multiply_back(weight, delta, out, n):
    for i in range(len(out)):
        for t in range(n):
            out[i, t] = 0.0
        _add_products(out[i], weight[:, i], delta, n)


@njit(**EXACT)
def _rectify_back(y, delta, n):
    for o in range(len(y)):
        for t in range(n):
            # At 0 the slope counts as 0, as in torch.
            delta[o, t] = 0.0 if y[o, t] <= 0.0 else delta[o, t]


@njit(**FAST)
def _backward(flat, gradient, net, act, delta, n, head, table):
    """From dloss/dlogit in the last row of `delta` to that of the item rows, where the `table` moves.

    Where the `head` moves, weights' gradients are added to.
    """
    for layer in range(len(net.widths) - 2, -1, -1):
        weight, (out, bias_out) = _layer(flat, net, layer)[0], _layer(gradient, net, layer)
        x, dx, dy = _between(act, net, layer), _between(delta, net, layer), _between(delta, net, layer + 1)
        if head:
            _add_weight_gradient(_item_part(out, net, layer), bias_out, x, dy, n)
        # Nothing lies below the rows, so their gradients are formed only where they move.
        if table or layer > 0:
            _multiply_back(_item_part(weight, net, layer), dy, dx, n)
        if layer > 0:
            _rectify_back(x, dx, n)


@njit(**FAST)
def _user_gradients(flat, gradient, net, p, out):
    """Of p into `out`, and of the user's half of the first layer, both from the gradient of its bias."""
    weight, (to, bias) = _layer(flat, net, 0)[0], _layer(gradient, net, 0)
    for f in range(len(p)):
        out[f] = 0.0
    for o in range(len(bias)):
        for f in range(len(p)):
            out[f] += weight[o, f] * bias[o]
            to[o, f] = bias[o] * p[f]


@njit(**FAST)
def _bce(logit, batch, n_pos, scale, delta):
    """scale * dloss/dlogit of pointwise samples; returns their summed loss."""
    by, slopes = delta.dtype.type(scale), delta[: len(batch)]
    for t in range(len(batch)):
        slopes[t] = logit[t]
    loss = bce_slopes(batch, n_pos, slopes)
    for t in range(len(batch)):
        slopes[t] *= by
    return loss


@njit(**FAST)
def _bpr(logit, pairs, scale, delta):
    """The same for pairs of neighbours: x = positive - negative, loss = log(1 + exp(-x))."""
    # A tile has too few pairs for the product to overflow, so nothing is taken out in between.
    loss, product = 0.0, 1.0
    for t in range(pairs):
        x = logit[2 * t] - logit[2 * t + 1]
        e = math.exp(-abs(x))
        c = scale * (e if x >= 0 else 1.0) / (1.0 + e)
        delta[2 * t], delta[2 * t + 1] = -c, c
        loss += max(-x, 0.0)
        product *= 1.0 + e
    return loss + math.log(product)


@njit(**EXACT)
def count_samples(samples):
    """How many samples or pairs a client has, of: their rows; positives; negatives for each; whether in pairs."""
    _, n_pos, slots, pairs = samples
    return n_pos * slots if pairs else n_pos * (1 + slots)


@njit(**EXACT)
def _columns(batch, slot, n_pos, slots, pairs, touched):
    """The row of every column of a tile; returns how many columns there are."""
    if not pairs:
        for t in range(len(batch)):
            touched[t] = slot[batch[t]]
        return len(batch)
    for t in range(len(batch)):
        # Neighbours, so that both halves of a pair pass through the network in the same tile.
        touched[2 * t], touched[2 * t + 1] = slot[batch[t] // slots], slot[n_pos + batch[t]]
    return 2 * len(batch)


@njit(**FAST)
def _tile(flat, gradient, net, shift, rows, row_gradient, batch, samples, scale, head, table, scratch):
    """Add the gradients of one tile with respect to what moves; returns its summed loss."""
    slot, n_pos, slots, pairs = samples
    touched, act, delta = scratch
    n, d = _columns(batch, slot, n_pos, slots, pairs, touched), rows.shape[1]
    for t in range(n):
        row = rows[touched[t]]
        for f in range(d):
            act[f, t] = row[f]
    _forward(flat, net, shift, act, n)
    logit, last = act[-1], delta[-1]
    loss = _bpr(logit, len(batch), scale, last) if pairs else _bce(logit, batch, n_pos, scale, last)
    _backward(flat, gradient, net, act, delta, n, head, table)
    if table:
        for t in range(n):
            row = row_gradient[touched[t]]
            for f in range(d):
                row[f] += delta[f, t]
    return loss


@njit(**FAST)
def _move(value, gradient, first, second, rate, step, by_adam):
    """One step of a run of numbers, whose gradient is then forgotten."""
    if by_adam:
        adam(value, gradient, first, second, rate, 1.0 - 0.9**step, 1.0 - 0.999**step)
    else:
        by = value.dtype.type(rate)
        for j in range(len(value)):
            value[j] -= by * gradient[j]
    for j in range(len(value)):
        gradient[j] = 0.0


@njit(**FAST)
def _add_decay(gradient, value, decay):
    by = value.dtype.type(decay)
    for j in range(len(value)):
        gradient[j] += by * value[j]


@njit(**FAST)
def _step(runs, net, batch, samples, settings, step, head, table, scratch):
    """A pass over a batch and a step: p and weights for `head`, rows for `table`; returns the summed loss before it."""
    rates = (settings.rate_user, settings.rate_item, settings.rate_dense)
    _, shift, tile, gradients, first, second = scratch
    p, flat = runs[0], runs[2]
    rows = runs[1].reshape(-1, len(p))
    row_gradient = gradients[1][: len(runs[1])].reshape(rows.shape)
    # Half as many pairs, since each takes two columns.
    loss, wide, scale = 0.0, TILE // 2 if samples[3] else TILE, 1.0 / len(batch) if settings.mean else 1.0
    weight, bias = _layer(flat, net, 0)
    _user_part(weight, bias, p, shift)
    for t in range(0, len(batch), wide):
        loss += _tile(
            flat, gradients[2], net, shift, rows, row_gradient, batch[t : t + wide], samples, scale, head, table, tile
        )
    if head:
        # After all tiles, because it follows from the bias's gradient, to which every tile adds.
        _user_gradients(flat, gradients[2], net, p, gradients[0])
        if settings.decay > 0.0:
            _add_decay(gradients[2], flat, settings.decay)
    for g in range(3):
        if table if g == 1 else head:
            _move(runs[g], gradients[g], first[g], second[g], rates[g], step, settings.adam)
    return loss


@njit(**FAST)
def _add_pull(gradient, value, guide, strength):
    by = value.dtype.type(strength)
    for j in range(len(value)):
        gradient[j] += by * (value[j] - guide[j])


@njit(**FAST)
def train_network(p, rows, flat, net, samples, order_key, settings, guide, strength, scratch):
    """All epochs of one client, on its rows; returns the summed loss and how many epochs it is from.

    With a `strength`, every step also draws all rows towards those of `guide`.
    """
    batch, epochs, phases = settings.batch, settings.epochs, settings.phases
    order, _, _, gradients, first, second = scratch
    count, runs = count_samples(samples), (p, rows.reshape(-1), flat)
    for g in range(3):
        gradients[g][: len(runs[g])] = 0.0
        if settings.adam:
            first[g][: len(runs[g])] = 0.0
            second[g][: len(runs[g])] = 0.0
    loss, step, average = 0.0, 0, 0.0
    for epoch in range(epochs):
        order_samples(order_key, epoch, count, batch, order)
        for lo in range(0, count, batch):
            now = order[lo : min(lo + batch, count)]
            step += 1
            for phase in range(phases):  # p and the network move in the first, the rows in the last
                if strength > 0.0 and phase == phases - 1:
                    _add_pull(gradients[1], runs[1], guide.reshape(-1), strength)
                found = _step(runs, net, now, samples, settings, step, phase == 0, phase == phases - 1, scratch)
                loss += found if phase == 0 else 0.0
        before, average = average, loss / (count * (epoch + 1))
        # As in `mf.py`: 1e-5 stands against a loss of zero.
        if epoch > 0 and abs(average - before) / abs(before + 1e-5) < settings.early_exit:
            return loss, epoch + 1
    return loss, epochs


@njit(**EXACT)
def _like(sizes, dtype):
    """Room for a number of the kind of every parameter: of p, of the rows, of the weights."""
    return np.empty(sizes[0], dtype), np.empty(sizes[1], dtype), np.empty(sizes[2], dtype)


@njit(**EXACT)
def network_space(net, order, rows, weights, adam):
    """What `train_network` works in, for clients of up to so many rows and weights."""
    dtype, height = rows.dtype, net.heights[-1]
    tile = (np.empty(TILE, dtype=np.uint32), np.empty((height, TILE), dtype), np.empty((height, TILE), dtype))
    sizes = (rows.shape[1], rows.size, weights)
    moments = sizes if adam else (0, 0, 0)
    return (
        order,
        np.empty(net.widths[1], dtype),
        tile,
        _like(sizes, dtype),
        _like(moments, dtype),
        _like(moments, dtype),
    )


@njit(**FAST)
def _train_block(
    lo,
    hi,
    part,
    data,
    n_items,
    slots,
    pairs,
    keys,
    settings,
    net,
    user,
    table,
    flat,
    shared,
    own,
    changed,
    weight,
    loss,
    seen,
):
    """Clients lo:hi one after another; see `train_networks`."""
    clients, places, user_ptr = data.clients, data.places, data.user_ptr
    slot, order, slot_of, ids = drawing_space(data, lo, hi, slots, n_items)
    part[:] = 0.0
    held, space = row_space(table, own, changed, len(ids) - 1)
    scratch = network_space(net, order, held, flat.shape[1], settings.adam)
    for k in range(lo, hi):
        mine, used = draw_client(data, k, keys.negatives, slots, n_items, slot, slot_of, ids)
        samples = (mine, user_ptr[places[k] + 1] - user_ptr[places[k]], slots, pairs)
        rows, which = held[:used], ids[:used]
        take_rows(rows, table[0 if shared else k], which)
        if used > 0:
            loss[k], epochs = train_network(
                user[k],
                rows,
                flat[k],
                net,
                samples,
                fold(keys.order, np.uint64(clients[k])),
                settings,
                rows,
                0.0,
                scratch,
            )
            seen[k] = epochs * count_samples(samples)
        leave_rows(rows, which, table, k, shared, own, changed, space, part, weight)


@njit(parallel=True, cache=True, **FAST)
def train_networks(
    data,
    n_items,
    slots,
    pairs,
    keys,
    settings,
    net,
    user,
    table,
    flat,
    shared,
    own,
    changed,
    weight,
    blocks,
    parts,
    loss,
    seen,
):
    """Train clients of one user each. `user` [clients, d] and `flat` [clients, all weights] are updated in place.

    As `mf.train_clients`, by `arguments.NetworkSettings` on `arguments.Layers`, except that `parts`
    [blocks, items, d] becomes the sum of each block.
    """
    for b in prange(len(blocks) - 1):
        _train_block(
            blocks[b],
            blocks[b + 1],
            parts[b],
            data,
            n_items,
            slots,
            pairs,
            keys,
            settings,
            net,
            user,
            table,
            flat,
            shared,
            own,
            changed,
            weight,
            loss,
            seen,
        )
