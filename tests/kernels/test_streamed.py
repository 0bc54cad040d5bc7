"""Copies past the caches end with the same numbers, whatever their type and whether or not eight bytes divide them."""

from __future__ import annotations

import numpy as np
import pytest

streamed = pytest.importorskip("fedrec.kernels.streamed")


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("count", [0, 1, 7, 8, 1001])
def test_copy(dtype, count):
    source, to = np.arange(count + 2, dtype=dtype) / 3, np.full(count + 2, -1, dtype)
    streamed.copy_past(source[1:-1], to[1:-1])
    assert np.array_equal(to[1:-1], source[1:-1])
    assert to[0] == to[-1] == -1
