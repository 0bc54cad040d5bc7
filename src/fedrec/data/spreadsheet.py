"""CSV for spreadsheets as well as programs: what they would run as a formula is marked, and unmarked when it is read.

A text is marked by an apostrophe before it if it begins with = + - or @ and holds anything beside letters, digits,
spaces and _ . - (so it may call, link or calculate), numbers excepted. Ids such as @alice or -0dNq9xFk stay as they
are. Apostrophes that stand there already are counted in, so that unmarking always gives the same text again.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, TextIO

if TYPE_CHECKING:
    import polars as pl

MARK = "'"
_FORMULA = re.compile(r"'*\s*[=+\-@＝＋－＠].*[^\w .\-]", re.DOTALL)
_NUMBER = re.compile(r"[+-]?\d+(\.\d*)?([eE][+-]?\d+)?")


def _is_formula(text: str) -> bool:
    return _FORMULA.match(text) is not None and _NUMBER.fullmatch(text) is None


def guard(value: Any) -> Any:
    """A cell as it is written to CSV."""
    return MARK + value if isinstance(value, str) and _is_formula(value) else value


def unguard(text: str) -> str:
    """A cell as it was before it was written."""
    return text[1:] if text.startswith(MARK) and _is_formula(text[1:]) else text


def unguard_column(column: pl.Series) -> pl.Series:
    marked = column.filter(column.str.starts_with(MARK)).unique().to_list()
    return column.replace({text: unguard(text) for text in marked}) if marked else column


def write_rows(file: TextIO, rows: Iterable[Sequence[Any]], end: str = "\r\n", by: str = ",") -> int:
    """Returns how many."""
    writer, count = csv.writer(file, delimiter=by, lineterminator=end), 0
    for row in rows:
        writer.writerow([guard(cell) for cell in row])
        count += 1
    return count
