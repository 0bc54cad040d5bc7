"""Read the files that say for whom, or of what, lists are wanted."""

from __future__ import annotations

import csv
from collections.abc import Callable
from pathlib import Path

import numpy as np

from fedrec.data import read_table
from fedrec.data.attributes import Arrival
from fedrec.data.items import read_items, title_terms
from fedrec.data.roles import Columns, by_flag, is_name_of
from fedrec.data.spreadsheet import unguard
from fedrec.errors import FedrecError, reason


def read_history(
    path: Path | str,
    columns: Columns | None = None,
    usual: Columns | None = None,
    say: Callable[[str], None] = lambda note: None,
) -> dict[str, list[str]]:
    """Read users and their items: columns user,item (as any interactions file), or a single column of items.

    `columns` name those of this file; where it has columns of `usual`, they are taken. `say` is given the choice.
    """
    path, columns, usual = Path(path), columns or {}, usual or {}
    if (single := _read_single_column(path, "item", {**usual, **columns}.get("item"))) is not None:
        return {"new": single}
    table, guess = read_table(path, columns, usual=usual, ask=_by_column_flag)
    say(str(guess))
    order = np.arange(len(table)) if table.timestamp is None else np.argsort(table.timestamp, kind="stable")
    histories: dict[str, list[str]] = {}
    for row in order:
        user = str(table.user_ids[table.user[row]])
        histories.setdefault(user, []).append(str(table.item_ids[table.item[row]]))
    return histories


def _by_column_flag(role: str, column: str) -> str:
    """Name the flag of `fedrec recommend` for a column; its --user is one user, not a column."""
    return by_flag(f"{role}-column", column)


def read_ids(path: Path | str, role: str) -> list[str]:
    """Read ids from a file of a single column, each once, with or without a header."""
    found = _read_single_column(Path(path), role)
    if found is None:
        raise FedrecError(f"{path} has several columns; give a file with one {role} id per line")
    return list(dict.fromkeys(found))


def _read_single_column(path: Path, role: str, name: str | int | None = None) -> list[str] | None:
    """Read the cells of a file with one column, which may be quoted; None where there are several columns.

    Below a header that names the one column (`name`, or a usual name), the whole line is the id, commas and all.
    """
    if path.suffix.lower() in {".parquet", ".pq"}:
        return None
    lines = [line.strip() for line in _read_text(path).splitlines() if line.strip()]
    if lines and (is_name_of(role, _unquote(lines[0])) or _unquote(lines[0]) == name):
        return [_unquote(line) for line in lines[1:]]
    several = any(len(next(csv.reader([line], delimiter=mark), [])) > 1 for line in lines for mark in ",\t;|")
    return None if several else [_unquote(line) for line in lines]


def _unquote(line: str) -> str:
    """Remove the quotes around a cell, and make one of doubled ones within."""
    quoted = len(line) > 1 and line[0] == line[-1] == '"'
    return unguard(line[1:-1].replace('""', '"') if quoted else line)


def _read_text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise FedrecError(f"cannot read {path}: {reason(error)}") from None


def read_arrivals(path: Path | str) -> list[Arrival]:
    """Read new items from a CSV with a column `item` and any of `tags` (joined by |), `title`, `year`, or numbers."""
    return [
        Arrival(line.item, (*line.tags, *title_terms(line.title, line.year)), line.title, line.numbers)
        for line in read_items(path)
    ]
