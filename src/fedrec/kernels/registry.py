"""Kernels by name and by the type of device that they run on, imported when first asked for.

Training, noise and counting ask for a kernel by name; where there is none, the same is done in torch. Which of the two
does the work is logged (logger `fedrec.kernels`, level INFO): `logging.basicConfig(level="INFO")` shows it.
A kernel for another device is one more line here.

What lives on the device (tables, vectors, weights, losses) is handed over as tensors, which a kernel of numba sees as
arrays. Numbers of clients, their data and keys are of the host everywhere.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from typing import Any, NamedTuple

import torch
from torch import Tensor

Kernel = Callable[..., Any]
logger = logging.getLogger("fedrec.kernels")


class Source(NamedTuple):
    module: str
    function: str
    needs: str = "numba"  # the package that it needs
    products: str = ""  # of the module: from the kernel's arguments, operations in products of matrices


KERNELS: dict[tuple[str, str], Source] = {
    ("mf", "cpu"): Source("fedrec.kernels.mf", "train_clients"),
    ("ncf", "cpu"): Source("fedrec.kernels.ncf", "train_networks"),
    ("linear", "cpu"): Source("fedrec.kernels.linear", "train_linear"),
    ("fedrap", "cpu"): Source("fedrec.kernels.fedrap", "train_additive"),
    ("gate", "cpu"): Source("fedrec.kernels.gate", "guide_clients"),
    ("contrast", "cpu"): Source("fedrec.kernels.contrast", "contrast", products="products"),
    ("contrastive", "cpu"): Source("fedrec.kernels.contrastive", "train_contrastive", products="products"),
    ("own_tables", "cpu"): Source("fedrec.kernels.own_tables", "complete"),
    ("guided", "cpu"): Source("fedrec.kernels.guided", "train_guided"),
    ("aligned", "cpu"): Source("fedrec.kernels.aligned", "train_aligned"),
    ("neighbours", "cpu"): Source("fedrec.kernels.neighbours", "add_means"),
    ("moments", "cpu"): Source("fedrec.kernels.moments", "sample_moments"),
    ("normal_noise", "cpu"): Source("fedrec.kernels.noise", "add_normal"),
    ("laplace_noise", "cpu"): Source("fedrec.kernels.noise", "add_laplace"),
    ("count_draws", "cpu"): Source("fedrec.kernels.counting", "add_draws"),
    ("permute", "cuda"): Source("fedrec.kernels.draws_triton", "permute", needs="triton"),
    ("mf", "cuda"): Source("fedrec.kernels.mf_triton", "train_clients", needs="triton"),
    ("ncf", "cuda"): Source("fedrec.kernels.ncf_triton", "train_networks", needs="triton"),
    ("linear", "cuda"): Source("fedrec.kernels.linear_triton", "train_linear", needs="triton"),
    ("contrast_repulsion", "cuda"): Source("fedrec.kernels.contrast_triton", "repulsion", needs="triton"),
    ("gram", "cuda"): Source("fedrec.kernels.gram_triton", "add_pairs", needs="triton"),
    ("fedrap", "cuda"): Source("fedrec.kernels.fedrap_triton", "train_additive", needs="triton"),
}

_counters: list[list[int]] = []


def find(name: str, device: torch.device, compiled: bool = True) -> Kernel | None:
    """The kernel of this name for a device; None if there is none, its package is missing or `compiled` is False."""
    source = KERNELS.get((name, device.type)) if compiled else None
    kernel = _load(source) if source and _is_installed(source.needs) else None
    log_path(name, device, kernel is not None)
    return kernel


@cache
def log_path(name: str, device: torch.device, compiled: bool) -> None:
    """Say, once in a process, whether a kernel does what it is named for, or torch."""
    logger.info("%s on %s: %s", name, device.type, "compiled kernel" if compiled else "torch")


@cache
def _is_installed(package: str) -> bool:
    # Looked for and not imported: that takes seconds, which a run without kernels should not pay.
    try:
        return find_spec(package) is not None
    except (ImportError, ValueError):
        return False


@cache
def _load(source: Source) -> Kernel:
    module = import_module(source.module)
    kernel: Kernel = getattr(module, source.function)
    if source.needs != "numba":
        return kernel
    # Imported here, because it needs numba.
    from fedrec.kernels.shared_cache import share

    share(kernel)
    return _on_arrays(kernel, getattr(module, source.products) if source.products else None)


def _on_arrays(kernel: Kernel, products: Kernel | None) -> Kernel:
    def call(*arguments: Any) -> Any:
        arrays = [value.numpy() if isinstance(value, Tensor) else value for value in arguments]
        found = kernel(*arrays)
        if products is not None:
            for counted in _counters:
                counted.append(products(*arrays))
        return found

    return call


@contextmanager
def count_products() -> Iterator[list[int]]:
    """Operations in the products of every call of a kernel that declares them, while this lasts."""
    counted: list[int] = []
    _counters.append(counted)
    try:
        yield counted
    finally:
        _counters.remove(counted)
