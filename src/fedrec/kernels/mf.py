"""Compiled training of matrix factorisation, one client after another on every core.

With p fixed during a step, all samples of a row share one direction: the gradient of row i is (a scalar) * p. The
rows that a client touches live in a scratch that stays in cache; only the sum over clients, or the client's own
table, is written. Draws the same samples as `samples.py` and takes the same steps as `training/local_training.py`.

Written for the machine in three ways: loops over the factors are plain, so that they become vector instructions;
nothing branches on a random number, which would be mispredicted half of the time; indices are unsigned,
which spares a test for negative ones.
"""

from __future__ import annotations

import math

import numpy as np
from numba import njit, prange

from fedrec.kernels.exponential import exp_below
from fedrec.kernels.streamed import gather_past, scatter_past
from fedrec.random import GOLDEN, MUL_1, MUL_2, PERMUTE_ROUNDS, SWAPS

_GOLDEN, _MUL_1, _MUL_2 = np.uint64(GOLDEN), np.uint64(MUL_1), np.uint64(MUL_2)
_30, _27, _31, _32, _63, _1 = (np.uint64(bits) for bits in (30, 27, 31, 32, 63, 1))
# Factors of at most 2 each that are multiplied before a logarithm is taken: 2 ** 512 is a number of double precision,
# and one logarithm for all costs a fraction of one for each.
FACTORS = 512
# Gradients that Adam holds at once: they stay in the nearest cache.
ROWS = 32
# Not nnan or ninf, under which a compiler may drop tests for what is not finite: a diverged run must show.
EXACT = {"error_model": "numpy"}
FAST = {"error_model": "numpy", "fastmath": {"reassoc", "contract", "nsz", "arcp"}}


@njit(**EXACT)
def fold(key, value):
    # splitmix64, as in `splitmix.py`: exact integers, so that numpy, torch and Triton draw the same
    z = key + _GOLDEN * (value + _1)
    z = (z ^ (z >> _30)) * _MUL_1
    z = (z ^ (z >> _27)) * _MUL_2
    return z ^ (z >> _31)


@njit(**EXACT)
def _shuffle(key, size, out):
    """Where `random.shuffle` sends the first positions, as many as `out` has."""
    for j in range(len(out)):
        out[j] = j
    for turn in range(SWAPS):
        # 32 random bits times the size, shifted: uniform to 2 ** -32, without a division
        pivot = (np.int64(fold(key, np.uint64(2 * turn)) >> _32) * size) >> 32
        coins = fold(key, np.uint64(2 * turn + 1))
        # swap-or-not: a position and its mirror image at the pivot look at one coin, so no array is permuted
        for j in range(len(out)):
            here = np.int64(out[j])
            other = pivot - here
            # sums in place of branches: half of these would be mispredicted
            other += size * (other < 0)
            swapped = np.int64(fold(coins, np.uint64(max(here, other))) >> _63)
            out[j] = here + swapped * (other - here)


@njit(**EXACT)
def _ranks_of_positives(key, slots, pool, positives, out):
    """Ranks without replacement within one positive, as `samples._of_positives` draws them."""
    count = positives * slots
    for j in range(count):
        out[j] = fold(key, np.uint64(j)) >> _32
    # A pool that is too small for distinct negatives must not end the run, so items may come twice.
    if pool < slots:  # with replacement
        for j in range(count):
            out[j] = (np.int64(out[j]) * pool) >> 32
    else:
        taken = np.empty(slots, dtype=np.int64)  # ascending
        for p in range(positives):
            for s in range(slots):
                # There is one item less for every one that is gone, so no draw has to be thrown away and repeated.
                rank = (np.int64(out[p * slots + s]) * (pool - s)) >> 32
                # the rank among what is left becomes one among all: every smaller one that is gone moves it up
                for t in range(s):
                    rank += taken[t] <= rank
                out[p * slots + s] = rank
                # insertion without branches keeps `taken` ascending
                for t in range(s):
                    taken[t], rank = min(taken[t], rank), max(taken[t], rank)
                taken[s] = rank


@njit(**EXACT)
def _ranks_of_user(key, pool, out):
    """Ranks without replacement within one user, as `samples._of_users` draws them."""
    for low in range(0, len(out), pool):
        _shuffle(fold(key, np.uint64(low // pool)), pool, out[low : low + pool])


@njit(**EXACT)
def draw_negatives(key, slots, n_items, positives, gap, unique, out):
    """The negatives of one user into out[: positives * slots], `unique` within the user or else within each positive.

    `gap` as in `clients.Pool`.
    """
    pool, count = n_items - len(gap), positives * slots
    if unique:
        _ranks_of_user(key, pool, out[:count])
    else:
        _ranks_of_positives(key, slots, pool, positives, out)
    # a binary search in `gap` for every draw, all of them step by step together
    before = np.empty(count, dtype=np.uint32)
    for j in range(count):
        before[j] = 0
    left = len(gap)
    while left > 0:
        # Rounded up, so that the last place is compared too.
        half = (left + 1) >> 1
        for j in range(count):
            before[j] += half * (gap[before[j] + half - 1] <= out[j])
        left -= half
    for j in range(count):
        out[j] += before[j]


@njit(**EXACT)
def _mix(x, multiply, add, mask, half):
    for r in range(PERMUTE_ROUNDS):
        x = np.uint32(x * multiply[r] + add[r]) & mask
        x = x ^ (x >> half)
    return x


@njit(**EXACT)
def permutation(key, size, out):
    """The same permutation as `random.permute`, for sizes below 2**31."""
    bits = 1
    while (1 << bits) < size:
        bits += 1
    mask, half = np.uint32((1 << bits) - 1), np.uint32((bits + 1) >> 1)
    multiply = np.empty(PERMUTE_ROUNDS, dtype=np.uint32)
    add = np.empty(PERMUTE_ROUNDS, dtype=np.uint32)
    for r in range(PERMUTE_ROUNDS):
        # odd, so that multiplying can be undone modulo a power of two: every round is a permutation
        multiply[r] = fold(key, np.uint64(2 * r)) | _1
        add[r] = fold(key, np.uint64(2 * r + 1))
    for j in range(size):
        out[j] = _mix(np.uint32(j), multiply, add, mask, half)
    # A list of those saves going through all positions in every round.
    outside = np.empty(size, dtype=np.uint32)  # those outside the range, all in one further round
    count = 0
    for j in range(size):
        outside[count] = j
        count += out[j] >= size
    while count > 0:
        left = 0
        for k in range(count):
            j = outside[k]
            out[j] = _mix(np.uint32(out[j]), multiply, add, mask, half)
            outside[left] = j
            left += out[j] >= size
        count = left


@njit(**EXACT)
def order_samples(key, epoch, count, batch, out):
    """The order of a client's samples in an epoch into out[:count]."""
    if count > batch:
        permutation(fold(key, np.uint64(epoch)), count, out)
    else:  # one batch: its order does not matter
        for j in range(count):
            out[j] = j


@njit(**FAST)
def _dot(p, rows, k):
    # In the type of p: a total in double precision would convert every product and halve the vectors.
    total = p.dtype.type(0)
    for f in range(len(p)):
        total += p[f] * rows[k, f]
    return total


@njit(**FAST)
def bce_slopes(batch, n_pos, logits):
    """dloss/dlogit of one pointwise batch in place of its logits; returns the summed loss."""
    loss = 0.0
    for low in range(0, len(batch), FACTORS):
        high = min(low + FACTORS, len(batch))
        loss += _bce_run(batch[low:high], n_pos, logits[low:high])
    return loss


@njit(**FAST)
def _bce_run(batch, n_pos, logits):
    """The same for at most FACTORS samples, without a branch. A small slope is no difference of large numbers."""
    real = logits.dtype.type
    one, loss, product = real(1.0), 0.0, 1.0  # product of 1 + exp(-|x|): one logarithm serves many samples
    # e is of -|x|, at most 1: nothing overflows, and log(1 + exp(-x)) = max(-x, 0) + log(1 + e)
    for t in range(len(batch)):
        x, liked = logits[t], batch[t] < n_pos
        e = exp_below(-abs(x))
        share = (e if (x >= 0) == liked else one) / (one + e)
        logits[t] = -share if liked else share
        loss += max(-x if liked else x, real(0.0))
        product *= 1.0 + e
    return loss + math.log(product)


@njit(**FAST)
def _bce_batch(p, rows, slot, batch, n_pos, coef, touched, logits):
    for t in range(len(batch)):
        touched[t] = slot[batch[t]]
        logits[t] = _dot(p, rows, touched[t])
    # slopes first, then their sums: the loop over slopes has no scattered stores and becomes vector instructions
    slopes = logits[: len(batch)]
    loss = bce_slopes(batch, n_pos, slopes)
    for t in range(len(batch)):
        coef[touched[t]] += slopes[t]
    return loss


@njit(**FAST)
def _bpr_batch(p, rows, slot, batch, n_pos, slots, coef, touched, logits):
    """The same for pairs: x = p (q_i - q_j), loss = log(1 + exp(-x))."""
    for t in range(len(batch)):
        touched[2 * t], touched[2 * t + 1] = slot[batch[t] // slots], slot[n_pos + batch[t]]
        logits[t] = _dot(p, rows, touched[2 * t]) - _dot(p, rows, touched[2 * t + 1])
    loss, product = 0.0, 1.0
    for t in range(len(batch)):
        x = logits[t]
        e = math.exp(-abs(x))
        c = (e if x >= 0 else 1.0) / (1.0 + e)
        coef[touched[2 * t]] -= c
        coef[touched[2 * t + 1]] += c
        loss += max(-x, 0.0)
        product *= 1.0 + e
        # pairs are not cut into runs of FACTORS: the product is taken out before it can overflow
        if product > 1e300:
            loss += math.log(product)
            product = 1.0
    return loss + math.log(product)


@njit(**FAST)
def _sgd_step(p, rows, touched, coef, grad, rate_user, rate_item):
    """Move p and the touched rows against their gradients, which are sum_k coef[k] * rows[k] and coef[k] * p.

    A rate of zero holds one of them.
    """
    for f in range(len(p)):
        grad[f] = 0.0
    for k in touched:
        c = coef[k]
        # A row that was drawn twice moves once: its second visit finds nothing.
        coef[k] = 0.0
        if c != 0.0:
            step = rows.dtype.type(rate_item * c)
            for f in range(len(p)):
                # Before the row moves, because the gradient of p is by the rows as they were.
                grad[f] += c * rows[k, f]
                rows[k, f] -= step * p[f]
    # Last, because the rows were to move by p as it was.
    step = rows.dtype.type(rate_user)
    for f in range(len(p)):
        p[f] -= step * grad[f]


@njit(**FAST)
def adam(value, gradient, first, second, rate, fix_1, fix_2):
    """One step on a run of numbers: constants of their own type, one root and one division each."""
    real = value.dtype.type
    # corrections for the start go into rate and floor once, which is the same step as correcting both moments
    keep_1, take_1, keep_2, take_2 = real(0.9), real(0.1), real(0.999), real(0.001)
    scale, floor = real(rate * math.sqrt(fix_2) / fix_1), real(1e-8 * math.sqrt(fix_2))
    for j in range(len(value)):
        g = gradient[j]
        m = keep_1 * first[j] + take_1 * g
        v = keep_2 * second[j] + take_2 * g * g
        first[j], second[j] = m, v
        value[j] -= scale * m / (np.sqrt(v) + floor)


@njit(**FAST)
def _adam_step(p, rows, used, coef, grad, rate_user, rate_item, scale, step, first, second, pull, start, head, table):
    """The same with Adam: p moves for `head`, the rows for `table`; a rate of zero would not hold their moments.

    Rows go on moving after the batches that touched them, so all of them are visited. The moments of p follow those
    of the rows: first[-1], second[-1]. A `pull` draws rows back to `start`. Gradients are formed for a few rows at a
    time, which then move as one run of numbers.
    """
    d, real = len(p), p.dtype.type
    fix_1, fix_2 = 1.0 - 0.9**step, 1.0 - 0.999**step
    for f in range(d):
        grad[0, f] = 0.0
    for low in range(0, used, ROWS):
        high = min(low + ROWS, used)
        for k in range(low, high):
            c = real(coef[k] * scale)
            coef[k] = 0.0
            for f in range(d):
                grad[0, f] += c * rows[k, f]
                grad[1 + k - low, f] = c * p[f]
            if pull > 0.0:
                # The slope of strength * |row - start|^2 has the factor 2.
                back = real(2.0 * pull)
                for f in range(d):
                    grad[1 + k - low, f] += back * (rows[k, f] - start[k, f])
        if table:
            adam(
                rows[low:high].reshape(-1),
                grad[1 : 1 + high - low].reshape(-1),
                first[low:high].reshape(-1),
                second[low:high].reshape(-1),
                rate_item,
                fix_1,
                fix_2,
            )
    if head:
        adam(p, grad[0], first[-1], second[-1], rate_user, fix_1, fix_2)


@njit(**FAST)
def _train(p, rows, used, slot, n_pos, slots, pairs, order_key, settings, scratch):
    """All epochs of one client, on its `used` rows; returns the summed loss and how many epochs it is from."""
    batch, pull, phases = settings.batch, settings.pull, settings.phases
    order, touched, logits, coef, grad, first, second, start = scratch
    count = n_pos * slots if pairs else n_pos * (1 + slots)
    # The scratch is not cleared when it is made, nor between clients.
    for k in range(used):
        coef[k] = 0.0
    if settings.adam:
        for k in range(-1, used):
            for f in range(len(p)):
                first[k, f] = second[k, f] = 0.0
    if pull > 0.0:
        for k in range(used):
            for f in range(len(p)):
                start[k, f] = rows[k, f]
    loss, step, average = 0.0, 0, 0.0
    for epoch in range(settings.epochs):
        order_samples(order_key, epoch, count, batch, order)
        for lo in range(0, count, batch):
            now = order[lo : min(lo + batch, count)]
            # By its own length, because the last batch of an epoch may be shorter.
            scale = 1.0 / len(now) if settings.mean else 1.0
            step += 1
            for phase in range(phases):  # the user vector moves in the first, the rows in the last
                head, table = phase == 0, phase == phases - 1
                if pairs:
                    found = _bpr_batch(p, rows, slot, now, n_pos, slots, coef, touched, logits)
                else:
                    found = _bce_batch(p, rows, slot, now, n_pos, coef, touched, logits)
                # A loss is reported as before the step; the second pass sees a vector that has moved.
                loss += found if head else 0.0
                if settings.adam:
                    _adam_step(
                        p,
                        rows,
                        used,
                        coef,
                        grad,
                        settings.rate_user,
                        settings.rate_item,
                        scale,
                        step,
                        first,
                        second,
                        pull,
                        start,
                        head,
                        table,
                    )
                else:
                    hit = touched[: len(now) * (2 if pairs else 1)]
                    _sgd_step(
                        p,
                        rows,
                        hit,
                        coef,
                        grad[0],
                        head * settings.rate_user * scale,
                        table * settings.rate_item * scale,
                    )
        # the same test as in `Descent`: the mean loss since the round began, and 1e-5 against a loss of zero
        before, average = average, loss / (count * (epoch + 1))
        if epoch > 0 and abs(average - before) / abs(before + 1e-5) < settings.early_exit:
            return loss, epoch + 1
    return loss, settings.epochs


@njit(**FAST)
def add_changes(part, rows, table, ids, weight):
    """Add weight * (row now - row at the start) of one client to its block's part of the sum over clients."""
    # In the type of the rows: a factor in double precision would widen the whole loop.
    by = part.dtype.type(weight)
    for k in range(len(ids)):
        start = ids[k]
        for f in range(part.shape[1]):
            part[start, f] += by * (rows[k, f] - table[start, f])


@njit(**EXACT)
def _number(slot, slot_of, ids):
    """Replace items by the numbers 0, 1, ... in order of appearance, and list them in `ids`; returns how many."""
    used = 0
    for j in range(len(slot)):
        item = slot[j]
        # no branch: half of the items of a short history are new, and nobody can predict which
        new = slot_of[item] < 0
        slot_of[item] = used if new else slot_of[item]
        # Written always, which needs no branch; it stays only if the item was new.
        ids[used] = item
        used += new
        slot[j] = slot_of[item]
    # only what was written is cleared: the whole catalogue would cost more than the samples
    for k in range(used):
        slot_of[ids[k]] = -1
    return used


@njit(**EXACT)
def draw_rows(key, slots, n_items, positives, gap, unique, slot, slot_of, ids):
    """One user's samples into `slot`, as numbers of rows, and the items of these rows into `ids`; returns how many."""
    n_pos = len(positives)
    for j in range(n_pos):
        slot[j] = positives[j]
    draw_negatives(key, slots, n_items, n_pos, gap, unique, slot[n_pos:])
    return _number(slot, slot_of, ids)


@njit(**EXACT)
def drawing_space(data, low, high, slots, n_items):
    """Room for the samples of any of the clients low:high, for their order, and for the numbers of their rows."""
    places, user_ptr, most = data.places, data.user_ptr, 0
    for k in range(low, high):
        most = max(most, user_ptr[places[k] + 1] - user_ptr[places[k]])
    samples = most * (1 + slots)
    slot_of = np.full(n_items, -1, dtype=np.int32)
    # One more than rows: the place behind the last one is written for every item that is not new.
    ids = np.empty(min(samples, n_items) + 1, dtype=np.uint32)
    return np.empty(samples, dtype=np.uint32), np.empty(samples, dtype=np.uint32), slot_of, ids


@njit(**EXACT)
def draw_client(data, k, key, slots, n_items, slot, slot_of, ids):
    """The same for client k of `data`, as in `arguments.Data`: its samples, and how many rows they have."""
    place = data.places[k]
    begin, end = data.user_ptr[place], data.user_ptr[place + 1]
    mine, others = slot[: (end - begin) * (1 + slots)], data.gap[data.pool_ptr[place] : data.pool_ptr[place + 1]]
    key = fold(key, np.uint64(data.users[place]))
    return mine, draw_rows(key, slots, n_items, data.items[begin:end], others, data.unique, mine, slot_of, ids)


@njit(**EXACT)
def take_rows(rows, table, ids):
    for r in range(len(ids)):
        # Read once: for all the compiler knows, writing a row might change it.
        item = ids[r]
        for f in range(rows.shape[1]):
            rows[r, f] = table[item, f]


@njit(**EXACT)
def store_rows(rows, table, ids):
    for r in range(len(ids)):
        item = ids[r]
        for f in range(rows.shape[1]):
            table[item, f] = rows[r, f]


@njit(**EXACT)
def row_space(table, own, changed, most):
    """Room for up to so many rows of a client; where its whole table is to be left, behind a copy of the common one.

    With it comes the whole space, and for every item the place of its row there before a client has touched any.
    """
    common = table.shape[1] if len(own) and not len(changed) else 0
    # A later copy reads out of one array, so common rows lie in it beside the client's own.
    every = np.empty((common + most, table.shape[2]), table.dtype)
    every[:common] = table[0, :common]
    return every[common:], (every, np.arange(common).astype(np.uint32))


@njit(**FAST)
def leave_rows(rows, ids, table, k, shared, own, changed, space, part, weight):
    """What client k made of its rows: into its table, or into its block's part of the sum over clients.

    Then, where `own` [clients, items, d] is not empty, all of its table is left there, from the `space` that the rows
    are part of: so the much larger `own` is written once, and not read. Where `changed` [clients, items] is not empty,
    only these rows are left, and marked there.
    """
    if not shared:
        store_rows(rows, table[k], ids)
        return
    add_changes(part, rows, table[0], ids, weight[k])
    if len(changed):
        mark = changed[k]
        for item in range(len(mark)):
            mark[item] = False
        for item in ids:
            mark[item] = True
        scatter_past(rows, ids, own[k])
    elif len(own):
        every, index = space
        for r in range(len(ids)):
            index[ids[r]] = len(index) + r
        gather_past(every, index, own[k])
        # Only touched places are put back, which costs far less than the whole catalogue.
        for item in ids:
            index[item] = item


@njit(**FAST)
def _train_block(
    lo, hi, part, data, n_items, slots, pairs, keys, settings, user, table, shared, own, changed, weight, loss, seen
):
    """Clients lo:hi one after another; see `train_clients`."""
    clients, places, user_ptr = data.clients, data.places, data.user_ptr
    d, dtype = user.shape[1], table.dtype
    slot, order, slot_of, ids = drawing_space(data, lo, hi, slots, n_items)
    rows_most, size = len(ids) - 1, min(len(slot), settings.batch)
    # The last is for the vector's; without Adam, compiled code still needs an array of the same kind.
    moments = rows_most + 1 if settings.adam else 1
    part[:] = 0.0
    rows, space = row_space(table, own, changed, rows_most)
    touched, logits = np.empty(2 * size, dtype=np.uint32), np.empty(size, dtype=dtype)
    coef, grad = np.empty(rows_most, dtype=dtype), np.empty((1 + ROWS, d), dtype=dtype)
    first, second = np.empty((moments, d), dtype=dtype), np.empty((moments, d), dtype=dtype)
    start = np.empty((rows_most if settings.pull > 0.0 else 0, d), dtype=dtype)
    scratch = (order, touched, logits, coef, grad, first, second, start)
    for k in range(lo, hi):
        n_pos = user_ptr[places[k] + 1] - user_ptr[places[k]]
        mine, used = draw_client(data, k, keys.negatives, slots, n_items, slot, slot_of, ids)
        take_rows(rows, table[0 if shared else k], ids[:used])
        if n_pos > 0:
            loss[k], epochs = _train(
                user[k],
                rows,
                used,
                mine,
                n_pos,
                slots,
                pairs,
                fold(keys.order, np.uint64(clients[k])),
                settings,
                scratch,
            )
            seen[k] = epochs * n_pos * (slots if pairs else 1 + slots)
        leave_rows(rows, ids[:used], table, k, shared, own, changed, space, part, weight)


@njit(parallel=True, cache=True, **FAST)
def train_clients(
    data, n_items, slots, pairs, keys, settings, user, table, shared, own, changed, weight, blocks, total, loss, seen
):
    """Train clients of one user each by `arguments.FactorSettings`. `user` [clients, d] is updated in place.

    shared: `table` [1, items, d] is everybody's start, and `total` becomes the sum of weight * (own table - start);
    `own` [clients, items, d], unless it is empty, becomes each client's own table; with `changed`
    [clients, items] only the rows that training changed, which are marked: `own_tables.complete` writes the others.
    otherwise: `table` [clients, items, d] is updated in place. Clients blocks[b]:blocks[b + 1] form block b: a fixed
    division, so that the order of summation does not depend on the number of cores. `loss` and `seen` become each
    client's summed loss and the samples that it is from.
    """
    count, d = len(blocks) - 1, user.shape[1]
    # By block and not by core, or the order of summation would depend on the machine.
    parts = np.empty((count, n_items if shared else 0, d), dtype=table.dtype)  # of `total`, one per block
    for b in prange(count):
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
            user,
            table,
            shared,
            own,
            changed,
            weight,
            loss,
            seen,
        )
    for i in prange(len(total)):
        for f in range(d):
            # In double precision: the changes of single clients are small beside their sum.
            value = 0.0
            for b in range(count):
                value += parts[b, i, f]
            total[i, f] = value
