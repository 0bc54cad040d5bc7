"""One step of a scorer of item rows, compiled: its logits, the slopes of the rows, and how what is private moves.

A logit is weight1 . relu(weight0 [user; row] + bias0) + bias1, or without a hidden layer weight1 . row + bias1.
Gradients of the former have the factor "this unit is active for this sample", zeros and ones: both products of the
backward pass are sums of chosen rows (`subsets.py`), over the units that are active for any sample of the batch.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import njit

from fedrec.kernels.linear import write_saturated_slopes
from fedrec.kernels.mf import EXACT, FAST, bce_slopes
from fedrec.kernels.products import ROWS, add_products, transpose
from fedrec.kernels.subsets import GROUP, NEAR, SUBSETS, add_chosen_sums, near_space
from fedrec.kernels.vectors import LANES


class Space(NamedTuple):
    """What a batch is worked on in. Matrices lie in one run; the rows of most are filled up to `width` numbers."""

    width: int
    weight: np.ndarray  # [hidden, width]: what the first layer does to items
    x: np.ndarray  # [samples, width]
    across: np.ndarray  # the same, transposed in tiles of LANES samples
    z: np.ndarray  # [hidden, samples], before the ReLU
    mask: np.ndarray  # [active units, samples]
    choice: np.ndarray
    sums: np.ndarray
    slopes: np.ndarray  # [samples, width]: of the logits by the rows
    turned: np.ndarray  # [active units, width]: gradient of `weight`, without the second layer's
    units: np.ndarray  # which are active
    logits: np.ndarray
    e: np.ndarray  # dloss/dlogit
    places: np.ndarray
    factors: np.ndarray
    user: np.ndarray  # gradient of the user's vector


@njit(**EXACT)
def round_up(size, to):
    return (size + to - 1) // to * to


@njit(**EXACT)
def scoring_space(samples, hidden, d, dtype):
    """For batches of up to so many samples."""
    wide, tall, width = round_up(samples, LANES), round_up(hidden, ROWS), round_up(d, LANES)
    weight, x = near_space(tall * width, dtype), near_space(wide * width, dtype)
    # what fills rows up to whole vectors is zero and stays so: products may run over it
    weight[:] = 0.0
    x[:] = 0.0
    longest = max(wide, tall)
    return Space(
        width,
        weight,
        x,
        near_space(wide * width, dtype),
        near_space(tall * wide, dtype),
        np.empty(tall * wide, np.uint8),
        np.empty(tall * wide, np.uint8),
        near_space(NEAR * SUBSETS * LANES, dtype),
        near_space(wide * width, dtype),
        near_space(tall * width, dtype),
        np.empty(tall, np.int64),
        np.empty(wide, dtype),
        np.empty(wide, dtype),
        np.empty(longest, np.int64),
        np.empty(longest, dtype),
        np.empty(d, dtype),
    )


@njit(**EXACT)
def row_of(run, number, width, length):
    """The beginning of a row of a matrix that lies in one run."""
    return run[number * width : number * width + length]


@njit(**EXACT)
def _transpose(space, samples):
    width = space.width
    for t in range(0, samples, LANES):
        for f in range(0, width, LANES):
            transpose(space.across, t * width + f * LANES, LANES, space.x, t * width + f, width)


@njit(**FAST)
def _hidden(space, user, weight0, bias0, samples):
    """z = weight0 [user; row] + bias0, a column for every sample."""
    d, (z, weight, across) = len(user), (space.z, space.weight, space.across)
    for o in range(round_up(len(bias0), ROWS)):
        total = z.dtype.type(0)
        if o < len(bias0):
            total = bias0[o]
            for f in range(d):
                total += weight0[o, f] * user[f]
        z[o * samples : (o + 1) * samples] = total
    for t in range(0, samples, LANES):
        for o in range(0, len(bias0), ROWS):
            add_products(
                z, o * samples + t, samples, weight, o * space.width, space.width, 1, across, t * space.width, LANES, d
            )


@njit(**FAST)
def _score(space, weight1, bias1, samples, hidden):
    """The logits of a batch, from its hidden layer or from its rows."""
    logits, none = space.logits, weight1.dtype.type(0)
    logits[:samples] = bias1
    for o in range(hidden):
        z, by = row_of(space.z, o, samples, samples), weight1[o]
        for t in range(samples):
            # NaN stays NaN, which max() does not promise: a diverged run must show.
            logits[t] += by * (none if z[t] < none else z[t])
    for t in range(0 if hidden else samples):
        x, total = row_of(space.x, t, space.width, len(weight1)), none
        for f in range(len(weight1)):
            total += weight1[f] * x[f]
        logits[t] += total


@njit(**FAST)
def _slopes(space, now, n_pos, size, saturate, samples):
    """dloss/dlogit of the mean over `size` samples; returns the summed loss."""
    logits, by = space.logits[: len(now)], space.e.dtype.type(1.0 / size)
    loss = write_saturated_slopes(now, n_pos, logits) if saturate else bce_slopes(now, n_pos, logits)
    # samples that fill up the last tile have no slope, so that they add nothing to any gradient
    space.e[:samples] = 0.0
    for t in range(len(now)):
        space.e[t] = by * logits[t]
    return loss


@njit(**EXACT)
def _activity(space, hidden, samples):
    """Which units are active for any sample, and for which; returns how many, filled up to a multiple of ROWS."""
    count = 0
    for o in range(hidden):
        z, mask, found = row_of(space.z, o, samples, samples), row_of(space.mask, count, samples, samples), np.uint8(0)
        # two loops, each of which becomes vector instructions: one that does both would not
        for t in range(samples):
            mask[t] = z[t] > 0.0
        for t in range(samples):
            found |= mask[t]
        # written always, kept only if the unit is active: no branch on what the data say
        space.units[count] = o
        count += found
    full = round_up(count, ROWS)
    space.mask[count * samples : full * samples] = 0
    space.units[count:full] = -1
    return full


@njit(**FAST)
def _row_slopes(space, weight1, samples, d, hidden, active):
    """What a logit gains with its row: into `slopes`, without the factor e."""
    slopes, width = space.slopes, space.width
    if not hidden:
        for t in range(samples):
            slopes[t * width : t * width + d] = weight1
        return
    slopes[: samples * width] = 0.0
    mask, choice = space.mask, space.choice
    for j in range(active):
        o = space.units[j]
        space.places[j], space.factors[j] = max(o, 0) * width, weight1[o] if o >= 0 else 0.0
    for g in range(active // GROUP):
        four = mask[g * GROUP * samples : (g + 1) * GROUP * samples].reshape(GROUP, samples)
        for t in range(samples):
            choice[g * samples + t] = four[0, t] | four[1, t] << 1 | four[2, t] << 2 | four[3, t] << 3
    add_chosen_sums(slopes, width, samples, space.weight, space.places[:active], space.factors, choice, space.sums)


@njit(**FAST)
def _turn(space, samples, active):
    """The gradient of `weight`, without the second layer's factor: into `turned`."""
    turned, width, mask, choice, groups = space.turned, space.width, space.mask, space.choice, samples // GROUP
    turned[: active * width] = 0.0
    for t in range(samples):
        space.places[t] = t * width
    for j in range(active):
        for g in range(groups):
            four = mask[j * samples + g * GROUP : j * samples + (g + 1) * GROUP]
            choice[g * active + j] = four[0] | four[1] << 1 | four[2] << 2 | four[3] << 3
    add_chosen_sums(turned, width, active, space.x, space.places[:samples], space.e, choice, space.sums)


@njit(**FAST)
def _move_network(space, user, weight0, bias0, weight1, rate, rate_user, samples, active):
    """One step of everything below the logit that is private."""
    d, width, real, e = len(user), space.width, user.dtype.type, space.e
    by, gradient = real(rate), space.user
    gradient[:] = 0.0
    for j in range(active):
        o = space.units[j]
        # What fills up the last group comes last.
        if o < 0:
            break
        total, second, z = real(0), real(0), row_of(space.z, o, samples, samples)
        for t in range(samples):
            total += e[t] if z[t] > 0.0 else real(0)
            second += e[t] * z[t] if z[t] > 0.0 else real(0)
        total *= weight1[o]
        step, inner, of_user = by * total, by * weight1[o], weight0[o]
        of_items, turned = row_of(space.weight, o, width, d), row_of(space.turned, j, width, d)
        # The gradient of the user's vector is by the weights before they move.
        for f in range(d):
            gradient[f] += total * of_user[f]
            of_user[f] -= step * user[f]
        for f in range(d):
            of_items[f] -= inner * turned[f]
        bias0[o] -= step
        weight1[o] -= by * second
    by = real(rate_user)
    for f in range(d):
        user[f] -= by * gradient[f]


@njit(**FAST)
def _move_head(space, weight1, rate, samples):
    gradient = space.user
    gradient[:] = 0.0
    for t in range(samples):
        x, by = row_of(space.x, t, space.width, len(weight1)), space.e[t]
        for f in range(len(weight1)):
            gradient[f] += by * x[f]
    by = weight1.dtype.type(rate)
    for f in range(len(weight1)):
        weight1[f] -= by * gradient[f]


@njit(**FAST)
def _move_private(space, mine, settings, samples, active):
    user, weight0, bias0, weight1, bias1 = mine
    if len(bias0):
        _turn(space, samples, active)
        _move_network(space, user, weight0, bias0, weight1, settings.rate_dense, settings.rate_user, samples, active)
    else:
        _move_head(space, weight1, settings.rate_dense, samples)
    bias1[0] -= bias1.dtype.type(settings.rate_dense) * space.e[:samples].sum()


@njit(**FAST)
def descend(space, mine, now, n_pos, size, settings):
    """One step of what is private, and the slopes of the rows for theirs; returns the summed loss before it."""
    user, weight0, bias0, weight1, bias1 = mine
    hidden, samples, loss, active = len(bias0), round_up(len(now), LANES), 0.0, 0
    # The rows do not move between the phases, so they are transposed once for both.
    if hidden:
        _transpose(space, samples)
    for phase in range(2 if settings.in_turn else 1):
        if hidden:
            _hidden(space, user, weight0, bias0, samples)
            active = _activity(space, hidden, samples)
        _score(space, weight1, bias1[0], samples, hidden)
        found = _slopes(space, now, n_pos, size, settings.saturate, samples)
        # Where the private part moves first, rows go by what it is afterwards.
        if phase > 0 or not settings.in_turn:
            _row_slopes(space, weight1, samples, len(space.user), hidden, active)
        if phase == 0:
            _move_private(space, mine, settings, samples, active)
            loss = found
    return loss


@njit(**EXACT)
def take_weight(space, weight0, d):
    """What the first layer does to items, copied to where it is worked on."""
    for o in range(len(weight0)):
        held, of_items = row_of(space.weight, o, space.width, d), weight0[o, d:]
        for f in range(d):
            held[f] = of_items[f]


@njit(**EXACT)
def store_weight(space, weight0, d):
    for o in range(len(weight0)):
        held, of_items = row_of(space.weight, o, space.width, d), weight0[o, d:]
        for f in range(d):
            of_items[f] = held[f]
