"""A contrastive loss of one table with its gradient, compiled: similarities come tile by tile, in a near cache.

Single precision only. The exponential is a polynomial times a power of two whose bits are written down directly; a loop
of these becomes vector instructions, a call of the library's function would not.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from fedrec.kernels.bounds import TILE
from fedrec.kernels.mf import FAST
from fedrec.kernels.products import LANES, ROWS, add_products

SIZE = TILE * TILE

# A number plus ROUND has its nearest whole number in its last bits. Sums must keep their order for that.
STEADY = {"error_model": "numpy", "fastmath": {"contract", "nsz", "arcp"}}
ROUND = np.float32(3 << 22)
EXPONENT = np.int32(127 - int(ROUND.view(np.int32)))  # shifts those bits into the exponent of a float


@njit(**STEADY)
def _exp(tile, power, bits, shift, lowest):
    """exp(max(tile - shift, lowest)) in place, for exponents up to 0; `bits` are those of `power`, which is scratch."""
    f = np.float32
    for j in range(SIZE):
        x = tile[j] - shift
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
        tile[j] = y * x * x + x + f(1)
    for j in range(SIZE):
        bits[j] = np.int32(bits[j] + EXPONENT) << np.int32(23)
    for j in range(SIZE):
        tile[j] *= power[j]


@njit(**FAST)
def _sums(tile, by_row, by_column):
    """Added to what is there; four rows at a time make a column's sum, which would wait for each of them."""
    for i in range(TILE):
        by_row[i] += tile[i * TILE : (i + 1) * TILE].sum()
    for i in range(0, SIZE, 4 * TILE):
        for j in range(i, i + TILE):
            by_column[j - i] += (tile[j] + tile[j + TILE]) + (tile[j + 2 * TILE] + tile[j + 3 * TILE])


@njit(**FAST)
def _weigh(tile, mine, other):
    """tile[i, j] *= mine[i] + other[j]."""
    for i in range(TILE):
        by = mine[i]
        for j in range(TILE):
            tile[i * TILE + j] *= by + other[j]


@njit(**FAST)
def _clear(tile, rows, columns, itself):
    """0 beyond the last row and column, and where rows meet themselves."""
    for i in range(TILE):
        for j in range(columns if i < rows else 0, TILE):
            tile[i * TILE + j] = 0.0
    if itself:
        for i in range(TILE):
            tile[i * TILE + i] = 0.0


@njit(**FAST)
def _directions(table, scale):
    """Normalised rows one after another, (times `scale`) the columns of every tile's rows, and norms.

    Rows and tiles are filled up with zeros.
    """
    f, (items, d) = np.float32, table.shape
    tiles, width = (items + TILE - 1) // TILE, (d + LANES - 1) // LANES * LANES
    rows, columns, norms = np.zeros(tiles * TILE * width, f), np.zeros(tiles * d * TILE, f), np.empty(items, f)
    for i in range(items):
        square = f(0)
        for j in range(d):
            square += table[i, j] * table[i, j]
        norms[i] = max(np.sqrt(square), f(1e-12))
        for j in range(d):
            value = table[i, j] / norms[i]
            rows[i * width + j] = value
            columns[(i // TILE * d + j) * TILE + i % TILE] = value * scale
    return rows, columns, norms, width


@njit(**FAST)
def _multiply(tile, rows, first, width, columns, begin, d):
    """Similarities of the rows from `first` on and of those whose columns are from `begin` on."""
    tile[:] = 0.0
    for j in range(0, TILE, LANES):
        for i in range(0, TILE, ROWS):
            add_products(tile, i * TILE + j, TILE, rows, (first + i) * width, width, 1, columns, begin + j, TILE, d)


@njit(**FAST)
def _spread(tile, pull, mine, other, rows, width):
    """Add the tile's weighted sums of the rows from `other` on to those of `mine`, and the other way round."""
    for f in range(0, width, LANES):
        for i in range(0, TILE, ROWS):
            add_products(pull, (mine + i) * width + f, width, tile, i * TILE, TILE, 1, rows, other * width + f, width,
                         TILE)  # fmt: skip
        if mine != other:
            for i in range(0, TILE, ROWS):
                add_products(pull, (other + i) * width + f, width, tile, i, 1, TILE, rows, mine * width + f, width,
                             TILE)  # fmt: skip


@njit(**FAST)
def _repel(rows, columns, width, weight, steep, floor, lowest, space, pull):
    """Add the gradient of weighted logarithms of sums to `pull`, as `repulsion.py` says; returns their sum."""
    f, items = np.float32, len(weight)
    d = len(columns) // (len(rows) // width)
    total, by = np.zeros(len(rows) // width, f), np.zeros(len(rows) // width, f)
    bits, unused = np.empty(SIZE, dtype=np.int32), np.empty(TILE, f)
    power, at, found = bits.view(np.float32), 0, 0.0
    for mine in range(0, items, TILE):
        for other in range(mine, items, TILE):
            tile = space[at : at + SIZE]
            at += SIZE
            _multiply(tile, rows, mine, width, columns, other * d, d)
            _exp(tile, power, bits, steep, lowest)
            _clear(tile, items - mine, items - other, mine == other)
            _sums(tile, total[mine:], unused if mine == other else total[other:])
    for i in range(items):
        if weight[i] > 0:  # otherwise the sum may be empty
            by[i] = weight[i] / (total[i] + floor)
            found += weight[i] * (np.log(total[i] + floor) + steep)
    at = 0
    for mine in range(0, items, TILE):
        for other in range(mine, items, TILE):
            tile = space[at : at + SIZE]
            at += SIZE
            _weigh(tile, by[mine:], by[other:])
            _spread(tile, pull, mine, other, rows, width)
    return found


@njit(nogil=True, cache=True, **FAST)
def contrast(table, labels, share, weight, steep, floor, lowest, scale, space, out):
    """The loss of one table, by `methods/cluster/contrast.py`; its gradient into `out`.

    table [items, d]; share, weight: of each item; steep: 1 / tau; lowest: of exponents; scale: of the loss;
    space: room for all tiles on and above the diagonal.
    """
    f, (items, d) = np.float32, table.shape
    rows, columns, norms, width = _directions(table, f(steep))
    pull, sums, alike = np.zeros_like(rows), np.zeros((labels.max() + 1, d), f), 0.0
    for i in range(items):
        for j in range(d):
            sums[labels[i], j] += rows[i * width + j]
    log_sum = _repel(rows, columns, width, weight, f(steep), f(floor), f(lowest), space, pull)
    for i in range(items):
        z, slope, friends = rows[i * width : i * width + d], pull[i * width : i * width + d], sums[labels[i]]
        two, along, near = f(2) * share[i], f(0), f(0)
        for j in range(d):
            friend = friends[j] - z[j]
            near += z[j] * friend
            slope[j] -= two * friend
            along += slope[j] * z[j]
        alike += share[i] * near
        by = f(scale * steep) / norms[i]
        for j in range(d):
            out[i, j] = by * (slope[j] - along * z[j])
    return scale * (log_sum - steep * alike)
