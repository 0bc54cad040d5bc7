"""Which folders a process works in at this moment, without touching their locks.

To try a lock means to hold it for a moment, and a run that starts in this moment would be refused.
"""

from __future__ import annotations

import os
import re
import time
from pathlib import Path

TABLE = Path("/proc/locks")
LINE = re.compile(r"FLOCK\s+\S+\s+\S+\s+\S+\s+[0-9a-f]+:[0-9a-f]+:(\d+)\s")
LONGEST_SILENCE = 300.0
"""Seconds without a new line after which a run counts as stopped, on systems that do not list their locks."""


def list_locked_inodes() -> frozenset[int] | None:
    """Return the numbers of all locked files and folders; None where the system does not say.

    The device is left out: layered file systems report another one for the lock than for the file.
    """
    try:
        return frozenset(int(number) for number in LINE.findall(TABLE.read_text(encoding="ascii")))
    except (OSError, UnicodeDecodeError):
        return None


def is_at_work(folder: Path, locked: frozenset[int] | None, changed: float) -> bool:
    """Whether a process works in a folder whose newest file `changed` at this time."""
    if locked is None:
        return time.time() - changed < LONGEST_SILENCE
    try:
        return os.stat(folder).st_ino in locked
    except OSError:
        return False
