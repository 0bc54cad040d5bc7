"""Files and folders that are either complete or not there at all."""

from __future__ import annotations

import os
import shutil
import tempfile
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from fedrec.errors import FedrecError

OWNER_ONLY = 0o600


@contextmanager
def atomic_file(path: Path, private: bool = False) -> Iterator[Path]:
    """A temporary path beside ``path`` that takes its place, safely on the disk, when the block ends without an error.

    A link is refused: it may have come with somebody's folder, and point to a file that nobody meant. So is what is
    neither a file nor absent (a folder, /dev/null): whoever may write there would otherwise put a file in its place.
    ``private``: only the owner can read it.
    """
    if path.is_symlink():
        raise FedrecError(f"cannot write {path}: it is a link; remove it or choose another name")
    if path.name in ("", "..") or (path.exists() and not path.is_file()):
        raise FedrecError(f"cannot write {path}: it is not a file; give a file name with --out")
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
    try:
        if private:
            os.close(os.open(temporary, os.O_CREAT | os.O_EXCL | os.O_WRONLY, OWNER_ONLY))
        yield temporary
        if private:
            with suppress(OSError):  # some file systems have no permissions
                temporary.chmod(OWNER_ONLY)
        flush_to_disk(temporary)
        os.replace(temporary, path)
        with suppress(OSError):  # some systems cannot sync a folder
            flush_to_disk(path.parent, os.O_RDONLY)
    finally:
        temporary.unlink(missing_ok=True)


def flush_to_disk(path: Path, access: int = os.O_RDWR) -> None:
    """Flush it to the disk: a power cut could otherwise leave the name without its content."""
    place = os.open(path, access)
    try:
        os.fsync(place)
    finally:
        os.close(place)


def require_unlinked(path: Path, below: Path) -> None:
    """Refuse a path inside a folder from which a link on the way leads out."""
    for folder in (path, *path.parents):
        if folder == below:
            return
        if folder.is_symlink():
            raise FedrecError(f"{folder} is a link; replace it by the folder itself, or choose another --out")


def make_private_folder(path: Path) -> None:
    """Make a folder that only its owner may enter; one that is there stays as somebody made it."""
    path.mkdir(parents=True, exist_ok=True, mode=0o700)


def make_private_file(path: Path) -> None:
    """Make a file that only its owner may read, or make it so, whatever it holds: for others to write to."""
    os.close(os.open(path, os.O_CREAT | os.O_WRONLY, OWNER_ONLY))
    with suppress(OSError):  # some file systems have no permissions
        path.chmod(OWNER_ONLY)


@contextmanager
def scratch_folder(parent: Path) -> Iterator[Path]:
    """A folder on the disk of ``parent``, gone afterwards; finished files can be moved out of it at once."""
    parent.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix=".partial-", dir=parent))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
