"""Rows of a file that cannot be used: which, why, and what was left once they are put aside."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from fedrec.data.atomic import atomic_file
from fedrec.data.spreadsheet import guard

if TYPE_CHECKING:
    import polars as pl

MISSING = ["nan", "NaN", "NAN", "null", "NULL", "Null", "None", "<NA>", "NaT"]
"""What programs write where a value is missing."""
LONGEST_ID = 1_000  # characters; ids are kept in one array, whose cells are as wide as the longest
LONGEST_TEXT = 2_000  # characters of a row that are kept with it
NO_OBJECT = "no JSON object on them"
SHOWN = 3  # lines that are named where there are many


@dataclass(frozen=True)
class BadRow:
    """A row that cannot be used, by its line in the file (of Parquet: its number)."""

    line: int
    problem: str
    text: str


@dataclass(frozen=True)
class BadRows:
    """All of them, by line; what a file's owner wants to see and to mend."""

    rows: tuple[BadRow, ...] = field(repr=False)

    def __len__(self) -> int:
        return len(self.rows)

    def by_problem(self) -> dict[str, list[BadRow]]:
        """The rows of each problem, the most frequent problem first."""
        groups: dict[str, list[BadRow]] = {}
        for row in self.rows:
            groups.setdefault(row.problem, []).append(row)
        return dict(sorted(groups.items(), key=lambda group: -len(group[1])))

    def __str__(self) -> str:
        return "; ".join(f"{len(rows):,} with {problem}" for problem, rows in self.by_problem().items())

    def write(self, path: Path) -> Path:
        """As a table of line, problem and text."""
        with atomic_file(path) as temporary, temporary.open("w", encoding="utf-8", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(["line", "problem", "text"])
            writer.writerows([row.line, row.problem, guard(row.text)] for row in self.rows)
        return path


def list_lines(rows: Sequence[BadRow]) -> str:
    """The first lines of a problem, with what stands in the very first."""
    first = ", ".join(f"{row.line:,}" for row in rows[:SHOWN]) + (", ..." if len(rows) > SHOWN else "")
    text = rows[0].text if len(rows[0].text) <= 60 else f"{rows[0].text[:60]}..."
    return f"line{'s' * (len(rows) > 1)} {first}: {text}"


@dataclass
class Lines:
    """The lines of a text that can be read at all, with their numbers from 1, and those that cannot."""

    text: bytes
    numbers: list[int]
    bad: list[BadRow]


def split_lines(raw: bytes) -> Lines:
    """Without lines that are not UTF-8 text, and without empty ones, which mean nothing."""
    good, numbers, bad = list[bytes](), list[int](), list[BadRow]()
    for number, line in enumerate(raw.split(b"\n"), 1):
        if not line.strip():
            continue
        if b"\0" in line or not _is_text(line):
            bad.append(BadRow(number, "bytes that are not UTF-8 text", line.decode("utf-8", "replace")[:LONGEST_TEXT]))
        else:
            good.append(line)
            numbers.append(number)
    return Lines(b"\n".join(good), numbers, bad)


def _is_text(line: bytes) -> bool:
    try:
        line.decode("utf-8")
    except UnicodeDecodeError:
        return False
    return True


def drop_odd_lines(lines: Lines, problem: Callable[[str], str]) -> Lines:
    """Without the lines of which `problem` has something to say."""
    good, numbers, bad = list[str](), list[int](), list(lines.bad)
    for number, line in zip(lines.numbers, lines.text.decode("utf-8").split("\n"), strict=True):
        if what := problem(line):
            bad.append(BadRow(number, what, line[:LONGEST_TEXT]))
        else:
            good.append(line)
            numbers.append(number)
    return Lines("\n".join(good).encode(), numbers, bad)


def has_other_width(delimiter: str, width: int) -> Callable[[str], str]:
    """What is wrong with a line that should have so many cells."""

    def problem(line: str) -> str:
        if '"' not in line:
            count = line.count(delimiter) + 1
        elif line.count('"') % 2:
            return "a quotation mark that is never closed"
        else:
            count = len(next(csv.reader([line], delimiter=delimiter)))
        return "" if count == width else f"{'more' if count > width else 'fewer'} than {width} cells"

    return problem


def is_no_object(line: str) -> str:
    """What is wrong with a line of JSON Lines."""
    try:
        return "" if isinstance(json.loads(line), dict) else NO_OBJECT
    except (ValueError, RecursionError):
        return NO_OBJECT


# -- values --


def odd_ids(series: pl.Series, typed: bool) -> Iterator[tuple[str, pl.Series]]:
    """What is wrong with ids (stripped text, or numbers), and where. `typed`: of a table whose columns have types."""
    import polars as pl

    if series.dtype.is_float():
        whole = series.cast(pl.Int64, strict=False)
        yield "an id", series.is_null() | whole.is_null() | (series != series.round())
        return
    yield "an id", series.is_null() | ((series == "") if series.dtype == pl.String else series.is_null())
    if series.dtype == pl.String:
        yield "an id: it stands for a missing value", series.is_in(MISSING)
        if typed:  # in a text file such a line was refused before
            yield "an id: it contains a NUL character", series.str.contains("\0", literal=True)
        yield f"an id: more than {LONGEST_ID:,} characters", series.str.len_chars() > LONGEST_ID


def odd_ratings(values: pl.Series) -> pl.Series:
    """Where a rating, as a number, is none."""
    return values.is_null() | ~values.is_finite().fill_null(False)
