"""Files and folders that are either complete or not there at all."""

from __future__ import annotations

import os
import shutil
import tempfile
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from fedrec.errors import FedrecError


@contextmanager
def atomic_file(path: Path) -> Iterator[Path]:
    """A temporary path beside ``path`` that takes its place when the block ends without an error.

    What a link points to is replaced, not the link; what is neither a file nor absent (a folder, /dev/null) is refused:
    whoever may write there would otherwise put a file in its place.
    """
    path = Path(os.path.realpath(path)) if path.is_symlink() else path
    if path.name in ("", "..") or (path.exists() and not path.is_file()):
        raise FedrecError(f"cannot write {path}: it is not a file; give the name of one with --out")
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
    try:
        yield temporary
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


@contextmanager
def scratch_folder(parent: Path) -> Iterator[Path]:
    """A folder on the disk of ``parent``, gone afterwards; finished files can be moved out of it at once."""
    parent.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix=".partial-", dir=parent))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
