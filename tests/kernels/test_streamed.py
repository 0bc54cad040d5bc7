"""Rows past the caches end as the same numbers, whatever their type, their width and where they are to lie."""

from __future__ import annotations

import numpy as np
import pytest
from numba.core.errors import TypingError

streamed = pytest.importorskip("fedrec.kernels.streamed")


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("wide", [1, 7, 8, 16, 32, 48])
@pytest.mark.parametrize("start", [0, 1, 16])
def test_rows_are_gathered_into_some_columns(dtype, wide, start):
    rows = np.arange(5 * wide, dtype=dtype).reshape(5, wide) / 3
    index = np.array([4, 0, 0, 3], dtype=np.uint32)
    to = _aligned(6, 96, dtype)
    streamed.gather_past(rows, index, to[1:5, start : start + wide])
    assert np.array_equal(to[1:5, start : start + wide], rows[index])
    to[1:5, start : start + wide] = -1
    assert (to == -1).all()


def test_rows_of_another_type_are_refused():
    with pytest.raises(TypingError, match="differ in type"):
        streamed.gather_past(np.ones((2, 16)), np.zeros(1, np.uint32), _aligned(1, 16, np.float32))


def _aligned(count, wide, dtype):
    """Of a matrix that begins with a cache line."""
    room = np.full(count * wide + streamed.LINE, -1, dtype)
    skip = -room.ctypes.data % streamed.LINE // room.itemsize
    return room[skip : skip + count * wide].reshape(count, wide)
