"""Compiled kernels: `find` returns one by name, `log_path` logs its use, `counted_products` counts its products."""

from fedrec.kernels.registry import Kernel, counted_products, find, log_path

__all__ = ["Kernel", "counted_products", "find", "log_path"]
