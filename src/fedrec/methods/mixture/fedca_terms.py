"""The terms of FedCA's weights (equation 5): how alike clients are, and how they complement each other.

Pure functions of tensors. The leading axis of a stack is the client. Whole tables are multiplied in their own type,
everything else is float64 whatever comes in.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

import numpy as np
import torch
from torch import Tensor

from fedrec import method as fm
from fedrec.methods.mixture.aggregation import block_on, blocks_of, square_distances
from fedrec.training.compiled import sample_moments, to_device
from fedrec.training.descent import threads_for
from fedrec.training.samples import negatives

RANK = 1e-6  # singular values below this part of the largest count as zero
ROUNDING = 1e-12  # and so do those that centring rows leaves where nothing should be left

Rows = Callable[[Tensor, Tensor, Tensor], Tensor]
"""From rows of some clients [clients, rows, d], which of them are real [clients, rows, 1] and how many [clients, 1]."""


def similarity(tables: Tensor | fm.Stack) -> Tensor:
    """s_uv = 1 / (1 + |Q_u - Q_v|^2) (6), in (0, 1], 1 on the diagonal."""
    return square_distances(tables).add_(1).reciprocal_()


def complementarity(pictures: Tensor) -> Tensor:
    """c_uv of equation 7: the cosine of the mean angle between X_u and X_v, which is 0 for u = v."""
    return mean_angles(pictures, greedy_pairs).cos()


# -- pictures: X_u [clients, k, d] --


def sampled_axes(tables: Tensor, chunk: fm.Chunk, round: int, k: int) -> Tensor:
    """Return the first k principal axes of the rows of every client's samples; those beyond the rank are zero."""
    moments = sample_moments(chunk, round, tables)
    if moments is None:
        return represent_rows(tables, *sampled_items(chunk, round), (k, tables.shape[-1]), first_axes(k))
    # many small steps: a second thread would only be waited for
    with threads_for(0):
        # Axes come from the scatter, [d, d], so that the rows of the samples are never laid out.
        axes = principal_axes(*moments, k)
    return torch.nn.functional.pad(axes, (0, 0, 0, k - axes.shape[1])).to(tables.dtype)


def sampled_items(chunk: fm.Chunk, round: int) -> tuple[Tensor, np.ndarray]:
    """Return the items of every client's samples of a round, client after client, and how many each has."""
    items, client = chunk.world.items, np.repeat(np.arange(len(chunk.clients)), chunk.positives)
    drawn = chunk.tensor(client * items)[:, None] + negatives(chunk, round)
    both = torch.cat([chunk.tensor(client * items + chunk.items), drawn.flatten()])
    return both.sort().values % items, chunk.positives * (1 + chunk.data.negatives)


def represent_rows(tables: Tensor, items: Tensor, counts: np.ndarray, shape: tuple[int, int], picture: Rows) -> Tensor:
    """Return a picture of some rows of every client's table, filled up with zeros to this shape; in their type.

    `items` has `counts[c]` entries of client c, client after client. Clients of about equal counts go together.
    """
    result = torch.zeros(len(tables), *shape, dtype=torch.float64, device=tables.device)
    # By count: filled up in the order of the chunk, one client with many samples would make all others as long.
    by_count, starts = np.argsort(counts, kind="stable"), np.cumsum(counts) - counts
    ascending = counts[by_count].tolist()
    many, first, order = (to_device(part, tables.device) for part in (counts, starts, by_count))
    with threads_for(0):
        for run in _runs(ascending, tables.shape[-1], block_on(tables.device)):
            if not ascending[run.stop - 1]:
                continue
            clients = order[run]
            count = many[clients, None]
            offset = torch.arange(ascending[run.stop - 1], device=tables.device)[None]
            real = (offset < count)[..., None]
            at = items[(first[clients, None] + offset).clamp(max=len(items) - 1)]
            made = picture(tables[clients[:, None], at].double() * real, real, count)
            result[clients, : made.shape[1], : made.shape[2]] = made
    return result.to(tables.dtype)


def _runs(counts: list[int], each: int, block: int) -> Iterator[slice]:
    """Yield runs of ascending counts whose size, all filled up to the largest, stays within the block size."""
    start = 0
    for stop in range(1, len(counts) + 1):
        if stop == len(counts) or (stop + 1 - start) * counts[stop] * each > block:
            yield slice(start, stop)
            start = stop


def first_axes(k: int) -> Rows:
    """Return what finds the first k right singular vectors of the centred rows."""

    def find(rows: Tensor, real: Tensor, count: Tensor) -> Tensor:
        centred = (rows - mean_rows(rows, count)) * real
        return principal_axes(centred.mT @ centred, rows.square().sum((1, 2)), k)

    return find


def mean_rows(rows: Tensor, count: Tensor) -> Tensor:
    return rows.sum(1, keepdim=True) / count[:, None].clamp(min=1)


def principal_axes(scatter: Tensor, size: Tensor, k: int) -> Tensor:
    """[clients, at most k, d], from the rows' scatter around their mean and their summed squares."""
    _, axes, ranked = largest_vectors(scatter, size, k)
    return upright(axes.mT) * ranked[..., None]


def largest_vectors(products: Tensor, size: Tensor, k: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return the k largest eigenvalues, largest first, their vectors, and which of them are more than rounding.

    Singular vectors come from this small eigenproblem per client, far faster than from the many rows.
    """
    # Squares of singular values: both tolerances below are therefore squared.
    square, axes = torch.linalg.eigh(products)
    square, axes = square.flip(1)[:, :k], axes.flip(2)[..., :k]
    return square, axes, (square > RANK**2 * square[:, :1]) & (square > ROUNDING**2 * size[:, None])


def upright(vectors: Tensor) -> Tensor:
    """Turn the last axis so that its entry of largest magnitude, the first such entry on ties, is positive."""
    largest = vectors.abs().argmax(-1, keepdim=True)
    return torch.where(vectors.gather(-1, largest) < 0, -vectors, vectors)


# -- angles --


def mean_angles(pictures: Tensor, pairs: Callable[[Tensor], Tensor]) -> Tensor:
    """Return the mean angle of the pairs that `pairs` takes from the cosines [..., k, k] of all vectors of u and v."""
    x = pictures.double()
    norm = x.norm(dim=-1, keepdim=True)  # noise may have changed it
    unit = x / torch.where(norm > 0, norm, torch.ones_like(norm))
    clients, k = unit.shape[:2]
    angle = torch.empty(clients, clients, dtype=x.dtype, device=x.device)
    for rows in blocks_of(clients, clients * k * k, block_on(x.device)):
        angle[rows] = angles(pairs(torch.einsum("uad,vbd->uvab", unit[rows], unit))).mean(-1)
    return angle.fill_diagonal_(0)


def angles(cosine: Tensor) -> Tensor:
    # Rounding can leave a cosine just beyond 1, where the angle would be NaN.
    return cosine.clamp(-1, 1).arccos()


def greedy_pairs(cosines: Tensor) -> Tensor:
    """[..., k, k] to the k entries taken in turn: the largest that is left (ties: first row, then first column)."""
    k = cosines.shape[-1]
    left = cosines.flatten(-2)
    row, column = torch.arange(k * k, device=cosines.device) // k, torch.arange(k * k, device=cosines.device) % k
    excluded = (row[:, None] == row) | (column[:, None] == column)  # with each entry: its row and its column
    chosen = []
    for _ in range(k):
        best, at = left.max(-1)
        chosen.append(best)
        # Minus infinity and not 0: cosines may be negative, and a taken pair must not win against them.
        left = left.masked_fill(excluded[at], -math.inf)
    return torch.stack(chosen, -1)
