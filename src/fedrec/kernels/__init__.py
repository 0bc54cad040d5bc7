"""Compiled kernels; `find` returns one by name."""

from fedrec.kernels.registry import Kernel, find

__all__ = ["Kernel", "find"]
