"""Ctrl-C and SIGTERM during a command: one line says how to go on, and the exit code which of them it was."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import typer

from fedrec.commands import console
from fedrec.experiment.interrupt import TERMINATED, Terminated, sigterm_interrupts


@contextmanager
def says_how_to_go_on(how: str) -> Iterator[None]:
    """`how`: the command that continues; empty where another process says it."""
    try:
        with sigterm_interrupts():
            yield
    except KeyboardInterrupt as stop:
        if how:
            console.err.print(f"interrupted; to continue: {how}")
        if isinstance(stop, Terminated):
            raise typer.Exit(TERMINATED) from None
        raise
