"""GF-CF: a graph filter in closed form. Shen et al., CIKM 2021.

With R = D_U^-1/2 A D_I^-1/2 and V the first right singular vectors of R, the filter is

    F = R'R + w D_I^-1/2 V V' D_I^1/2        scores = A F

that is a linear part and an ideal low pass. Degrees of zero count as weight zero. Everything is float64, and scores
are rounded to nine decimals: in a small silo many items have exactly the same supporters, and rounding noise must not
decide between them.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import scipy.sparse as sp
from scipy.sparse.linalg import svds

DECIMALS = 9
SMALLEST = 1e-6  # singular values below it count as zero: from a Gram matrix they are exact to about 1e-8
Factor = tuple[np.ndarray, np.ndarray, np.ndarray]
"""Right singular vectors [items, columns] of R, singular values, and the number of interactions of every item."""

# Up to here a dense decomposition takes about a second, gives all values and needs no start vector.
DIRECT = 2_000  # up to this many rows or columns all singular values are computed


def round_scores(scores: np.ndarray) -> np.ndarray:
    """Round scores so that equal sums compare equal."""
    # Adding zero turns -0.0 into 0.0.
    return np.asarray(np.round(scores, DECIMALS) + 0.0)


@dataclass(frozen=True)
class Filter:
    """F of one silo, never formed: R (sparse), V, and the number of interactions of every item."""

    normal: sp.csr_matrix
    vectors: np.ndarray
    counts: np.ndarray
    ideal_weight: float

    def apply(self, rows: sp.csr_matrix) -> np.ndarray:
        """Return rows F."""
        # From left to right, because R'R of all items is nearly dense, and is not needed whole.
        linear = (rows @ self.normal.T) @ self.normal
        into, out = item_scales(self.counts)
        ideal = ((rows @ sp.diags(into)) @ self.vectors) @ (self.vectors.T * out)
        return np.asarray(linear.toarray() + self.ideal_weight * ideal)

    def dense(self) -> np.ndarray:
        return self.apply(sp.eye(self.normal.shape[1], format="csr"))


def item_scales(counts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return D_I^-1/2 and D_I^1/2; an item that nobody met has zero in both."""
    root = np.sqrt(counts.astype(np.float64))
    return np.divide(1.0, root, out=np.zeros_like(root), where=root > 0), root


def leading_singular(matrix: sp.csr_matrix, most: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the first right singular vectors (columns) and values of a sparse matrix, at most as many as its rank."""
    rows, columns = matrix.shape
    if min(rows, columns) <= max(DIRECT, most):
        values, vectors = _decompose_gram(matrix)
    else:
        start = np.ones(min(rows, columns))  # ARPACK would draw one, and runs would differ
        _, values, transposed = svds(matrix, k=most, v0=start)
        order = np.argsort(-values, kind="stable")
        values, vectors = values[order], transposed[order].T
    # Vectors of a zero value are whatever the library returns, so they would differ between machines.
    keep = min(most, int((values > SMALLEST).sum()))
    return vectors[:, :keep], values[:keep]


def _decompose_gram(matrix: sp.csr_matrix) -> tuple[np.ndarray, np.ndarray]:
    """Return all of them, from the smaller of the two Gram matrices."""
    # From the smaller side: a silo of few users has far fewer rows than there are items.
    wide = matrix.shape[0] < matrix.shape[1]
    gram = (matrix @ matrix.T if wide else matrix.T @ matrix).toarray()
    squares, vectors = np.linalg.eigh(gram)
    values = np.sqrt(np.maximum(squares[::-1], 0.0))  # ascending squares, some of which rounding has made negative
    vectors = vectors[:, ::-1]
    if wide:
        kept = values > SMALLEST
        values, vectors = values[kept], np.asarray(matrix.T @ vectors[:, kept]) / values[kept]
    return values, vectors


@dataclass(frozen=True)
class GFCF:
    """The backbone: no parameters, so nothing to train."""

    frequencies: int = 256  # how many singular vectors the ideal part keeps
    ideal_weight: float = 0.3
    dim = 0
    has_user = False

    def dense_shapes(self) -> dict[str, tuple[int, ...]]:
        return {}

    def fit(self, rows: sp.csr_matrix) -> Filter:
        """Return the filter of one silo's binary rows."""
        normal, counts = self.normalise(rows)
        vectors, _ = leading_singular(normal, self.frequencies)
        return Filter(normal, vectors, counts, self.ideal_weight)

    def normalise(self, rows: sp.csr_matrix) -> tuple[sp.csr_matrix, np.ndarray]:
        """Return R, and the number of interactions of every item."""
        users, items = (np.asarray(rows.sum(axis)).ravel() for axis in (1, 0))
        return (sp.diags(item_scales(users)[0]) @ rows @ sp.diags(item_scales(items)[0])).tocsr(), items

    def factorise(self, rows: sp.csr_matrix, rank: int) -> tuple[Factor, float]:
        """Return what a filter follows from, in so many columns, and the share of |R|^2 that is lost.

        What a silo has fewer of is zero.
        """
        normal, counts = self.normalise(rows)
        vectors, values = leading_singular(normal, rank)
        whole, left = float(normal.multiply(normal).sum()), float((values**2).sum())
        # One width for all silos, because the server keeps their factors in one tensor.
        padding = rank - len(values)
        factor = (np.pad(vectors, ((0, 0), (0, padding))), np.pad(values, (0, padding)), counts)
        # Rounding can leave slightly more than there was, and a silo without rows has a norm of zero.
        return factor, max(whole - left, 0.0) / max(whole, 1e-300)

    def apply_mean(
        self, rows: sp.csr_matrix, vectors: np.ndarray, values: np.ndarray, counts: np.ndarray
    ) -> np.ndarray:
        """Return rows F for the mean F of several factors' filters, without any matrix of items x items."""
        client, column = np.nonzero(values)
        low_rank = vectors[client, :, column].T  # [items, all columns of all silos]
        linear = (rows @ low_rank) * values[client, column] ** 2 @ low_rank.T
        ideal = column < self.frequencies
        into, out = (np.stack(part) for part in zip(*map(item_scales, counts), strict=True))
        low = low_rank[:, ideal]
        passed = (rows @ (low * into[client[ideal]].T)) @ (low * out[client[ideal]].T).T
        return np.asarray((linear + self.ideal_weight * passed) / len(values))
