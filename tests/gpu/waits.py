"""Finds out without a GPU where the host would wait for one.

A simulation runs on torch's device `meta`, whose tensors have shapes and no numbers: the code takes the ways of an
accelerator, kernels are started as on one and do nothing, and whatever asks for a number of the device is written down
and answered with a number that is as good as another.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from fedrec.federation.clients import ClientData
from fedrec.kernels.registry import KERNELS

META = torch.device("meta")
aten = torch.ops.aten
VIEWS = {
    "slice",
    "view",
    "unsqueeze",
    "expand",
    "select",
    "permute",
    "transpose",
    "t",
    "unbind",
    "split",
    "alias",
    "detach",
    "split_with_sizes",
    "squeeze",
    "as_strided",
    "_unsafe_view",
    "diagonal",
    "unfold",
}
ROOM = {"empty", "new_empty", "empty_like", "empty_strided", "resize_"}
FROM_LISTS = (torch.tensor, torch.as_tensor, Tensor.new_tensor)


@dataclass
class Seen:
    """`waits`: what was asked for and where in the code. `started`: kernels of torch and our own."""

    waits: list[tuple[str, str]] = field(default_factory=list)
    started: list[str] = field(default_factory=list)

    def wait(self, what: str) -> None:
        self.waits.append((what, _place()))


def _place() -> str:
    frame = sys._getframe()
    while frame.f_back is not None and "/fedrec/" not in frame.f_code.co_filename:
        frame = frame.f_back
    return f"{frame.f_code.co_filename.rpartition('/')[2]}:{frame.f_lineno}"


@contextmanager
def looked_at() -> Iterator[Seen]:
    """What happens inside the `with`; kernels are to be replaced before, by `on_meta`."""
    seen = Seen()
    _STARTED.append(seen.started)
    try:
        with _Lists(seen), _Operations(seen):
            yield seen
    finally:
        _STARTED.pop()


_STARTED: list[list[str]] = [[]]


def on_meta(data: ClientData, monkeypatch: pytest.MonkeyPatch) -> ClientData:
    """The same clients on the device `meta`, with the kernels of a GPU, which do nothing there."""
    from fedrec.kernels import contrast_triton, draws_triton, fedrap_triton, gram_triton, ncf_triton, rows_triton

    for name, device in list(KERNELS):
        if device == "cuda":
            monkeypatch.setitem(KERNELS, (name, META.type), KERNELS[name, device])
    for module in (contrast_triton, draws_triton, fedrap_triton, gram_triton, ncf_triton, rows_triton):
        for name, value in list(vars(module).items()):
            if hasattr(value, "run") and name.startswith("_"):
                monkeypatch.setattr(module, name, _Nothing(name))
    return replace(data, world=replace(data.world, device=META))


@dataclass
class _Nothing:
    name: str

    def __getitem__(self, grid: object) -> Any:
        return lambda *arguments, **options: _STARTED[-1].append(self.name)


class _Lists(TorchFunctionMode):
    """Tensors made of numbers of the host: they are copied from memory that a device cannot fetch from by itself."""

    def __init__(self, seen: Seen) -> None:
        super().__init__()
        self.seen = seen

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = function(*args, **(kwargs or {}))
        given = args[1] if function is Tensor.new_tensor else args[0] if args else None
        if function in FROM_LISTS and found.device == META and not isinstance(given, Tensor):
            self.seen.wait("a list")
        return found


class _Operations(TorchDispatchMode):
    def __init__(self, seen: Seen) -> None:
        super().__init__()
        self.seen = seen

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs, kind = kwargs or {}, function.overloadpacket
        there = [value for value in args if isinstance(value, Tensor) and value.device == META]
        answer = self._answered(kind, args, kwargs) if there else None
        if answer is not None:
            return answer
        if there and kind in (aten.index, aten.index_put, aten.index_put_, aten._index_put_impl_):
            args = (args[0], [self._places(at) for at in args[1]], *args[2:])
        self._look_at_copy(kind, args, kwargs)
        found = function(*args, **kwargs)
        name = kind.__name__
        if (there or (isinstance(found, Tensor) and found.device == META)) and name not in VIEWS | ROOM:
            self.seen.started.append(name)
        return found

    def _answered(self, kind: Any, args: Any, kwargs: Any) -> Any:
        """Of what has no answer without numbers."""
        first, say = args[0], self.seen.wait
        if kind is aten._local_scalar_dense:
            say("a number")
            return 1
        if kind is aten.equal:
            say("whether they are equal")
            return True
        if kind is aten.nonzero:
            say("which are not zero")
            return first.new_empty(0, first.dim(), dtype=torch.int64)
        if kind is aten.masked_select:
            say("which are not zero")
            return first.flatten()
        if kind in (aten._unique2, aten.unique_consecutive, aten.unique_dim):
            say("which are distinct")
            whole = first.new_empty(first.shape, dtype=torch.int64)
            return first.new_empty(first.numel()), whole, whole.flatten()
        if kind is aten.bincount:
            say("how many")
            return first.new_empty(max(1, kwargs.get("minlength", args[2] if len(args) > 2 else 0)), dtype=torch.int64)
        if kind is aten.repeat_interleave and kwargs.get("output_size") is None:
            say("how many")
            return first.new_empty(first.numel())
        to_host = kind is aten._to_copy and torch.device(kwargs.get("device") or META).type == "cpu"
        if to_host:
            say("a copy")
            return torch.zeros(first.shape, dtype=kwargs.get("dtype") or first.dtype)
        return None

    def _places(self, at: Tensor | None) -> Tensor | None:
        """A mask selects as many as the device knows of; an index of the host has to go there first."""
        if at is None:
            return None
        if at.dtype in (torch.bool, torch.uint8):
            self.seen.wait("which are not zero")
            return at.new_empty(at.numel(), dtype=torch.int64)
        if at.device != META and at.dim():
            self.seen.wait("an index of the host")
        return at

    def _look_at_copy(self, kind: Any, args: Any, kwargs: Any) -> None:
        """From the host: without a wait only where that was asked for."""
        if kind is aten._to_copy:
            away = args[0].device.type == "cpu" and torch.device(kwargs.get("device") or "cpu") == META
            at_once = kwargs.get("non_blocking", False)
        elif kind is aten.copy_:
            away = args[1].device.type == "cpu" and args[0].device == META and args[1].dim() > 0
            at_once = args[2] if len(args) > 2 else kwargs.get("non_blocking", False)
        else:
            return
        if away and not at_once:
            self.seen.wait("a copy to the device")
