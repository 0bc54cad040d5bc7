"""Compiled kernels; `find` is the way to them."""

from fedrec.kernels.registry import Kernel, find

__all__ = ["Kernel", "find"]
