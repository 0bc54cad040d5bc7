"""Tables in Markdown, for everything that writes one."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any


def markdown_lines(header: Sequence[Any], rows: Iterable[Sequence[Any]]) -> Iterator[str]:
    """Write a table line by line; a bar within a cell is escaped."""
    yield _line(header)
    yield "|" + "---|" * len(header)
    yield from map(_line, rows)


def _line(cells: Iterable[Any]) -> str:
    return "| " + " | ".join(str(cell).replace("|", "\\|") for cell in cells) + " |"
