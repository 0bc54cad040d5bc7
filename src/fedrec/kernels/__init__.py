"""Compiled kernels: `find` returns one by name, `log_path` logs its use, `count_products` counts its products."""

from fedrec.kernels.registry import Kernel, count_products, find, log_path
from fedrec.plugins import keep_old_names

__getattr__ = keep_old_names(__name__, {"counted_products": "count_products"})

__all__ = ["Kernel", "count_products", "find", "log_path"]
