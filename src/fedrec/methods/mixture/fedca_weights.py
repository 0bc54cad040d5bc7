"""FedCA's aggregation weights (equation 5): how alike clients are, how they complement each other, and the mixture.

Pure functions of tensors. The leading axis of a stack is the client. Whole tables are multiplied in their own type,
everything else is float64 whatever comes in.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from fedrec.federation.stack import Stack
from fedrec.methods.mixture.aggregation import block_on, blocks_of, simplex_project, square_distances
from fedrec.training.compiled import handed

Similarity = Literal["paper", "pca1", "pca1-raw"]
Complementarity = Literal["left-local", "left-global", "right-greedy", "right-principal", "raw"]
LEFT = ("left-local", "left-global")
Outer = Literal["cos", "sin"]
Weights = Literal["eq5", "eq8", "released"]

RANK = 1e-6  # singular values below this part of the largest count as zero
ROUNDING = 1e-12  # and so do those that centring rows leaves where nothing should be left


def similarity(tables: Tensor | Stack, mode: Similarity, reference: Tensor | None = None) -> Tensor:
    """s_uv of equation 6, in (0, 1], 1 on the diagonal.

    paper: 1 / (1 + squared distance of the tables). pca1, pca1-raw: 1 / (1 + distance) of the tables' scores on their
    own first principal axis, raised to 1 from 0.9. The sign of an axis is arbitrary: pca1 turns the scores towards
    `reference`, those of a common table; pca1-raw makes the largest entry of the axis positive.
    """
    if mode == "paper":
        return square_distances(tables).add_(1).reciprocal_()
    scores = first_scores(tables)
    if mode == "pca1":
        assert reference is not None, "pca1 needs the scores of a common table"
        scores = torch.where((scores @ reference.double() < 0)[:, None], -scores, scores)
    close = 1 / (1 + square_distances(scores).sqrt())
    return torch.where(close > 0.9, torch.ones_like(close), close)


def first_scores(tables: Tensor | Stack) -> Tensor:
    """The rows of every table along its first principal axis: [clients, rows]."""
    stack, parts = Stack.of(tables), []
    for some in blocks_of(len(stack), stack.width, block_on(stack.device)):
        rows = stack.some(some).double()
        rows = rows - rows.mean(1, keepdim=True)
        axis = torch.linalg.eigh(rows.mT @ rows).eigenvectors[..., -1]
        parts.append((rows @ _signed(axis).unsqueeze(-1)).squeeze(-1))
    return torch.cat(parts)


def represent(table: Tensor, items: Tensor, k: int, mode: Complementarity) -> Tensor:
    """A compact picture of some rows of one table. Vectors that the rows have too low a rank for are zero.

    left-local: [k, len(table)], the first left singular vectors, entry j belonging to the j-th of `items`.
    left-global: the same, entry i belonging to item i. right-*: [k, d], the first principal axes of the centred rows
    (an item given twice counts twice). raw: [1, d], the mean row.
    """
    picture = represent_all(table[None], items, np.array([len(items)]), k, mode)
    if mode not in LEFT:
        return picture[0]
    place = items if mode == "left-global" else torch.arange(len(items), device=items.device)
    return spread(picture, place[None], len(table))[0]


def represent_all(tables: Tensor, items: Tensor, counts: np.ndarray, k: int, mode: Complementarity) -> Tensor:
    """The same for a stack of tables, client after client: `items` has `counts[c]` entries of client c.

    left-*: [clients, k, most items], entry j belonging to the j-th of a client's items. Singular vectors come from a
    small eigenproblem per client, far faster than from the many rows; clients of about equal counts go together.
    """
    d, by_count = tables.shape[-1], np.argsort(counts, kind="stable")
    ascending = counts[by_count].tolist()
    most = max(ascending, default=0)
    vectors, width = (1, d) if mode == "raw" else (k, most if mode in LEFT else d)
    result = torch.zeros(len(tables), vectors, width, dtype=torch.float64, device=tables.device)
    starts = np.cumsum(counts) - counts
    many, first, order = (handed(part, tables.device) for part in (counts, starts, by_count))
    for some in _runs(ascending, d, block_on(tables.device)):
        clients = order[some]
        count = many[clients, None]
        offset = torch.arange(ascending[some.stop - 1], device=tables.device)[None]
        real = (offset < count)[..., None]
        if not offset.numel():
            continue
        at = items[(first[clients, None] + offset).clamp(max=len(items) - 1)]
        rows = tables[clients[:, None], at].double() * real
        found = _mean_rows(rows, count) if mode == "raw" else _vectors(rows, real, count, k, mode in LEFT)
        result[clients, : found.shape[1], : found.shape[2]] = found
    return result


def _mean_rows(rows: Tensor, count: Tensor) -> Tensor:
    return rows.sum(1, keepdim=True) / count[:, None].clamp(min=1)


def _vectors(rows: Tensor, real: Tensor, count: Tensor, k: int, left: bool) -> Tensor:
    """[clients, at most k, entries]: the first left singular vectors, or right ones of the centred rows."""
    used = rows if left else (rows - _mean_rows(rows, count)) * real
    square, axes, ranked = _largest(used.mT @ used, rows.square().sum((1, 2)), k)
    found = axes
    if left:
        found = used @ axes / torch.where(ranked, square, torch.ones_like(square)).sqrt()[:, None]
    return _signed(found.mT) * ranked[..., None]


def principal_axes(scatter: Tensor, size: Tensor, k: int) -> Tensor:
    """[clients, at most k, d]: what right-* shows of rows with this scatter around their mean and these summed
    squares."""
    _, axes, ranked = _largest(scatter, size, k)
    return _signed(axes.mT) * ranked[..., None]


def _largest(products: Tensor, size: Tensor, k: int) -> tuple[Tensor, Tensor, Tensor]:
    """The k largest eigenvalues, largest first, their vectors, and which of them are more than rounding."""
    square, axes = torch.linalg.eigh(products)
    square, axes = square.flip(1)[:, :k], axes.flip(2)[..., :k]
    return square, axes, (square > RANK**2 * square[:, :1]) & (square > ROUNDING**2 * size[:, None])


def spread(pictures: Tensor, place: Tensor, length: int) -> Tensor:
    """[clients, k, n] to [clients, k, length]: entry j of a client goes to its `place[j]`; padding is zero anywhere."""
    index = place.long()[:, None].expand_as(pictures)
    return pictures.new_zeros(*pictures.shape[:2], length).scatter_add_(2, index, pictures)


def complementarity(pictures: Tensor, mode: Complementarity, outer: Outer = "cos") -> Tensor:
    """c_uv of equation 7: from the mean angle between what `represent` gave of u and of v, which is 0 for u = v.

    left-*: the l-th vector with the l-th. right-greedy: the pair with the largest signed cosine, then the largest of
    the remaining rows and columns, and so on. right-principal: the principal angles of the two spans. raw: the
    angle of the two vectors.
    """
    x = pictures.double()
    if mode in LEFT:
        vectors = x.transpose(0, 1)  # norms as they are: products that noise made too large are only clipped
        angle = _angle(vectors @ vectors.mT).mean(0)
    else:
        norm = x.norm(dim=-1, keepdim=True)
        unit = x / torch.where(norm > 0, norm, torch.ones_like(norm))
        cosines = _greedy if mode == "right-greedy" else torch.linalg.svdvals
        clients, k = unit.shape[:2]
        angle = torch.empty(clients, clients, dtype=x.dtype, device=x.device)
        for some in blocks_of(clients, clients * k * k, block_on(x.device)):
            product = torch.einsum("uad,vbd->uvab", unit[some], unit)
            found = product.flatten(2) if mode == "raw" else cosines(product)
            angle[some] = _angle(found).mean(-1)
    angle.fill_diagonal_(0)
    return angle.cos() if outer == "cos" else angle.sin()


def composite_weights(
    share: Tensor, alike: Tensor, complement: Tensor, alpha: float, beta: float, variant: Weights
) -> Tensor:
    """The rows of weights that minimise |w - share|^2 + alpha |w - s|^2 - beta w.c on the simplex (equation 5).

    eq8 (equation 8) has the similarity linear, -2 alpha w.s. released is eq8 with the two factors exchanged and beta
    doubled: there alpha belongs to the complementarity and beta to the similarity.
    """
    pi, s, c = share.double(), alike.double(), complement.double()
    if variant == "eq5":
        return simplex_project((2 * pi + 2 * alpha * s + beta * c) / (2 * (1 + alpha)))
    if variant == "eq8":
        return simplex_project(pi + alpha * s + beta / 2 * c)
    weights = simplex_project(pi + alpha * c + beta * s)
    weights = torch.where(weights < 1e-20, torch.zeros_like(weights), weights)
    return weights / weights.sum(-1, keepdim=True)


def _runs(counts: list[int], each: int, block: int) -> Iterator[slice]:
    """Runs of ascending counts whose size, all filled up to the largest, stays within the block size."""
    start = 0
    for stop in range(1, len(counts) + 1):
        if stop == len(counts) or (stop + 1 - start) * counts[stop] * each > block:
            yield slice(start, stop)
            start = stop


def _signed(vectors: Tensor) -> Tensor:
    """The last axis with its entry of largest magnitude positive, the first such entry on ties."""
    largest = vectors.abs().argmax(-1, keepdim=True)
    return torch.where(vectors.gather(-1, largest) < 0, -vectors, vectors)


def _angle(cosine: Tensor) -> Tensor:
    return cosine.clamp(-1, 1).arccos()


def _greedy(cosines: Tensor) -> Tensor:
    """[..., k, k] to the k entries taken in turn: the largest that is left (ties: first row, then first column)."""
    k = cosines.shape[-1]
    left = cosines.flatten(-2)
    row, column = torch.arange(k * k, device=cosines.device) // k, torch.arange(k * k, device=cosines.device) % k
    gone = (row[:, None] == row) | (column[:, None] == column)  # with each entry: its row and its column
    taken = []
    for _ in range(k):
        best, at = left.max(-1)
        taken.append(best)
        left = left.masked_fill(gone[at], -math.inf)
    return torch.stack(taken, -1)
