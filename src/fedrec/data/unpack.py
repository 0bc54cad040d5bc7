"""Unpacking archives within limits: a small archive can unpack to more than the disk holds."""

from __future__ import annotations

import gzip
import io
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from fedrec.errors import FedrecError

LARGEST = 8 << 30
RATIO = 100  # tables of numbers and text shrink to a third or a tenth
HARMLESS = 64 << 20  # below this size any ratio is accepted
_PIECE = 1 << 16


class Allowance:
    """How much may still come out of an archive."""

    def __init__(self, archive: Path) -> None:
        self.archive, self.packed, self.used = archive, archive.stat().st_size, 0

    def spend(self, size: int) -> None:
        self.used += size
        if self.used > LARGEST:
            raise self._refusal(f"{LARGEST:,} bytes")
        if self.used > max(HARMLESS, RATIO * self.packed):
            raise self._refusal(f"{RATIO} times its size")

    def _refusal(self, what: str) -> FedrecError:
        return FedrecError(f"{self.archive} unpacks to more than {what}; unpack it by hand if you trust it")

    def pieces(self, source: IO[bytes] | gzip.GzipFile) -> Iterator[bytes]:
        while piece := source.read(_PIECE):
            self.spend(len(piece))
            yield piece


def gunzip(path: Path) -> bytes:
    """The content of a gzip file. Fails as `gzip` does where the file is damaged."""
    content = io.BytesIO()
    with gzip.open(path) as source:
        for piece in Allowance(path).pieces(source):
            content.write(piece)
    return content.getvalue()


def require_bounded_zip(path: Path) -> None:
    """Check the declared sizes of a zip file that another library reads, which unpacks no more than is declared."""
    allowance = Allowance(path)
    with zipfile.ZipFile(path) as zipped:
        for member in zipped.infolist():
            allowance.spend(member.file_size)
