"""The user's own description of items: a CSV with a line for each, whose columns hold words or numbers."""

from __future__ import annotations

import csv
import hashlib
import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

import numpy as np

from fedrec.data.interactions import Interactions, ItemInfo
from fedrec.data.roles import is_name_of
from fedrec.data.sparse import csr
from fedrec.data.spreadsheet import unguard
from fedrec.errors import FedrecError, list_few, reason

_WORD = re.compile(r"[^\W\d_]{3,}")

WORDS = ("tags", "title", "year")
MOSTLY = 0.9  # of the cells of a column: one that is written wrongly does not make words of numbers
LONGEST_CATEGORY = 4  # words; a longer cell is a text
Kind = Literal["numbers", "words"]
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
    """The lines of a CSV with a column `item`, and columns of any kind that describe it.

    `tags` (joined by |), `title` and `year` are what they say. Columns of numbers alone are used as numbers. Beside
    columns of words (a brand, a category, a description) everything becomes terms: `brand: Nike`, the words of a longer
    text, the size of a number (`price: 20 to 50`). Beside numbers alone a title is only shown, never learned from.
    """
    try:
        # With or without a byte order mark, which spreadsheets write and which would become part of the first name.
        with Path(path).open(encoding="utf-8-sig", newline="") as file:
            reader = csv.reader(file, strict=True)
            rows = [
                (f"{path}, line {reader.line_num}", [unguard(cell.strip()) for cell in row]) for row in reader if row
            ]
    except csv.Error as error:
        raise FedrecError(f"cannot read the items in {path}: {error}; look for an unclosed quote") from None
    except (OSError, UnicodeDecodeError) as error:
        raise FedrecError(f"cannot read the items in {path}: {reason(error)}") from None
    names = _rename_usual(rows[0][1]) if rows else []
    _check_header(path, names, len(rows) - 1)
    cells = [_cells(place, names, row) for place, row in rows[1:]]
    kinds = _kinds(names, cells)
    # Numbers and terms cannot be compared on one scale, so one column of words makes terms of all.
    in_words = bool({"tags", "year"} & set(names)) or "words" in kinds.values()
    found = [_line(place, row, kinds, in_words) for (place, _), row in zip(rows[1:], cells, strict=True)]
    if twice := [item for item, count in Counter(line.item for line in found).items() if count > 1]:
        raise FedrecError(f"{path} has several lines for item '{twice[0]:.40}'; keep one, with its tags joined by |")
    return found


def _rename_usual(names: Sequence[str]) -> list[str]:
    """With `item` and `title` for what is commonly called otherwise, where nothing has that name."""
    found = list(names)
    for role in ("item", "title"):
        able = [place for place, name in enumerate(found) if is_name_of(role, name)]
        if role not in found and len(able) == 1:
            found[able[0]] = role
    return found


def _check_header(path: Path | str, names: Sequence[str], rows: int) -> None:
    if rows < 1 or "item" not in names or len(names) < 2:
        raise FedrecError(
            f"{path} needs a header with item and any columns that describe it (tags, title, year, a category, "
            "numbers), and a line for each item"
        )
    if "" in names:
        raise FedrecError(f"{path}: column {names.index('') + 1} has no name; name or remove it")
    if twice := [name for name, count in Counter(names).items() if count > 1]:
        raise FedrecError(f"{path} has two columns '{twice[0]:.40}'; give them different names")


def _cells(place: str, names: Sequence[str], row: Sequence[str]) -> dict[str, str]:
    """One line by column; cells that are missing at its end are empty."""
    cells = dict.fromkeys(names, "") | dict(zip(names, row, strict=False))
    if not cells["item"]:
        raise FedrecError(f"{place}: the item is missing; add it or remove this line")
    if len(row) > len(names):
        raise FedrecError(
            f"{place}: {len(row)} cells, but the header has {len(names)}; quote cells with commas in them"
        )
    return cells


def _kinds(names: Sequence[str], rows: Sequence[Mapping[str, str]]) -> dict[str, Kind]:
    """What every column of no usual name holds: numbers, or words, if more than a few cells are none."""
    kinds: dict[str, Kind] = {}
    for name in names:
        if name not in ("item", *WORDS):
            told = [row[name] for row in rows if row[name]]
            numbers = sum(_as_number(text) is not None for text in told)
            # Not every cell: one typing error among a thousand prices must not turn them into a thousand categories.
            kinds[name] = "numbers" if numbers >= MOSTLY * len(told) else "words"
    return kinds


def _line(place: str, cells: Mapping[str, str], kinds: Mapping[str, Kind], in_words: bool) -> ItemLine:
    year = cells.get("year", "")
    if year and not re.fullmatch("[0-9]{1,4}", year):
        raise FedrecError(f"{place}: '{year:.40}' is not a year; write four digits, or leave it empty")
    terms = [tag.strip() for tag in cells.get("tags", "").split("|") if tag.strip()]
    numbers: dict[str, float] = {}
    for name, kind in kinds.items():
        if kind == "words":
            terms += _terms(name, cells[name])
        elif cells[name] or not in_words:  # among terms a number may be missing
            numbers[name] = _number(f"{place}, column {name:.40}", cells[name])
    if in_words:
        # Sizes instead of exact values: a price that nobody else has would be a term of one item.
        terms += [f"{name}: {_size(value)}" for name, value in numbers.items()]
        numbers = {}
    return ItemLine(cells["item"], tuple(dict.fromkeys(terms)), cells.get("title", ""), int(year or 0), numbers)


def _terms(name: str, text: str) -> list[str]:
    """A category or several (joined by |) as they are; the words of a text."""
    if len(text.split()) > LONGEST_CATEGORY:
        return title_terms(text)
    return [f"{name}: {part.strip()}" for part in text.split("|") if part.strip()]


def _size(value: float) -> str:
    """Between which of 1, 2, 5, 10, ... a number lies: the same for every file, so that new items fit."""
    if value == 0:
        return "0"
    # The scale is logarithmic: 10 and 20 differ as much as 1,000 and 2,000 to a buyer.
    power = 10.0 ** math.floor(math.log10(abs(value)))
    # A little slack, since 10 ** 2 in floats may lie just above the number that it should contain.
    low = max(step for step in (1, 2, 5) if step * power <= abs(value) * (1 + 1e-12))
    high = {1: 2, 2: 5, 5: 10}[low]
    return f"{'-' if value < 0 else ''}{low * power:g} to {high * power:g}"


def _as_number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def _number(place: str, text: str) -> float:
    value = _as_number(text)
    # Written with not, so that a value that is no number is refused too.
    if value is None or not abs(value) <= LARGEST:
        raise FedrecError(f"{place}: '{text:.40}' is not a number up to {LARGEST:g}, as the others of this column are")
    return value


def with_items(data: Interactions, path: Path | str) -> Interactions:
    """The same interactions with items described by a file, which replaces what was known about them."""
    lines = {line.item: line for line in read_items(path)}
    names = [str(item) for item in data.item_ids.tolist()]
    lacking = [name for name in names if name not in lines]
    if len(lacking) == len(names):
        raise FedrecError(
            f"{path} describes no item of '{data.name}': it has items such as {list_few(lines)}, the data "
            f"such as {list_few(names)}; use the same ids"
        )
    # Terms may be missing, a vector of numbers may not: zeros would say something false about the item.
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


def title_terms(title: str, year: int = 0) -> list[str]:
    """The terms that a title and a year stand for."""
    decade = [f"{year // 10 * 10}s"] if year > 0 else []
    return decade + _WORD.findall(title.lower())
