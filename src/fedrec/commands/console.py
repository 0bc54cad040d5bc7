"""The terminal: what is printed, and tables."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from fedrec.errors import visible, visible_line

if TYPE_CHECKING:
    from fedrec.data import Filtered


class Screen(Console):
    """Everything that is printed passes here: names of users, items, files and columns are shown, never interpreted."""

    def __init__(self, stderr: bool = False) -> None:
        super().__init__(stderr=stderr, highlight=False, soft_wrap=True, markup=False, emoji=False)  # [brackets] stay

    def render_str(self, text: str, **how: Any) -> Text:
        return super().render_str(visible(text), **how)

    def on_broken_pipe(self) -> None:
        """Whoever reads has seen enough, which is no failure: the command line ends in peace."""
        # rich would end the process by itself, with an exit code that looks like a failure.
        raise BrokenPipeError


out, err = Screen(), Screen(stderr=True)


def describe_left_out(record: Filtered) -> str:
    return f"left out: {record}"


def download(done: int, total: int | None) -> None:
    """Progress of a download, on one line."""
    share = f" of {human(total)}" if total else ""
    # Without a terminal the carriage returns would fill a log with one endless line.
    if err.is_terminal:
        print(f"\rdownloading: {human(done)}{share}   ", end="\n" if total and done >= total else "", file=sys.stderr)


def table(columns: Sequence[str], rows: Sequence[Sequence[Any]], title: str | None = None) -> None:
    """A plain table on stdout; numbers to the right."""
    drawn = Table(*(), title=title, box=None, pad_edge=False, title_justify="left")
    for index, column in enumerate(columns):
        numeric = all(isinstance(row[index], int | float) for row in rows) and bool(rows)
        drawn.add_column(visible_line(column), justify="right" if numeric else "left", overflow="fold")
    for row in rows:
        drawn.add_row(*(_text(cell) for cell in row))
    out.print(drawn)


def _text(cell: Any) -> str:
    if isinstance(cell, float):
        return f"{cell:.4f}"
    return f"{cell:,}" if isinstance(cell, int) else visible_line(str(cell))


def human(count: float) -> str:
    for unit in ("B", "KiB", "MiB"):
        if count < 1024:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} GiB"
