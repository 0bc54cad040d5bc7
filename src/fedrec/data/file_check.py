"""A file looked through before it is used: what it holds, what is wrong with it, what may be otherwise than meant."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import numpy as np

from fedrec.data.bad_rows import BadRows, list_lines
from fedrec.data.interactions import FEWEST_TO_SPLIT, Interactions
from fedrec.data.roles import Columns
from fedrec.data.table import Guess, read_table
from fedrec.data.times import unit_since_1970

EXAMPLES = 3


@dataclass(frozen=True)
class FileCheck:
    """`facts` say what there is, `problems` what cannot be used, `doubts` what is used and may not be meant so."""

    facts: list[tuple[str, str]]
    problems: list[tuple[str, str]]
    doubts: list[str]
    bad: BadRows


def check_file(path: Path | str, columns: Columns | None = None) -> FileCheck:
    """Read a file with everything that is wrong in it."""
    data, guess = read_table(path, columns, skip_bad=True)
    bad = data.bad or BadRows(())
    problems = [
        (f"{len(rows):,} row{'s' * (len(rows) != 1)} with {what}", list_lines(rows))
        for what, rows in bad.by_problem().items()
    ]
    return FileCheck(list(_facts(data, guess, bad)), problems, list(_doubts(data)), bad)


def _facts(data: Interactions, guess: Guess, bad: BadRows) -> Iterator[tuple[str, str]]:
    yield "read as", guess.format
    for role, column in guess.columns.items():
        yield role, f"column {column}" + (f" ({guess.why[role]})" if role in guess.why else "")
    if guess.unused:
        yield "not used", guess.unused
    yield "rows", f"{len(data) + len(bad):,}, of which {len(data):,} can be used"
    few = int((data.counts() < FEWEST_TO_SPLIT).sum())
    yield "users", f"{data.n_users:,}" + (f", {few:,} with fewer than {FEWEST_TO_SPLIT} rows" if few else "")
    yield "items", f"{data.n_items:,}"
    yield "times", describe_times(data)
    if data.rating is not None:
        yield "ratings", f"{data.rating.min():g} to {data.rating.max():g}"


def describe_times(data: Interactions) -> str:
    """From when to when, where they count from 1970."""
    if data.timestamp is None:
        return "none: the order of events is not known"
    first, last = int(data.timestamp.min()), int(data.timestamp.max())
    unit = unit_since_1970(data.timestamp)
    if unit is None:
        return f"{first} to {last}, which count no seconds since 1970"
    days = [datetime.fromtimestamp(value / unit, UTC).strftime("%Y-%m-%d %H:%M") for value in (first, last)]
    return f"{days[0]} to {days[1]} (UTC)"


def _doubts(data: Interactions) -> Iterator[str]:
    if repeated := len(data) - data.distinct_pairs().size:
        yield f"{repeated:,} rows repeat a user-item pair: the first of each is used"
    for role, ids in (("user", data.user_ids), ("item", data.item_ids)):
        for how, simplify in _SIMPLER.items():
            if pairs := _alike(ids, simplify):
                shown = "; ".join(" and ".join(repr(name) for name in group) for group in pairs[:EXAMPLES])
                yield f"{len(pairs):,} {role} ids differ only in {how}: {shown}"
    if data.timestamp is not None and len(data) > 1 and data.timestamp.min() == data.timestamp.max():
        yield "all times are the same, so the order of events is not known"


_SIMPLER: dict[str, Callable[[str], str]] = {
    "capital letters": str.casefold,
    "spaces or punctuation": lambda name: "".join(letter for letter in name if letter.isalnum()),
    "leading zeros": lambda name: name.lstrip("0") if name.isdigit() else name,
}


def _alike(ids: np.ndarray, simplify: Callable[[str], str]) -> list[list[str]]:
    """Groups of different ids that are the same once they are simplified."""
    if ids.dtype.kind in "iu":
        return []
    groups: dict[str, list[str]] = {}
    for name in ids.tolist():
        groups.setdefault(simplify(name), []).append(name)
    return [group for simple, group in groups.items() if len(group) > 1 and simple]
