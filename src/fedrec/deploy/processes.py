"""Child processes that end with their parent: however a deployment ends, none of them keeps running."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from fedrec.data.atomic import make_private_file

PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36
PATIENCE = 8.0  # seconds between asking to end and ending
GONE = 120.0  # seconds for what was killed to be gone, which takes a busy machine a while


class Processes:
    """Starts processes and ends them with all their descendants.

    Flower's processes start others in sessions of their own, so a process group does not hold them. On Linux this
    process adopts what is left by their parents (a subreaper), so that none can be lost from sight, and the first
    generation dies when this process is killed.
    """

    def __init__(self) -> None:
        self.started: list[subprocess.Popen[bytes]] = []
        self._others = descendants(os.getpid())  # not ours to end
        _prctl(PR_SET_CHILD_SUBREAPER, 1)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with _ignore_signals():
            self.close()

    def start(self, command: Sequence[str], env: Mapping[str, str], log: Path) -> subprocess.Popen[bytes]:
        make_private_file(log)
        # Appended: after a restart the log of the first start is what explains it.
        with log.open("ab") as file:
            process = subprocess.Popen(
                list(command),
                env=dict(env),
                # No terminal to read from: a process that asks a question would wait for ever.
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                # A session of its own, so that Ctrl-C reaches this process alone, which ends the others in order.
                start_new_session=True,
                preexec_fn=_dies_with_parent,
            )
        self.started.append(process)
        return process

    def close(self) -> None:
        """End all processes: SIGTERM to the newest first, then SIGKILL to whatever is left, by process id."""
        known: dict[int, str] = {}
        for process in reversed(self.started):
            known |= _alive(descendants(process.pid) | {process.pid})
            with contextlib.suppress(ProcessLookupError):
                process.send_signal(signal.SIGTERM)
        until = time.monotonic() + PATIENCE
        while time.monotonic() < until:
            self._reap()
            known |= _alive(descendants(os.getpid()) - self._others)
            if not _still(known):
                break
            time.sleep(0.1)
        for pid in _still(known):
            with contextlib.suppress(ProcessLookupError):
                # A process that has just ended by itself is no error.
                os.kill(pid, signal.SIGKILL)
        until = time.monotonic() + GONE
        while any(Path(f"/proc/{pid}").exists() for pid in known) and time.monotonic() < until:
            # Also those who have ended and wait to be collected.
            self._reap()
            time.sleep(0.05)

    def _reap(self) -> None:
        """Collect those who ended: our own, and orphans that we adopted."""
        for process in self.started:
            process.poll()
        for pid in _zombies(os.getpid()):
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, os.WNOHANG)


def descendants(pid: int) -> set[int]:
    """All processes below one."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and (found := _stat(int(entry.name))) is not None:
            children.setdefault(found[1], []).append(int(entry.name))
    below, left = set[int](), [pid]
    while left:
        for child in children.get(left.pop(), []):
            if child not in below:
                below.add(child)
                left.append(child)
    return below


def _stat(pid: int) -> tuple[str, int, str] | None:
    """State, parent and start time of a process."""
    try:
        # From the last bracket on: the name of a program may itself contain brackets and blanks.
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (OSError, UnicodeDecodeError):
        return None
    return fields[0], int(fields[1]), fields[19]


def _alive(pids: set[int]) -> dict[int, str]:
    """Map process ids to start times: the system may give an id again."""
    found = ((pid, _stat(pid)) for pid in pids)
    # Zombies do not run any more, and only wait to be collected.
    return {pid: stat[2] for pid, stat in found if stat is not None and stat[0] != "Z"}


def _still(known: Mapping[int, str]) -> list[int]:
    now = _alive(set(known))
    return [pid for pid, started in known.items() if now.get(pid) == started]


def _zombies(parent: int) -> list[int]:
    pids = (int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit())
    return [pid for pid in pids if (stat := _stat(pid)) is not None and stat[:2] == ("Z", parent)]


def _prctl(option: int, value: int) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0)


def _dies_with_parent() -> None:
    _prctl(PR_SET_PDEATHSIG, signal.SIGTERM)


@contextlib.contextmanager
def _ignore_signals() -> Iterator[None]:
    """Ignore signals: an impatient second Ctrl-C must not leave half of the processes running."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, signal.SIG_IGN) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
