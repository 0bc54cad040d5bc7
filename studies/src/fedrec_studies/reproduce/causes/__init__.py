"""Why printed cells differ from those measured here: `causes/PAPER.toml`, by table, row, data and metric."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from fnmatch import fnmatchcase
from functools import cache
from importlib import resources
from typing import Any, Literal, get_args

from fedrec.errors import FedrecError
from fedrec_studies.reproduce.printed import PrintedCell

Reason = Literal[
    "ours is wrong",
    "text and code differ",
    "settings not stated",
    "data differ",
    "nobody gets it",
    "too few rounds",
]
REASONS: tuple[Reason, ...] = get_args(Reason)
Uncounted = Literal["derived", "repeated"]
PLACE = ("table", "method", "backbone", "setting", "dataset", "metric")


@dataclass(frozen=True)
class Cells:
    """Printed cells by their keys: `a|b` is one or the other, `*` any text, and a key left out is any value."""

    table: str = "*"
    method: str = "*"
    backbone: str = "*"
    setting: str = "*"
    dataset: str = "*"
    metric: str = "*"

    def has(self, cell: PrintedCell) -> bool:
        return all(
            any(fnmatchcase(getattr(cell, key), wanted) for wanted in getattr(self, key).split("|")) for key in PLACE
        )

    def describe(self) -> str:
        return ", ".join(getattr(self, key).replace("|", " or ") for key in PLACE if getattr(self, key) != "*")


@dataclass(frozen=True)
class Cause:
    """Why cells that were measured do not agree, with the figure or run that shows it."""

    cells: Cells
    verdict: Reason
    reason: str


@dataclass(frozen=True)
class AuthorsFigure:
    """What the authors' own program gives for cells, where somebody ran it."""

    cells: Cells
    value: float
    source: str


@dataclass(frozen=True)
class Findings:
    """All that is known of one paper beside its figures."""

    sceptic: str = ""
    """What a sceptical author of the paper would want to know."""
    settle: str = ""
    """What would settle what is open."""
    causes: Sequence[Cause] = ()
    uncounted: Sequence[tuple[Cells, Uncounted]] = ()
    authors: Sequence[AuthorsFigure] = ()

    def cause(self, cell: PrintedCell) -> tuple[int, Cause] | None:
        """Return the first cause that holds for a cell, and its number on the page, from 1."""
        return next(((number, one) for number, one in enumerate(self.causes, 1) if one.cells.has(cell)), None)

    def why_not_counted(self, cell: PrintedCell) -> Uncounted | None:
        return next((word for cells, word in self.uncounted if cells.has(cell)), None)

    def authors_figure(self, cell: PrintedCell) -> AuthorsFigure | None:
        return next((one for one in self.authors if one.cells.has(cell)), None)


@cache
def read_findings(paper: str) -> Findings:
    """Read `causes/PAPER.toml`; nothing where there is none."""
    file = resources.files("fedrec_studies.reproduce.causes") / f"{paper}.toml"
    if not file.is_file():
        return Findings()
    values = tomllib.loads(file.read_text(encoding="utf-8"))
    uncounted: dict[Uncounted, Iterable[Mapping[str, Any]]] = {
        "derived": values.get("derived", ()),
        "repeated": values.get("repeated", ()),
    }
    return Findings(
        values["sceptic"],
        values["settle"],
        [Cause(_cells(one), _reason(one["verdict"]), one["reason"]) for one in values.get("cause", ())],
        [(_cells(one), word) for word, some in uncounted.items() for one in some],
        [AuthorsFigure(_cells(one), one["value"], one["source"]) for one in values.get("authors", ())],
    )


def _cells(values: Mapping[str, Any]) -> Cells:
    return Cells(**{key: values[key] for key in (one.name for one in fields(Cells)) if key in values})


def _reason(word: str) -> Reason:
    for one in REASONS:
        if word == one:
            return one
    raise FedrecError(f"a cause has the verdict '{word}'; it takes {', '.join(REASONS)}")
