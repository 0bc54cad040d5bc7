"""Compiled kernels: `find` returns one by name, `log_path` logs its use, `count_products` counts its products."""

from fedrec.kernels.registry import Kernel, count_products, find, log_path

__all__ = ["Kernel", "count_products", "find", "log_path"]
