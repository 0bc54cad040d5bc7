"""How items lie to each other in a table: cosines of all pairs without ever holding all pairs.

With rows of length 1 in U, the cosines are U U'. Means of blocks of them are products of mean rows, and the sum of the
products of two such matrices is that of the squared entries of U'V, which is as small as the dimension.
"""

from __future__ import annotations

import torch
from torch import Tensor


def unit_rows(tables: Tensor) -> Tensor:
    """Rows of length 1 in float64; rows of zeros stay."""
    rows = tables.double()
    norm = rows.norm(dim=-1, keepdim=True)
    # A row of zeros has no direction; divided by 1 it stays zero instead of becoming NaN.
    return rows / torch.where(norm > 0, norm, torch.ones_like(norm))


def block_means(unit: Tensor, order: Tensor, cells: int) -> Tensor:
    """[cells, cells]: means of the cosines between runs of items, in this order. `unit` is one table."""
    rows = unit[order]
    owner = torch.arange(len(rows)) * cells // len(rows)
    total = torch.zeros(cells, rows.shape[1], dtype=rows.dtype).index_add_(0, owner, rows)
    middle = total / torch.bincount(owner, minlength=cells)[:, None]
    return middle @ middle.T


def structure_correlations(unit: Tensor) -> Tensor:
    """[clients, clients]: correlation over all pairs of different items between two clients' cosines."""
    clients, items, dim = unit.shape
    flat = unit.transpose(0, 1).reshape(items, clients * dim)
    inner = (flat.T @ flat).square().reshape(clients, dim, clients, dim).sum((1, 3))
    # The diagonal of U U', which says nothing.
    own = unit.square().sum(-1)
    pairs = items * (items - 1)
    product = (inner - own @ own.T) / pairs
    middle = (unit.sum(1).square().sum(-1) - own.sum(-1)) / pairs
    covariance = product - middle[:, None] * middle
    # Rounding can make a variance of zero slightly negative, which has no root.
    spread = covariance.diagonal().clamp(min=0).sqrt()
    scale = spread[:, None] * spread
    # Where nothing varies there is no correlation; the tiny floor keeps the unused branch free of divisions by zero.
    return torch.where(scale > 1e-12, covariance / scale.clamp(min=1e-300), torch.zeros_like(scale))


def mean_of_pairs(matrix: Tensor) -> float:
    """Over pairs of different clients."""
    count = len(matrix)
    above = torch.triu(torch.ones(count, count, dtype=torch.bool), 1)
    return float(matrix[above].mean()) if count > 1 else float("nan")


def principal_axes(points: Tensor, count: int = 2) -> tuple[Tensor, Tensor]:
    """Centre [d] and first axes [d, count] of the points; the largest entry of an axis is positive."""
    centre = points.double().mean(0)
    rows = points.double() - centre
    axes = torch.linalg.eigh(rows.T @ rows).eigenvectors.flip(1)[:, :count]
    # Axes are determined up to their sign; fixing it gives the same picture on every machine.
    sign = torch.sign(axes.gather(0, axes.abs().argmax(0, keepdim=True)))
    return centre, axes * sign
