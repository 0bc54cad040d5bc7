"""What kernels of an accelerator share: data that stays there, and numbers handed over without a wait."""

from __future__ import annotations

import weakref
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

_HALF = 32


class Copies:
    """Arrays of the host on an accelerator, copied once and dropped with the array; nobody may write to either."""

    def __init__(self) -> None:
        self._kept: dict[tuple[int, torch.device], Tensor] = {}

    def get(self, array: np.ndarray, device: torch.device) -> Tensor:
        if device.type == "cpu":
            return torch.from_numpy(array)
        # Arrays cannot be hashed; an id is unique while the array lives, and the copy goes with it.
        where = (id(array), device)
        if where not in self._kept:
            self._kept[where] = torch.from_numpy(array).to(device)
            weakref.finalize(array, self._kept.pop, where, None)
        return self._kept[where]


copies = Copies()


def sent(numbers: np.ndarray, device: torch.device) -> Tensor:
    """Numbers of a round on a device. A run of them is counted there, which spares the copy."""
    # The ends come first, so that most other sets of clients are not looked through.
    if len(numbers) and numbers[-1] - numbers[0] + 1 == len(numbers) and bool((np.diff(numbers) == 1).all()):
        return torch.arange(int(numbers[0]), int(numbers[-1]) + 1, device=device)
    return to_device(numbers, device)


def to_device(array: np.ndarray, device: torch.device) -> Tensor:
    """An array of the host on a device; on the processor, the same memory. A GPU fetches it when it comes to it, out of
    memory that stays in its place, so that nobody waits."""
    value = torch.from_numpy(array)
    # Only out of pinned memory does a copy run while the processor goes on.
    if device.type == "cuda" and len(array):
        value = value.pin_memory()
    return value.to(device, non_blocking=True)


def beside(value: Tensor, device: torch.device) -> Tensor:
    """A tensor on a device: one of the host is handed over."""
    return to_device(value.numpy(), device) if value.device.type == "cpu" else value


@lru_cache(maxsize=64)
def constants(device: torch.device, *values: float) -> Tensor:
    """Settings in double precision, once per run where they stay: a launch would round them to single."""
    return to_device(np.array(values, dtype=np.float64), device)


def halves(key: np.uint64) -> tuple[int, int]:
    """High and low bits of a key as two signed integers: a launch types an integer by its size, so that keys would
    ask for one compiled kernel or another."""
    return tuple(_to_signed(int(key) >> shift) for shift in (_HALF, 0))  # type: ignore[return-value]


def _to_signed(value: int) -> int:
    value &= (1 << _HALF) - 1
    return value - (1 << _HALF) if value >> (_HALF - 1) else value
