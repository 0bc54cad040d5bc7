"""Compiled kernels; `find` returns one by name, `counted_products` says how much they multiply."""

from fedrec.kernels.registry import Kernel, counted_products, find

__all__ = ["Kernel", "counted_products", "find"]
