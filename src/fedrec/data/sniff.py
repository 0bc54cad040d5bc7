"""Understanding a delimited text file from its first lines: delimiter, header, and which column is what."""

from __future__ import annotations

import csv
import re
import shlex
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from fedrec.data.unpack import gunzip
from fedrec.errors import FedrecError, reason, unknown


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


ROLES = {
    "user": _names("user userid username uid u reviewerid customer customerid member memberid visitorid"),
    "item": _names(
        "item itemid iid i movie movieid film filmid product productid asin parentasin book bookid isbn "
        "artist artistid track trackid song songid article articleid business businessid"
    ),
    "rating": _names("rating ratings score stars star weight value count plays overall preference"),
    "timestamp": _names("timestamp time ts date datetime unixreviewtime unixtime createdat"),
    "title": _names("itemtitle itemname producttitle productname movietitle"),  # a bare title may be that of a review
}
"""What columns are commonly called, in the order in which files without header list them."""
_DELIMITERS = {"\t": "tab-separated", ",": "comma-separated", ";": "semicolon-separated", "|": "bar-separated"}
_SAMPLE_LINES = 50
_SAMPLE_BYTES = 1 << 16
EARLIEST_PLAUSIBLE_TIME = 1e8  # 1973 in Unix seconds; no rating scale reaches it


@dataclass(frozen=True)
class Shape:
    """What the first lines show. ``names`` has one entry per column, from the header or "1", "2", ..."""

    delimiter: str
    label: str
    header: bool
    names: list[str]
    sample: tuple[tuple[str, ...], ...] = ()
    """The first rows below the header."""


def read_text(path: Path) -> bytes:
    """The file's bytes, unzipped, without a byte order mark, lines ended by LF; an error where they are not text."""
    try:
        raw = path.read_bytes()
        raw = gunzip(path) if raw[:2] == b"\x1f\x8b" else raw
    except (OSError, EOFError, zlib.error) as error:
        raise FedrecError(f"cannot read {path}: {reason(error)}; check the file") from error
    raw = _utf8(path, raw)
    if b"\0" in raw:
        raise FedrecError(f"{path} is not a text file in UTF-8; save it as such, or give a CSV, TSV or Parquet file")
    try:
        raw.decode("utf-8")
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        raise FedrecError(f"{path}, line {line}: not UTF-8 text; save the file as UTF-8") from error
    if not raw.strip():
        raise FedrecError(f"{path} is empty")
    return raw.replace(b"\r\n", b"\n").replace(b"\r", b"\n") if b"\r" in raw else raw


def _utf8(path: Path, raw: bytes) -> bytes:
    """Without a byte order mark; UTF-16, which spreadsheets call Unicode text, as UTF-8."""
    if raw[:2] not in (b"\xff\xfe", b"\xfe\xff"):
        return raw.removeprefix(b"\xef\xbb\xbf")
    try:
        return raw.decode("utf-16").encode()
    except UnicodeDecodeError:
        raise FedrecError(f"{path} starts like UTF-16 text but is not; save the file as UTF-8") from None


def sniff(path: Path, text: bytes, columns: Mapping[str, str | int] | None) -> tuple[Shape, bytes]:
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
    header = _has_header(rows, columns)
    names = list(rows[0]) if header else [str(j + 1) for j in range(len(rows[0]))]
    return Shape(delimiter, label, header, names, tuple(rows[header:])), text


def find_roles(path: Path, shape: Shape, columns: Mapping[str, str | int] | None,
               say: str | None = None) -> dict[str, int]:  # fmt: skip
    """Which column (from 0) plays which role; what the caller says goes before what the names suggest.

    `say`: how to name the columns, instead of by `fedrec data import`.
    """
    given = {role: _given_column(path, shape, role, column) for role, column in (columns or {}).items()}
    if len(set(given.values())) < len(given):
        raise FedrecError(f"{path}: the same column is given as {' and '.join(given)}; give two different ones")
    guessed = _roles_by_name(shape) if shape.header else {} if columns else _roles_by_position(path, shape)
    roles = {role: j for role, j in guessed.items() if j not in given.values()} | given
    for j in set(roles.values()) - {given[role] for role, column in (columns or {}).items() if isinstance(column, int)}:
        if shape.names.count(shape.names[j]) > 1:
            raise FedrecError(f"{path} has two columns '{shape.names[j]:.40}'; rename one, or choose by number: "
                              f"fedrec data import {shlex.quote(str(path))} --name NAME --user 1 --item 2")  # fmt: skip
    if missing := [role for role in ("user", "item") if role not in roles]:
        found = _listed(shape.names)
        flags = " ".join(f"--{role} COLUMN" for role in missing)
        say = say or f"fedrec data import {shlex.quote(str(path))} --name NAME {flags}"
        raise FedrecError(
            f"{path}: no column for {' and '.join(missing)} among {found}; rename one, or choose with: {say}"
        )
    return {role: roles[role] for role in ROLES if role in roles}


def bad_line(path: Path, text: bytes, shape: Shape, reason: str) -> FedrecError:
    """The error for a table that could not be parsed, with the first line that has too many or too few cells."""
    expected, few, line = len(shape.names), "", 0
    reader = csv.reader(text.decode().split("\n"), delimiter=shape.delimiter)
    try:
        for row in reader:
            first, line = line + 1, reader.line_num
            wrong = f"{path}, line {first}: {len(row)} columns instead of {expected}; fix or remove this row"
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
        common = max(set(widths), key=widths.count)
        share = widths.count(common) / len(widths) if common >= 2 else 0.0
        if share > best_share:
            best, best_share = candidate, share
    if not best:
        raise FedrecError(f"{path}, line 1: fewer than two columns found; separate user and item by a comma or tab")
    return best


def _has_header(rows: list[tuple[str, ...]], columns: Mapping[str, str | int] | None) -> bool:
    first, rest = rows[0], rows[1:]
    if columns and any(column in first for column in columns.values()):
        return True
    if any(_number(cell) is not None for cell in first):
        return False
    known = {alias for aliases in ROLES.values() for alias in aliases}
    if any(_normal(cell) in known for cell in first):
        return True
    # Words above a column of numbers: a header, even if we do not recognise its names.
    return any(all(_number(cell) is not None for cell in column) for column in zip(*rest, strict=False))


def _roles_by_name(shape: Shape) -> dict[str, int]:
    names = [_normal(name) for name in shape.names]
    found = {}
    for role, aliases in ROLES.items():
        # 'user_id' goes before 'user', which is often a readable name beside it.
        matching = sorted(
            (j for j, name in enumerate(names) if name in aliases), key=lambda j: (not names[j].endswith("id"), j)
        )
        if matching:
            found[role] = matching[0]
    return found


def _roles_by_position(path: Path, shape: Shape) -> dict[str, int]:
    width = len(shape.names)
    if width > 4:
        how = f"fedrec data import {shlex.quote(str(path))} --name NAME --user 1 --item 2"
        raise FedrecError(f"{path} has {width} columns and no header; add one, or choose columns by number: {how}")
    roles = list(ROLES)[:width]
    if width == 3 and all((_number(row[2]) or 0.0) >= EARLIEST_PLAUSIBLE_TIME for row in shape.sample if len(row) == 3):
        roles[2] = "timestamp"
    return {role: j for j, role in enumerate(roles)}


def _listed(names: list[str]) -> str:
    shown = [name if len(name) <= 40 else f"{name[:40]}..." for name in names[:20]]
    return ", ".join(shown) + (f" and {len(names) - 20:,} more" if len(names) > 20 else "")


def _given_column(path: Path, shape: Shape, role: str, column: str | int) -> int:
    if role not in ROLES:
        raise unknown("column role", role, ROLES)
    if isinstance(column, int):
        if not 1 <= column <= len(shape.names):
            raise FedrecError(f"{path} has columns 1 to {len(shape.names)}, not {column}")
        return column - 1
    if column not in shape.names:
        raise FedrecError(f"{path} has no column '{column}'; it has {_listed(shape.names)}")
    return shape.names.index(column)


def is_name_of(role: str, name: str) -> bool:
    """Whether a column of this name is commonly this one."""
    return _normal(name) in ROLES[role]


def _normal(name: str) -> str:
    """'User_ID', 'userId' and RecBole's 'user_id:token' are one name."""
    return re.sub(r"[^a-z0-9]", "", name.split(":")[0].lower())


def _number(cell: str) -> float | None:
    try:
        return float(cell)
    except ValueError:
        return None
