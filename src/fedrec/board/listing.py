"""The list of runs as somebody asked for it: filtered, sorted, grouped, one page at a time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from fedrec.board.folders import Entry

PAGE = 200  # rows: what a person scrolls through, and what a browser lays out at once
GROUPS = ("method", "data", "protocol")
PREFERRED = ("ndcg@10", "recall@10")
FILTERS = ("state", "method", "data", "protocol")


@dataclass(frozen=True)
class Query:
    """What is asked for: `text` in any column, exact values, an order, a grouping, how many rows."""

    text: str = ""
    state: str = ""
    method: str = ""
    data: str = ""
    protocol: str = ""
    sort: str = "changed"
    up: bool = False
    group: str = ""
    most: int = PAGE

    @staticmethod
    def read(words: Mapping[str, str]) -> Query:
        """Take over the words of an address; what makes no sense there is left out."""
        most = words.get("most", "")
        return Query(
            text=words.get("text", "").strip()[:200],
            **{name: words.get(name, "") for name in FILTERS},
            sort=words.get("sort", "") or "changed",
            up=words.get("up") == "1",
            group=words["group"] if words.get("group") in GROUPS else "",
            # Only short ASCII numbers: what looks like a digit in other scripts is none to int, or is too long to
            # parse.
            most=min(int(most), 10_000) if most.isascii() and most.isdigit() and len(most) < 6 else PAGE,
        )


@dataclass(frozen=True)
class Listing:
    """One page of the list. `groups`: headings with their rows; one without a heading where nothing is grouped."""

    groups: tuple[tuple[str, tuple[Entry, ...]], ...]
    metrics: tuple[str, ...]
    shown: int
    matching: int
    total: int
    choices: Mapping[str, tuple[tuple[str, int], ...]]
    """The values of every filter, with how many entries have them."""
    best: Mapping[tuple[str, str, str], str]
    """Of each metric on each data under each protocol, the name of the highest finished run."""


def list_entries(entries: Sequence[Entry], query: Query) -> Listing:
    """Answer a query."""
    matching = [entry for entry in entries if _matches(entry, query)]
    ordered = sorted(matching, key=_sort_key(query.sort), reverse=not query.up)
    # Missing values last in both directions, where sorting alone would put them first in one.
    ordered = [
        *(one for one in ordered if _has(one, query.sort)),
        *(one for one in ordered if not _has(one, query.sort)),
    ]
    if query.group:
        value = _value_of(query.group)
        # A stable sort, which keeps the order within each group.
        ordered.sort(key=value)
    shown = ordered[: query.most]
    groups = [(head, tuple(rows)) for head, rows in groupby(shown, value)] if query.group else [("", tuple(shown))]
    metrics = choose_columns(entries)
    return Listing(
        groups=tuple(groups),
        metrics=metrics,
        shown=len(shown),
        matching=len(matching),
        total=len(entries),
        choices={name: _count(entries, name) for name in FILTERS},
        best=_find_best(entries, metrics),
    )


def choose_columns(entries: Iterable[Entry]) -> tuple[str, ...]:
    """Choose two metrics that most finished runs have, the usual ones first."""
    counts = Counter(name for entry in entries for name in entry.test if not name.startswith(("hr@", "coverage")))
    usual = [name for name in PREFERRED if name in counts]
    return tuple(usual or [name for name, _ in counts.most_common(2)]) or PREFERRED


def _matches(entry: Entry, query: Query) -> bool:
    for name in FILTERS:
        wanted = getattr(query, name)
        if wanted and getattr(entry, name) != wanted:
            return False
    hay = f"{entry.name} {entry.label} {entry.data} {entry.protocol} {entry.state}".lower()
    # All words must occur, in any order: people narrow a search by adding words.
    return all(word in hay for word in query.text.lower().split())


def _value_of(name: str) -> Callable[[Entry], str]:
    return lambda entry: str(getattr(entry, name))


def _has(entry: Entry, column: str) -> bool:
    """Whether an entry has a value in a column; those without one stand last in either direction."""
    return "@" not in column or column in entry.test


def _sort_key(column: str) -> Callable[[Entry], Any]:
    if "@" in column:
        return lambda entry: (entry.test.get(column, 0.0), entry.name)
    if column in ("name", "label", "data", "protocol", "state", "method"):
        return lambda entry: (getattr(entry, column), entry.name)
    if column in ("rounds", "seed"):
        return lambda entry: (getattr(entry, column) or 0, entry.name)
    return lambda entry: (entry.changed, entry.name)


def _count(entries: Sequence[Entry], name: str) -> tuple[tuple[str, int], ...]:
    counts = Counter(getattr(entry, name) for entry in entries)
    return tuple(sorted((value, count) for value, count in counts.items() if value))


def _find_best(entries: Sequence[Entry], metrics: Sequence[str]) -> dict[tuple[str, str, str], str]:
    best: dict[tuple[str, str, str], Entry] = {}
    for entry in entries:
        for metric in metrics:
            place = (entry.data, entry.protocol, metric)
            if metric in entry.test and (place not in best or entry.test[metric] > best[place].test[metric]):
                best[place] = entry
    return {place: entry.name for place, entry in best.items()}
