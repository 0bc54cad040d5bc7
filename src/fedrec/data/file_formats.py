"""The ending of a file's name says what is written into it."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from fedrec.errors import FedrecError

PAGE = (".html",)


def ending_of(out: Path, known: Iterable[str]) -> str:
    """The ending of `out` in small letters; an error where it is not one of those that can be written."""
    ending = out.suffix.lower()
    *others, last = known
    if ending not in (*others, last):
        usable = f"{', '.join(others)} or {last}" if others else last
        raise FedrecError(f"--out {out}: the ending of the name says the format; use {usable}")
    return ending
