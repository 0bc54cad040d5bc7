"""Ctrl-C and SIGTERM while a run trains: the round in progress is finished first, within a time limit."""

from __future__ import annotations

import _thread
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

# what a shell reports of a process that SIGTERM ended; schedulers look for it
TERMINATED = 128 + signal.SIGTERM
# Seconds: schedulers and containers kill ten or more after SIGTERM, and a checkpoint needs some of them.
GRACE = 5.0


class Interrupt:
    """A signal that has arrived and takes effect at the end of the round."""

    def __init__(self) -> None:
        self.heard: signal.Signals | None = None
        self._obeyed = self._expired = False
        self._timer = threading.Timer(GRACE, self._expire)
        # A daemon, or a finished program would wait for the timer.
        self._timer.daemon = True

    def hear(self, number: int, _: FrameType | None) -> None:
        """A second Ctrl-C takes effect at once; a second SIGTERM is ignored, because some schedulers send it twice."""
        if self.heard is None:
            self.heard = signal.Signals(number)
            self._timer.start()
            return
        too_long = self._expired and not self._obeyed
        again = number == signal.SIGINT and not self._expired
        if too_long or again:
            raise KeyboardInterrupt

    def obey(self, heard: bool) -> None:
        """To be called between two rounds, where everything can be saved. `heard`: whether any process heard one."""
        if heard:
            self._obeyed = True
            self._timer.cancel()
            raise KeyboardInterrupt

    def forget(self) -> None:
        self._obeyed = True
        self._timer.cancel()

    def _expire(self) -> None:
        self._expired = True
        if not self._obeyed and self.heard is not None:
            _thread.interrupt_main(self.heard)


class Terminated(KeyboardInterrupt):
    """SIGTERM: like Ctrl-C, but with a different exit code."""


@contextmanager
def sigterm_interrupts() -> Iterator[None]:
    """Batch schedulers send SIGTERM before they kill, early enough to save. Only the main thread receives signals."""

    def interrupt(_: int, __: FrameType | None) -> None:
        # Some schedulers send it twice, while the state is being saved.
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        raise Terminated

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@contextmanager
def at_round_ends() -> Iterator[Interrupt]:
    """Inside the `with`, signals wait for `obey`; afterwards the previous handler receives one that has arrived."""
    interrupt = Interrupt()
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    # Ignored signals stay ignored: a program under nohup must not wake up to them.
    before = {number: answer for number, answer in before.items() if answer not in (signal.SIG_IGN, None)}
    if threading.current_thread() is not threading.main_thread():
        # Other threads neither receive signals nor set handlers.
        before = {}
    for number in before:
        signal.signal(number, interrupt.hear)
    try:
        yield interrupt
    finally:
        interrupt.forget()
        for number, answer in before.items():
            signal.signal(number, answer)
        if interrupt.heard is not None:
            # Raised again, so that whoever handled it before learns of it after the state is safe.
            signal.raise_signal(interrupt.heard)
