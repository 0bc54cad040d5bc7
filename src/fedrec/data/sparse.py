"""Sparse matrices from their cells. scipy.sparse is imported when the first is made: listing data needs none."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from numpy.typing import NDArray

if TYPE_CHECKING:
    import scipy.sparse as sp


def csr(values: NDArray[Any], rows: NDArray[Any], columns: NDArray[Any], shape: tuple[int, int]) -> sp.csr_matrix:
    """[rows, columns]; the values of a cell that is named twice are added."""
    import scipy.sparse as sp

    return sp.csr_matrix((values, (rows, columns)), shape=shape)
