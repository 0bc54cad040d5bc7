"""Files that say for whom, or of what, lists are wanted."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np

from fedrec.data import read_table
from fedrec.data.attributes import Arrival, title_terms
from fedrec.data.items import read_items
from fedrec.data.sniff import is_name_of
from fedrec.data.spreadsheet import unguarded
from fedrec.errors import FedrecError, reason


def read_history(path: Path | str) -> dict[str, list[str]]:
    """Users and their items from a file: columns user,item (as any interactions file), or a single column of items."""
    path = Path(path)
    if (single := _single_column(path, "item")) is not None:
        return {"new": single}
    table, _ = read_table(path)
    order = np.arange(len(table)) if table.timestamp is None else np.argsort(table.timestamp, kind="stable")
    histories: dict[str, list[str]] = {}
    for row in order:
        user = str(table.user_ids[table.user[row]])
        histories.setdefault(user, []).append(str(table.item_ids[table.item[row]]))
    return histories


def read_ids(path: Path | str, role: str) -> list[str]:
    """Ids from a file of a single column, each once, with or without a header."""
    found = _single_column(Path(path), role)
    if found is None:
        raise FedrecError(f"{path} has several columns; give a file with one {role} id per line")
    return list(dict.fromkeys(found))


def _single_column(path: Path, role: str) -> list[str] | None:
    """The cells of a file with one column, whose cells may be quoted; None where there are several.

    Below a header that names the one column, everything on a line is the id, whatever marks are in it.
    """
    if path.suffix.lower() in {".parquet", ".pq"}:
        return None
    lines = [line.strip() for line in _text(path).splitlines() if line.strip()]
    if lines and is_name_of(role, _unquoted(lines[0])):
        return [_unquoted(line) for line in lines[1:]]
    several = any(len(next(csv.reader([line], delimiter=mark), [])) > 1 for line in lines for mark in ",\t;|")
    return None if several else [_unquoted(line) for line in lines]


def _unquoted(line: str) -> str:
    """One cell: quotes around it are taken off, doubled ones within become one."""
    quoted = len(line) > 1 and line[0] == line[-1] == '"'
    return unguarded(line[1:-1].replace('""', '"') if quoted else line)


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise FedrecError(f"cannot read {path}: {reason(error)}") from None


def read_arrivals(path: Path | str) -> list[Arrival]:
    """New items from a CSV with a column `item` and any of `tags` (joined by |), `title`, `year`, or numbers."""
    return [Arrival(line.item, (*line.tags, *title_terms(line.title, line.year)), line.title, line.numbers)
            for line in read_items(path)]  # fmt: skip
