"""What differs on an accelerator, on the processor: what is read when, which code trains, and what is refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from fedrec.federation.simulator import RunningRound, Simulator
from fedrec.kernels.registry import KERNELS

DECOMPOSITIONS = ("cholesky", "eigh", "eigvalsh", "norm", "pinv", "qr", "solve", "svd", "svdvals")


def read_later(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rounds begin before the figures of the last one are read, and no server hears first that they are not finite."""
    monkeypatch.setattr(Simulator, "reads_later", property(lambda self: True))
    monkeypatch.setattr(RunningRound, "is_readable", property(lambda self: False))


def as_on_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """All of it. An index that is out of range ends the process there; here it is an error."""
    read_later(monkeypatch)
    for name, device in list(KERNELS):
        if device == "cpu":
            monkeypatch.delitem(KERNELS, (name, device))
    for name in DECOMPOSITIONS:
        monkeypatch.setattr(torch.linalg, name, _without_refusal(getattr(torch.linalg, name)))


def _without_refusal(decompose: Callable[..., Any]) -> Callable[..., Any]:
    """What a GPU may do with a matrix that is not finite: give back what is not either."""

    def call(matrix: Tensor, *arguments: Any, **options: Any) -> Any:
        try:
            return decompose(matrix, *arguments, **options)
        except torch.linalg.LinAlgError:
            usual = torch.eye(*matrix.shape[-2:], dtype=matrix.dtype).expand_as(matrix)
            found = decompose(usual, *arguments, **options)
            return _undefined(found) if isinstance(found, Tensor) else type(found)(map(_undefined, found))

    return call


def _undefined(like: Tensor) -> Tensor:
    return torch.full_like(like, float("nan"))
