"""What this machine offers beside the lean core."""

from __future__ import annotations

from functools import cache
from importlib.util import find_spec


@cache
def has_numba() -> bool:
    """Whether compiled kernels can be had; everything works without them."""
    try:
        return find_spec("numba") is not None
    except (ImportError, ValueError):
        return False
