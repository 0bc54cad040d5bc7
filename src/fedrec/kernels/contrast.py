"""A contrastive loss of one table with its gradient, compiled: similarities come tile by tile, in a near cache.

Single precision only. Similarities are symmetric: a tile of two blocks of rows is computed once and serves both. Rows
are scaled so that the product of two is the exponent of a power of two.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from fedrec.kernels.bounds import TILE
from fedrec.kernels.contrast_products import (
    BESIDE,
    HELD,
    TALL,
    WINOGRAD,
    add_both,
    add_sums,
    attract,
    set_powers,
    square_of,
)
from fedrec.kernels.mf import FAST
from fedrec.kernels.products import ROWS, add_products, transpose
from fedrec.kernels.vectors import LANES

SIZE = TILE * TILE
# a function that says nothing of this takes it from its caller
STEADY = FAST | {"fastmath": False}  # sums of vectors keep their order
# x / x is 1, so that nothing is across to a row of one number.
DIVIDED = FAST | {"fastmath": {"contract", "nsz"}}
LOG2_E = np.float32(np.log2(np.e))


@njit(**FAST)
def aligned_zeros(count):
    """Zeros whose vectors lie in one line of the cache each."""
    # A vector across two lines of the cache would cost two reads.
    room = np.zeros(count + LANES, np.float32)
    skip = -(room.ctypes.data // room.itemsize) % LANES
    return room[skip : skip + count]


@njit(**FAST)
def contrast_space(items, d, tiles):
    """Room for one table at a time; `tiles` for all tiles on and above the diagonal."""
    # Filled up with zeros, so that products always run over whole tiles and vectors.
    height, width = (items + TILE - 1) // TILE * TILE, (d + LANES - 1) // LANES * LANES
    rows, columns, pull = aligned_zeros(height * width), aligned_zeros(height * width), aligned_zeros(height * width)
    own, more, total, weights = (
        aligned_zeros(height),
        aligned_zeros(height),
        aligned_zeros(height),
        aligned_zeros(height),
    )
    return rows, columns, own, more, np.empty(items, np.float32), pull, total, weights, tiles


@njit(**FAST)
def _copy(row, out):
    """As an assignment, but at once."""
    for j in range(len(row)):
        out[j] = row[j]


@njit(**FAST)
def _scale(row, by):
    for j in range(len(row)):
        row[j] *= by


@njit(**STEADY)
def _directions(table, steep, width, rows, norms):
    """Scaled directions, filled up with zeros, and norms."""
    # The root on both sides gives every product its factor once.
    f, (items, d), root = np.float32, table.shape, np.sqrt(steep * LOG2_E)
    for i in range(items):
        _copy(table[i], rows[i * width : i * width + d])
    for i in range(items):
        # The least divisor of torch.nn.functional.normalize, for rows of zeros.
        norms[i] = max(np.sqrt(square_of(rows, i * width, width)), f(1e-12))
        _scale(rows[i * width : (i + 1) * width], root / norms[i])


@njit(**STEADY)
def _set_columns(rows, width, columns):
    """Rows as the columns of every tile's rows."""
    for i in range(0, len(rows) // width, LANES):
        for k in range(0, width, LANES):
            transpose(columns, (i // TILE * width + k) * TILE + i % TILE, TILE, rows, i * width + k, width)


@njit(**FAST)
def set_pairs(columns, own):
    """What dot products by `set_powers` have to be freed of: - x_0 x_1 of all pairs in Winograd's identity."""
    width = len(columns) // len(own)
    own[:] = np.float32(0)
    for tile in range(0, len(own), TILE):
        for k in range(0, width, LANES):
            for pair in range(WINOGRAD):
                at = tile * width + (k + 2 * pair) * TILE
                _take_products(columns[at : at + TILE], columns[at + TILE : at + 2 * TILE], own[tile : tile + TILE])


@njit(**FAST)
def _take_products(left, right, out):
    for i in range(TILE):
        out[i] -= left[i] * right[i]


@njit(**STEADY)
def _compare(tile, columns, own, more, mine, other, items, lowest):
    """Exponentials of similarities of the rows from `mine` and from `other` on; 0 where rows meet themselves."""
    width, tall, wide = len(columns) // len(own), min(TILE, items - mine), min(TILE, items - other)
    for j in range(0, wide, BESIDE * LANES):
        for i in range(0, tall, TALL):
            set_powers(
                tile,
                i * TILE + j,
                columns,
                mine * width + i,
                other * width + j,
                own,
                mine + i,
                more,
                other + j,
                lowest,
                width,
            )
    # What fills up the last tile has similarity 0, whose power no sum may contain.
    if wide < TILE:
        for i in range(TILE):
            for j in range(wide if i < tall else 0, TILE):
                tile[i * TILE + j] = 0.0
    # A row is repelled by all others, not by itself.
    if mine == other:
        for i in range(TILE):
            tile[i * TILE + i] = 0.0


@njit(**STEADY)
def _sums(tile, by_row, by_column, at):
    add_sums(by_row, by_column, at, tile)


@njit(**FAST)
def _weigh(tile, mine, other, out):
    """out[i, j] = tile[i, j] * (mine[i] + other[j])."""
    for i in range(TILE):
        by = mine[i]
        for j in range(TILE):
            out[i * TILE + j] = tile[i * TILE + j] * (by + other[j])


@njit(**STEADY)
def _spread(tile, pull, rows, width, mine, other, items):
    """Add the tile's weighted sums of the rows from `other` on to those of `mine`, and the other way round."""
    tall, wide = min(TILE, items - mine), min(TILE, items - other)
    if mine == other:
        for i in range(0, tall, ROWS):
            for f in range(0, width, LANES):
                here, there = (mine + i) * width + f, other * width + f
                add_products(pull, here, width, tile, i * TILE, TILE, 1, rows, there, width, wide)
        return
    two = 2 * LANES
    paired = width // two * two
    for f in range(0, paired, two):
        for i in range(0, tall, HELD // 2):
            add_both(pull, (mine + i) * width + f, other * width + f, width, rows, tile, i * TILE, wide, 2)
    if paired < width:
        for i in range(0, tall, HELD):
            add_both(pull, (mine + i) * width + paired, other * width + paired, width, rows, tile, i * TILE, wide, 1)


@njit(**FAST)
def _repel(rows, columns, own, more, weight, steep, floor, lowest, pull, total, by, tiles):
    """The gradient of weighted logarithms of sums into `pull`, as `repulsion.py` says; returns their sum.

    To every row of the gradient a multiple of its own direction may be added.
    """
    f, items, width, at, found = np.float32, len(weight), len(rows) // len(own), 0, 0.0
    unused, parts, weighed = aligned_zeros(TILE), aligned_zeros(TILE * LANES), aligned_zeros(SIZE)
    _set_columns(rows, width, columns)
    set_pairs(columns, own)
    for i in range(len(own)):
        # Exponents are measured from a row's similarity to itself, so that none of them overflows.
        more[i] = own[i] - steep * LOG2_E
    pull[:], total[:], by[:] = f(0), f(0), f(0)
    for mine in range(0, items, TILE):
        parts[:] = f(0)
        for other in range(mine, items, TILE):
            tile = tiles[at : at + SIZE]
            at += SIZE
            _compare(tile, columns, own, more, mine, other, items, lowest * LOG2_E)
            # A tile on the diagonal is its own mirror image: sums of its columns would count it twice.
            if mine == other:
                _sums(tile, parts, unused, 0)
            else:
                _sums(tile, parts, total, other)
        for i in range(TILE):
            total[mine + i] += parts[i * LANES : (i + 1) * LANES].sum()
    for i in range(items):
        # Without others of its label the sum may be empty, and its logarithm infinite.
        if weight[i] > 0:
            by[i] = weight[i] / (total[i] + floor)
            found += weight[i] * (np.log(total[i] + floor) + steep)
    # The weights need the sums of all tiles, so tiles are kept and gone through again.
    at = 0
    for mine in range(0, items, TILE):
        for other in range(mine, items, TILE):
            tile = tiles[at : at + SIZE]
            at += SIZE
            _weigh(tile, by[mine:], by[other:], weighed)
            _spread(weighed, pull, rows, width, mine, other, items)
    return found


@njit(**DIVIDED)
def _divide(row, norm, out):
    for j in range(len(row)):
        out[j] = row[j] / norm


@njit(**FAST)
def _gather(rows, width, labels, out):
    """Sums of rows by label."""
    out[:] = np.float32(0)
    for i in range(len(labels)):
        into, row = out[labels[i] * width : (labels[i] + 1) * width], rows[i * width : (i + 1) * width]
        for j in range(width):
            into[j] += row[j]


@njit(**STEADY)
def _attract(pull, rows, at, friends, mates, share, directions, by, width):
    return attract(pull, rows, at, friends, mates, np.float32(2) * share, directions, by, width)


@njit(**FAST)
def evaluate(table, terms, space, out):
    """The loss of one table [items, d], by `arguments.ContrastTerms`; its gradient into `out`."""
    f, (items, d) = np.float32, table.shape
    rows, columns, own, more, norms, pull, total, weights, tiles = space
    steep, labels, share, width = f(terms.steep), terms.labels, terms.share, len(rows) // len(own)
    _directions(table, steep, width, rows, norms)
    log_sum = _repel(
        rows, columns, own, more, terms.weight, steep, f(terms.floor), f(terms.lowest), pull, total, weights, tiles
    )
    friends, square, alike = aligned_zeros(terms.clusters * width), steep * LOG2_E, 0.0
    _gather(rows, width, labels, friends)
    factor = f(terms.scale) * steep / np.sqrt(square)
    for i in range(items):
        at = i * width
        # What the columns were for is done, so their room is free.
        _divide(table[i], norms[i], columns[at : at + d])
        alike += share[i] * _attract(
            pull, rows, at, friends, labels[i] * width, share[i], columns, factor / norms[i], width
        )
        _copy(pull[at : at + d], out[i])
    return terms.scale * (log_sum - steep * (alike / square))


@njit(nogil=True, cache=True, **FAST)
def contrast(table, terms, tiles, out):
    """`evaluate`, with room for all tiles on and above the diagonal."""
    return evaluate(table, terms, contrast_space(table.shape[0], table.shape[1], tiles), out)


def products(table, *_):
    """Operations in the products of `contrast`: similarities once for two rows, weighted sums for each of them."""
    items, d = table.shape
    return 3 * items * items * d
