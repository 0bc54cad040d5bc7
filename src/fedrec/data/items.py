"""The user's own description of items: a CSV with a line for each, in words or in numbers."""

from __future__ import annotations

import csv
import hashlib
import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from fedrec.data.interactions import Interactions, ItemInfo
from fedrec.data.sparse import csr
from fedrec.data.spreadsheet import unguard
from fedrec.errors import FedrecError, reason, some

WORDS = ("tags", "title", "year")
LARGEST = 1e30  # so that its square is still a finite float32


@dataclass(frozen=True)
class ItemLine:
    """What a file says about one item; `numbers` are the other columns."""

    item: str
    tags: tuple[str, ...] = ()
    title: str = ""
    year: int = 0
    numbers: Mapping[str, float] = field(default_factory=dict)


def read_items(path: Path | str) -> list[ItemLine]:
    """The lines of a CSV with a column `item`, and either any of `tags` (joined by |), `title`, `year`, or numbers.

    Beside numbers a title is only shown, never learned from.
    """
    try:
        with Path(path).open(encoding="utf-8-sig", newline="") as file:
            reader = csv.reader(file, strict=True)
            rows = [
                (f"{path}, line {reader.line_num}", [unguard(cell.strip()) for cell in row]) for row in reader if row
            ]
    except csv.Error as error:
        raise FedrecError(f"cannot read the items in {path}: {error}; look for an unclosed quote") from None
    except (OSError, UnicodeDecodeError) as error:
        raise FedrecError(f"cannot read the items in {path}: {reason(error)}") from None
    names = rows[0][1] if rows else []
    _check_header(path, names, len(rows) - 1)
    found = [_line(place, names, row) for place, row in rows[1:]]
    if twice := [item for item, count in Counter(line.item for line in found).items() if count > 1]:
        raise FedrecError(f"{path} has several lines for item '{twice[0]:.40}'; keep one, with its tags joined by |")
    return found


def _check_header(path: Path | str, names: Sequence[str], rows: int) -> None:
    if rows < 1 or "item" not in names or len(names) < 2:
        raise FedrecError(
            f"{path} needs a header with item and any of tags, title, year (or columns of numbers), and "
            "a line for each item"
        )
    if "" in names:
        raise FedrecError(f"{path}: column {names.index('') + 1} has no name; name or remove it")
    if twice := [name for name, count in Counter(names).items() if count > 1]:
        raise FedrecError(f"{path} has two columns '{twice[0]:.40}'; give them different names")
    words = [name for name in names if name in ("tags", "year")]
    if words and (numbers := _numbers(names)):
        raise FedrecError(
            f"{path} describes items in words ({', '.join(words)}) and in numbers "
            f"({some(numbers)}), but only one kind can be used; remove the other"
        )


def _numbers(names: Sequence[str]) -> list[str]:
    return [name for name in names if name not in ("item", *WORDS)]


def _line(place: str, names: Sequence[str], row: Sequence[str]) -> ItemLine:
    """One line; cells that are missing at its end are empty."""
    cells = dict.fromkeys(names, "") | dict(zip(names, row, strict=False))
    if not cells["item"]:
        raise FedrecError(f"{place}: the item is missing; add it or remove this line")
    if len(row) > len(names):
        raise FedrecError(
            f"{place}: {len(row)} cells, but the header has {len(names)}; quote cells with commas in them"
        )
    year = cells.get("year", "")
    if year and not re.fullmatch("[0-9]{1,4}", year):
        raise FedrecError(f"{place}: '{year:.40}' is not a year; write four digits, or leave it empty")
    tags = tuple(dict.fromkeys(tag.strip() for tag in cells.get("tags", "").split("|") if tag.strip()))
    numbers = {name: _number(f"{place}, column {name:.40}", cells[name]) for name in _numbers(names)}
    return ItemLine(cells["item"], tags, cells.get("title", ""), int(year or 0), numbers)


def _number(place: str, text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not abs(value) <= LARGEST:
        raise FedrecError(
            f"{place}: '{text:.40}' is not a number up to {LARGEST:g}; columns other than item, tags, "
            "title and year hold numbers"
        )
    return value


def with_items(data: Interactions, path: Path | str) -> Interactions:
    """The same interactions with items described by a file, which replaces what was known about them."""
    lines = {line.item: line for line in read_items(path)}
    names = [str(item) for item in data.item_ids.tolist()]
    lacking = [name for name in names if name not in lines]
    if len(lacking) == len(names):
        raise FedrecError(
            f"{path} describes no item of '{data.name}': it has items such as {some(lines)}, the data "
            f"such as {some(names)}; use the same ids"
        )
    if lacking and next(iter(lines.values())).numbers:
        raise FedrecError(
            f"{path} has no line for {len(lacking):,} items of '{data.name}', for instance {lacking[0]}; "
            "every item needs numbers"
        )
    digest = hashlib.sha256(Path(path).read_bytes()).hexdigest()[:12]
    note = f"{len(names) - len(lacking):,} of {len(names):,} items are described by {path}"
    info = _info([lines.get(name, ItemLine(name)) for name in names])
    return replace(data, info=info, version=f"{data.version}+items-{digest}", notes=(*data.notes, note))


def _info(lines: Sequence[ItemLine]) -> ItemInfo:
    titles = np.array([line.title for line in lines], dtype=object) if any(line.title for line in lines) else None
    if lines[0].numbers:
        import scipy.sparse as sp

        values = np.array([list(line.numbers.values()) for line in lines], dtype=np.float32)
        return ItemInfo(titles, features=sp.csr_matrix(values), feature_names=tuple(lines[0].numbers))
    names = tuple(sorted({tag for line in lines for tag in line.tags}))
    column = {tag: j for j, tag in enumerate(names)}
    cells = [(i, column[tag]) for i, line in enumerate(lines) for tag in line.tags]
    at = np.array(cells, dtype=np.int64).reshape(-1, 2)
    tags = csr(np.ones(len(at), np.float32), at[:, 0], at[:, 1], (len(lines), len(names)))
    years = np.array([line.year for line in lines], dtype=np.int64)
    return ItemInfo(titles, tags if names else None, names, years if years.any() else None)
