"""The repulsion of a contrastive loss on an accelerator: similarities are formed twice and never kept.

A program has some rows of one client's table and goes through all others in one order, so that a run repeats bit by
bit. First come the sums of exponentials, by which a second pass weighs the same exponentials.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

ROWS, COLUMNS = 128, 64  # of a tile of similarities
WARPS = 4
PRECISION = "tf32x3"  # as exact as single precision


@triton.jit
def _rows_of(z, first, items, d, ROWS: tl.constexpr, FACTORS: tl.constexpr):
    row, factor = first + tl.arange(0, ROWS), tl.arange(0, FACTORS)
    there = (row < items)[:, None] & (factor < d)[None, :]
    return row, tl.load(z + row[:, None] * d + factor[None, :], mask=there, other=0.0)


@triton.jit
def _exponentials(row, mine, column, other, items, steep, least, PRECISION: tl.constexpr):
    """exp((z_i.z_a - 1) / tau) of a tile, held above underflow; 0 where rows meet themselves."""
    # Plain tf32 has 10 bits, and a steep exponential multiplies that error.
    alike = tl.dot(mine, tl.trans(other), input_precision=PRECISION, out_dtype=mine.dtype)
    e = tl.exp(tl.maximum((alike - 1.0) * steep, least))
    return tl.where((row[:, None] != column[None, :]) & (column < items)[None, :], e, 0.0)


@triton.jit
def _sum(
    z,
    total,
    items,
    d,
    steep,
    least,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    FACTORS: tl.constexpr,
    PRECISION: tl.constexpr,
):
    client = tl.program_id(1).to(tl.int64)
    z += client * items * d
    row, mine = _rows_of(z, tl.program_id(0) * ROWS, items, d, ROWS, FACTORS)
    found = tl.zeros([ROWS], mine.dtype)
    for start in range(0, items, COLUMNS):
        column, other = _rows_of(z, start, items, d, COLUMNS, FACTORS)
        found += tl.sum(_exponentials(row, mine, column, other, items, steep, least, PRECISION), 1)
    tl.store(total + client * items + row, found, mask=row < items)


@triton.jit
def _weigh(
    z,
    by,
    pull,
    items,
    d,
    steep,
    least,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    FACTORS: tl.constexpr,
    PRECISION: tl.constexpr,
):
    client = tl.program_id(1).to(tl.int64)
    z += client * items * d
    by += client * items
    row, mine = _rows_of(z, tl.program_id(0) * ROWS, items, d, ROWS, FACTORS)
    weight = tl.load(by + row, mask=row < items, other=0.0)
    found = tl.zeros([ROWS, FACTORS], mine.dtype)
    for start in range(0, items, COLUMNS):
        column, other = _rows_of(z, start, items, d, COLUMNS, FACTORS)
        e = _exponentials(row, mine, column, other, items, steep, least, PRECISION)
        e *= weight[:, None] + tl.load(by + column, mask=column < items, other=0.0)[None, :]
        found = tl.dot(e, other, found, input_precision=PRECISION, out_dtype=mine.dtype)
    factor = tl.arange(0, FACTORS)
    there = (row < items)[:, None] & (factor < d)[None, :]
    tl.store(pull + client * items * d + row[:, None] * d + factor[None, :], found, mask=there)


def repulsion(z: Tensor, weight: Tensor, steep: float, floor: float, least: float) -> tuple[Tensor, Tensor]:
    """For rows z [clients, items, d] of length 1: log D [clients, items], and how they are pushed apart, as z.

    With E_ia = exp((z_i.z_a - 1) * steep) for a != i, at least exp(least), and D_i = sum_a E_ia + floor, row i is
    pushed by sum_a E_ia (w_i / D_i + w_a / D_a) z_a. D is 1 for a row without weight.
    """
    clients, items, d = z.shape
    z, total, pull = z.contiguous(), z.new_empty(z.shape[:2]), torch.empty_like(z)
    grid = (triton.cdiv(items, ROWS), clients)
    shape = {
        "ROWS": ROWS,
        "COLUMNS": COLUMNS,
        # A dot product of tiles needs at least 16 numbers a side.
        "FACTORS": max(16, triton.next_power_of_2(d)),
        "PRECISION": PRECISION,
        "num_warps": WARPS,
    }
    _sum[grid](z, total, items, d, steep, least, **shape)
    # A row without weight may have no sum: 1 keeps its logarithm and its quotient finite.
    total = torch.where(weight > 0, total + floor, torch.ones_like(total))
    _weigh[grid](z, weight / total, pull, items, d, steep, least, **shape)
    return total.log(), pull
