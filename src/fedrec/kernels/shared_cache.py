"""What numba keeps on the disk, for several processes at once.

numba reads its list of what is there, writes it with one entry more, and then the entry. Two processes that do so at
the same moment lose one of the two, or give both the same file: then what is loaded for single precision may have been
compiled for double. Here one waits until the other is done.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from numba.core.caching import IndexDataCacheFile


class SharedFile(IndexDataCacheFile):  # type: ignore[misc]
    """The list and the entries of one kernel."""

    _cache_path: str  # numba's

    def save(self, key: Any, data: Any) -> None:
        with self._alone():
            super().save(key, data)

    def load(self, key: Any) -> Any:
        with self._alone():
            return super().load(key)

    @contextmanager
    def _alone(self) -> Iterator[None]:
        try:
            import fcntl

            # The folder is locked and not the list, which numba replaces by a new file whenever it writes.
            folder = os.open(self._cache_path, os.O_RDONLY)
        except (ImportError, OSError):  # a system without such locks; a folder that was removed, which numba makes anew
            yield
            return
        try:
            with suppress(OSError):  # a file system without locks
                fcntl.flock(folder, fcntl.LOCK_EX)
            yield
        finally:
            # This gives the lock back too, even where saving has failed.
            os.close(folder)


def share(kernel: Any) -> None:
    """Let processes save and load a kernel one after another."""
    file = getattr(getattr(kernel, "_cache", None), "_cache_file", None)
    # Not isinstance: what is shared already, or a cache of another kind, stays as it is.
    if type(file) is IndexDataCacheFile:
        file.__class__ = SharedFile
