"""Waiting for what happens, never for time to pass: the one module of the tests that reads a clock."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable
from typing import Any

GENEROUS = 1800.0
"""Seconds after which something hangs: on a busy machine what is waited for may take minutes."""


def wait_until(happened: Callable[[], bool], process: subprocess.Popen[Any] | None = None) -> None:
    """Return when it has happened; where a process ends without it, say at once what that printed."""
    until = time.monotonic() + GENEROUS
    while not happened():
        gone = process is not None and process.poll() is not None
        assert not gone or happened(), process and process.communicate()
        assert time.monotonic() < until, "it hangs"
        time.sleep(0.005)


def wait_for_end(process: subprocess.Popen[str]) -> tuple[int, str]:
    """Return the exit code of a process and the rest of its stderr; one that hangs is killed."""
    try:
        _, err = process.communicate(timeout=GENEROUS)
    except subprocess.TimeoutExpired:
        process.kill()
        raise
    return process.returncode, err or ""
