"""Commands that are shown to be copied: they work as they stand, with the files of one's own that this process uses."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterable
from pathlib import Path

_FILES: list[str] = []  # given with --use
PLACEHOLDER = "FILE.py"


def take_files(paths: Iterable[Path]) -> None:
    """Know the files that commands need from now on, instead of those before."""
    _FILES[:] = map(str, paths)


def command_line(*words: object, own: bool = False) -> str:
    """A command of fedrec as a shell takes it. `own`: without a file of one's own it cannot work, whichever that is."""
    files = _FILES or [PLACEHOLDER] * own
    return shlex.join(["fedrec", *(word for file in files for word in ("--use", file)), *map(str, words)])


def again(out: Path) -> str:
    """The command of this process, so that it goes on with what is in `out`."""
    words = sys.argv[1:]
    given = {word.partition("=")[0] for word in words}
    more = [*["--resume"] * ("--resume" not in given), *["--out", str(out)] * ("--out" not in given)]
    return shlex.join(["fedrec", *words, *more])
