"""Understanding a delimited text file from its first lines: delimiter, header, and what its columns hold."""

from __future__ import annotations

import csv
import zlib
from dataclasses import dataclass
from pathlib import Path

from fedrec.data.content import guess_content
from fedrec.data.roles import Column, ColumnRequest, is_known
from fedrec.data.unpack import gunzip
from fedrec.errors import FedrecError, reason

_DELIMITERS = {"\t": "tab-separated", ",": "comma-separated", ";": "semicolon-separated", "|": "bar-separated"}
_SAMPLE_LINES = 50
_SAMPLE_BYTES = 1 << 16


@dataclass(frozen=True)
class Shape:
    """What the first lines show. ``names`` has one entry per column, from the header or "1", "2", ..."""

    delimiter: str
    label: str
    header: bool
    names: list[str]
    sample: tuple[tuple[str, ...], ...] = ()
    """The first rows below the header."""

    def columns(self) -> list[Column]:
        """What stands in each column, as far as the first rows show it."""
        import polars as pl

        cells = [[row[place] for row in self.sample if place < len(row)] for place in range(len(self.names))]
        return [
            Column(place, name, guess_content(pl.Series(values, dtype=pl.String)))
            for place, (name, values) in enumerate(zip(self.names, cells, strict=True))
        ]


def read_raw(path: Path) -> bytes:
    """The file's bytes, unzipped, without a byte order mark, lines ended by LF."""
    try:
        # By its first bytes and not by its name: browsers unzip downloads and keep the ending, or the reverse.
        raw = path.read_bytes()
        raw = gunzip(path) if raw[:2] == b"\x1f\x8b" else raw
    except (OSError, EOFError, zlib.error) as error:
        raise FedrecError(f"cannot read {path}: {reason(error)}; check the file") from error
    raw = _utf8(path, raw)
    # Old spreadsheets end lines by CR alone; counting lines and parsing both need one convention.
    return raw.replace(b"\r\n", b"\n").replace(b"\r", b"\n") if b"\r" in raw else raw


def read_text(path: Path) -> bytes:
    """The same; an error where it is not text."""
    raw = read_raw(path)
    if b"\0" in raw:
        raise FedrecError(f"{path} is not a text file in UTF-8; save it as such, or give a CSV, TSV or Parquet file")
    try:
        raw.decode("utf-8")
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        raise FedrecError(f"{path}, line {line}: not UTF-8 text; save the file as UTF-8") from error
    if not raw.strip():
        raise FedrecError(f"{path} is empty")
    return raw


def _utf8(path: Path, raw: bytes) -> bytes:
    """Without a byte order mark; UTF-16, which spreadsheets call Unicode text, as UTF-8."""
    if raw[:2] not in (b"\xff\xfe", b"\xfe\xff"):
        return raw.removeprefix(b"\xef\xbb\xbf")
    try:
        return raw.decode("utf-16").encode()
    except UnicodeDecodeError:
        raise FedrecError(f"{path} starts like UTF-16 text but is not; save the file as UTF-8") from None


def sniff(path: Path, text: bytes, wish: ColumnRequest) -> tuple[Shape, bytes]:
    """The shape of the table, and the text with a delimiter of a single character."""
    head = _head(path, text)
    if all("::" in line for line in head):
        text, head, delimiter, label = (
            text.replace(b"::", b"\t"),
            [h.replace("::", "\t") for h in head],
            "\t",
            "'::'-separated",
        )
    else:
        delimiter = _delimiter(path, head)
        label = _DELIMITERS.get(delimiter, "space-separated")
    rows = [tuple(cell.strip() for cell in row) for row in csv.reader(head, delimiter=delimiter)]
    header = _has_header(rows, wish)
    names = list(rows[0]) if header else [str(j + 1) for j in range(len(rows[0]))]
    return Shape(delimiter, label, header, names, tuple(rows[header:])), text


def bad_line(path: Path, text: bytes, shape: Shape, reason: str) -> FedrecError:
    """The error for a table that could not be parsed, with the first line that has too many or too few cells."""
    expected, few, line = len(shape.names), "", 0
    reader = csv.reader(text.decode().split("\n"), delimiter=shape.delimiter)
    try:
        for row in reader:
            first, line = line + 1, reader.line_num
            wrong = (
                f"{path}, line {first}: {len(row)} columns instead of {expected}; fix or remove this row, or put such "
                "rows aside (--skip-bad)"
            )
            if len(row) > expected:  # never tolerated, unlike too few
                return FedrecError(wrong)
            if 0 < len(row) < expected:
                few = few or (wrong if line == first else f"{path}, line {first}: a quotation mark is never closed")
    except csv.Error as error:  # a cell longer than the csv module allows
        reason = f"line {line + 1}: {error}"
    if few:
        return FedrecError(few)
    if b'"' in text:
        reason = "there is a quotation mark inside a cell"
    return FedrecError(f"{path} cannot be read as {shape.label} text: {reason}")


def _head(path: Path, text: bytes) -> list[str]:
    # Cut bytes may end within a character; it belongs to a line that is dropped below.
    lines = text[:_SAMPLE_BYTES].decode("utf-8", "ignore").split("\n")[: _SAMPLE_LINES + 1]
    cut = len(text) > _SAMPLE_BYTES and len(lines) <= _SAMPLE_LINES
    if cut and len(lines) <= 2:
        raise FedrecError(f"{path}, line {len(lines)}: longer than {_SAMPLE_BYTES:,} bytes; is this a table?")
    if not lines[0].strip():
        raise FedrecError(f"{path}, line 1 is empty; start with a header or the first row")
    return [line for line in (lines[:-1] if cut else lines) if line.strip()]


def _delimiter(path: Path, head: list[str]) -> str:
    """The candidate that cuts most of the sampled lines into the same number (at least two) of cells."""
    best, best_share = "", 0.0
    for candidate in (*_DELIMITERS, " "):
        widths = [len(row) for row in csv.reader(head, delimiter=candidate)]
        # The most common width, not that of the first line: titles may stand above a table.
        common = max(set(widths), key=widths.count)
        share = widths.count(common) / len(widths) if common >= 2 else 0.0
        # Strictly more, so that on a tie the earlier candidate wins; a blank, which occurs in names, comes last.
        if share > best_share:
            best, best_share = candidate, share
    if not best:
        raise FedrecError(f"{path}, line 1: fewer than two columns found; separate user and item by a comma or tab")
    return best


def _has_header(rows: list[tuple[str, ...]], wish: ColumnRequest) -> bool:
    first, rest = rows[0], rows[1:]
    if any(name in first for name in (*wish.names(), *wish.usual.values())):
        return True
    # A number in the first line is data: nobody names a column 5.
    if any(_number(cell) is not None for cell in first):
        return False
    if wish.names():
        return True
    below = [[row[place] for row in rest if place < len(row)] for place in range(len(first))]
    return any(_is_name(cell, values) for cell, values in zip(first, below, strict=True))


def _is_name(cell: str, below: list[str]) -> bool:
    """A usual one; or a word above numbers or dates, even if we do not recognise it."""
    import polars as pl

    if is_known(cell) and cell not in below:
        return True
    if below and all(_number(value) is not None for value in below):
        return True
    return guess_content(pl.Series(below, dtype=pl.String)) == "dates" and guess_content(pl.Series([cell])) == "words"


def _number(cell: str) -> float | None:
    try:
        return float(cell)
    except ValueError:
        return None
