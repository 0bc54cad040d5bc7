"""The elementwise part between matrix products, compiled: two passes over a block of similarities, one over the table.

Single precision only. The exponential is a polynomial times a power of two whose bits are written down directly; a loop
of these becomes vector instructions, a call of the library's function would not.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from fedrec.kernels.mf import FAST

# A number plus ROUND has its nearest whole number in its last bits. Sums must keep their order for that.
STEADY = {"error_model": "numpy", "fastmath": {"contract", "nsz", "arcp"}}
ROUND = np.float32(3 << 22)
EXPONENT = np.int32(127 - int(ROUND.view(np.int32)))  # shifts those bits into the exponent of a float


@njit(**STEADY)
def _exp(row, power, bits, shift, lowest):
    """exp(max(row - shift, lowest)) as row * power, for exponents up to 0; `bits` are those of `power`."""
    f = np.float32
    for j in range(len(row)):
        x = row[j] - shift
        x = lowest if x < lowest else x
        rounded = x * f(1.44269504) + ROUND
        power[j] = rounded
        whole = rounded - ROUND
        x = (x - whole * f(0.693359375)) + whole * f(2.12194440e-4)  # ln 2 in two parts: the difference is exact
        y = f(1.9875691500e-4)
        y = y * x + f(1.3981999507e-3)
        y = y * x + f(8.3334519073e-3)
        y = y * x + f(4.1665795894e-2)
        y = y * x + f(1.6666665459e-1)
        y = y * x + f(5.0000001201e-1)
        row[j] = y * x * x + x + f(1)
    for j in range(len(row)):
        bits[j] = np.int32(bits[j] + EXPONENT) << np.int32(23)


@njit(**FAST)
def _multiply(row, power):
    """In place; returns the sum."""
    total = np.float32(0)
    for j in range(len(row)):
        value = row[j] * power[j]
        row[j] = value
        total += value
    return total


@njit(**FAST)
def _add(total, row):
    for j in range(len(row)):
        total[j] += row[j]


@njit(nogil=True, cache=True, **FAST)
def exponentials(block, shift, lowest, total):
    """exp(max(block - shift, lowest)) in place for exponents up to 0, and 0 on the diagonal.

    Row i of the block is item i, column j item j: rows are added to total[i], columns beyond the square to total[j].
    """
    f, rows = np.float32, block.shape[0]
    bits = np.empty(block.shape[1], dtype=np.int32)
    power = bits.view(np.float32)
    for i in range(rows):
        row = block[i]
        row[i] = -np.inf  # subtracting exp(0) from the sum afterwards would lose precision
        _exp(row, power, bits, f(shift), f(lowest))
        total[i] += _multiply(row, power) - row[i]
        row[i] = f(0)
        _add(total[rows:], row[rows:])


@njit(nogil=True, cache=True, **FAST)
def weigh(block, by):
    """block[i, j] *= by[i] + by[j]."""
    for i in range(block.shape[0]):
        row, mine = block[i], by[i]
        for j in range(block.shape[1]):
            row[j] *= mine + by[j]


@njit(nogil=True, cache=True, **FAST)
def slopes(z, friends, share, repulsion, norm, scale, out):
    """The slope by every row, from that by its direction z; returns the sum of share * z.friends."""
    f, similar = np.float32, 0.0
    for i in range(len(z)):
        two, along, near = f(2) * share[i], f(0), f(0)
        for j in range(z.shape[1]):
            slope = repulsion[i, j] - two * friends[i, j]
            out[i, j] = slope
            along += slope * z[i, j]
            near += z[i, j] * friends[i, j]
        similar += share[i] * near
        by = f(scale) / norm[i]
        for j in range(z.shape[1]):
            out[i, j] = by * (out[i, j] - along * z[i, j])
    return similar
