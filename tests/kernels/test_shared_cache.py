"""Two processes that keep what they compiled at the same moment; here two threads, which locks treat alike."""

from __future__ import annotations

import fcntl
import sys
from importlib import import_module
from pathlib import Path
from threading import Event, Thread
from typing import Any

import pytest
import torch
from numba.core.caching import IndexDataCacheFile, NullCache

from fedrec.kernels.registry import KERNELS, find
from fedrec.kernels.shared_cache import SharedFile
from waiting import GENEROUS


def saved_at_once(kind: type[IndexDataCacheFile], folder: Path, monkeypatch: pytest.MonkeyPatch) -> list[str | None]:
    """What is loaded for two kinds of arguments, of which one was saved while another was being saved."""
    listed, going_on, read, lock = Event(), Event(), kind._load_index, fcntl.flock
    first, second = (kind(str(folder), "kernel", "stamp") for _ in range(2))

    def slowly(self: IndexDataCacheFile) -> Any:
        found = read(self)
        if self is first:
            listed.set()
            assert going_on.wait(GENEROUS)
        return found

    def asked(*arguments: Any) -> None:
        if listed.is_set():
            going_on.set()  # the second one waits for the first: that may go on
        lock(*arguments)

    def meanwhile() -> None:
        assert listed.wait(GENEROUS)
        second.save("double", "compiled for double")
        going_on.set()

    with monkeypatch.context() as patched:
        patched.setattr(kind, "_load_index", slowly)
        patched.setattr(fcntl, "flock", asked)
        threads = [Thread(target=first.save, args=("single", "compiled for single")), Thread(target=meanwhile)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    return [kind(str(folder), "kernel", "stamp").load(key) for key in ("single", "double")]


def test_nothing_is_lost_or_mixed_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert saved_at_once(SharedFile, tmp_path, monkeypatch) == ["compiled for single", "compiled for double"]


def test_numba_alone_would_lose_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else this module and the one that it tests have become needless."""
    assert saved_at_once(IndexDataCacheFile, tmp_path, monkeypatch)[1] is None


def test_without_locks_it_is_as_numba_does_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "fcntl", None)
    SharedFile(str(tmp_path), "kernel", "stamp").save("single", "compiled")
    assert SharedFile(str(tmp_path), "kernel", "stamp").load("single") == "compiled"


def test_where_there_is_no_folder_nothing_is_found(tmp_path: Path) -> None:
    assert SharedFile(str(tmp_path / "none"), "kernel", "stamp").load("single") is None


@pytest.mark.parametrize("name", [name for name, device in KERNELS if device == "cpu"])
def test_every_kernel_is_shared(name: str) -> None:
    assert find(name, torch.device("cpu")) is not None
    source = KERNELS[name, "cpu"]
    cache = getattr(import_module(source.module), source.function)._cache
    assert isinstance(cache, NullCache) or isinstance(cache._cache_file, SharedFile)
