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
SMALLEST = 1e-6  # singular values below it count as zero
DIRECT = 2_000  # up to this many rows or columns all singular values are computed


def rounded(scores: np.ndarray) -> np.ndarray:
    """Scores rounded so that equal sums compare equal."""
    return np.asarray(np.round(scores, DECIMALS) + 0.0)


@dataclass(frozen=True)
class Filter:
    """F of one silo, never formed: R (sparse), V, and the number of interactions of every item."""

    normal: sp.csr_matrix
    vectors: np.ndarray
    counts: np.ndarray
    ideal_weight: float

    def apply(self, rows: sp.csr_matrix) -> np.ndarray:
        """rows F."""
        linear = (rows @ self.normal.T) @ self.normal
        into, out = scales(self.counts)
        ideal = ((rows @ sp.diags(into)) @ self.vectors) @ (self.vectors.T * out)
        return np.asarray(linear.toarray() + self.ideal_weight * ideal)

    def dense(self) -> np.ndarray:
        return self.apply(sp.eye(self.normal.shape[1], format="csr"))


def scales(counts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """D_I^-1/2 and D_I^1/2; an item that nobody met has zero in both."""
    root = np.sqrt(counts.astype(np.float64))
    return np.divide(1.0, root, out=np.zeros_like(root), where=root > 0), root


def singular(matrix: sp.csr_matrix, most: int) -> tuple[np.ndarray, np.ndarray]:
    """The first right singular vectors (columns) and values of a sparse matrix, at most as many as its rank."""
    rows, columns = matrix.shape
    if min(rows, columns) <= max(DIRECT, most):
        values, vectors = _by_gram(matrix)
    else:
        start = np.ones(min(rows, columns))  # ARPACK would draw one
        _, values, transposed = svds(matrix, k=most, v0=start)
        order = np.argsort(-values, kind="stable")
        values, vectors = values[order], transposed[order].T
    keep = min(most, int((values > SMALLEST).sum()))
    return vectors[:, :keep], values[:keep]


def _by_gram(matrix: sp.csr_matrix) -> tuple[np.ndarray, np.ndarray]:
    """All of them, from the smaller of the two Gram matrices."""
    wide = matrix.shape[0] < matrix.shape[1]
    gram = (matrix @ matrix.T if wide else matrix.T @ matrix).toarray()
    squares, vectors = np.linalg.eigh(gram)
    values = np.sqrt(np.maximum(squares[::-1], 0.0))
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
        """The filter of one silo's binary rows."""
        normal, counts = self.normalise(rows)
        vectors, _ = singular(normal, self.frequencies)
        return Filter(normal, vectors, counts, self.ideal_weight)

    def normalise(self, rows: sp.csr_matrix) -> tuple[sp.csr_matrix, np.ndarray]:
        """R, and the number of interactions of every item."""
        users, items = (np.asarray(rows.sum(axis)).ravel() for axis in (1, 0))
        return (sp.diags(scales(users)[0]) @ rows @ sp.diags(scales(items)[0])).tocsr(), items
