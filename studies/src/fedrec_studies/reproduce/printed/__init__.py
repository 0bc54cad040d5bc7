"""What the papers print, cell by cell: `printed/PAPER.csv`, each value as the string that stands in the paper."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from importlib import resources

from fedrec.errors import FedrecError

PERCENT = "(%)"
KEYS = ("table", "method", "backbone", "setting")


@dataclass(frozen=True)
class PrintedCell:
    """One figure of a paper's table. `setting` tells apart rows of one method: a noise, a variant, a group."""

    table: str
    dataset: str
    method: str
    backbone: str
    setting: str
    metric: str
    value: str

    def number(self) -> float:
        """The figure, percentages as fractions."""
        return float(self.value) / (100 if self.metric.endswith(PERCENT) else 1)

    def row(self) -> str:
        """Name its row in a list."""
        return " ".join(part for part in (self.method, self.backbone, self.setting) if part)


@dataclass(frozen=True)
class Names:
    """A paper's own names of data sets and metrics in this library's, and the data that nobody here has."""

    title: str = ""
    datasets: Mapping[str, str] = field(default_factory=dict)
    metrics: Mapping[str, str] = field(default_factory=dict)
    gains: Mapping[str, str] = field(default_factory=dict)
    """Printed gains of the paper's own method, and the metric in which it is so much better than the best other."""
    elsewhere: Mapping[str, str] = field(default_factory=dict)
    """Printed tables that no run has figures for, and what stands for them."""
    unavailable: Mapping[str, str] = field(default_factory=dict)
    """By the paper's name of the data: why, and where it can be had."""
    words: Mapping[str, str] = field(default_factory=dict)
    """Labels of rows that mean something else in other places, and what they mean in the paper."""


def read_print(paper: str) -> list[PrintedCell]:
    """Read all result cells of a paper; none where no paper is behind the tables."""
    file = resources.files("fedrec_studies.reproduce.printed") / f"{paper}.csv"
    if not file.is_file():
        return []
    return [PrintedCell(**row) for row in csv.DictReader(file.read_text(encoding="utf-8").splitlines())]


def select_cells(cells: Iterable[PrintedCell], chosen: Mapping[str, str]) -> list[PrintedCell]:
    """Select the cells of one row: those with all the values of `chosen`, where `a|b` is one or the other."""
    for key in chosen:
        if key not in KEYS:
            raise FedrecError(f"print has no key '{key}'; it takes {', '.join(KEYS)}")
    values = {key: value.split("|") for key, value in chosen.items()}
    return [cell for cell in cells if all(getattr(cell, key) in wanted for key, wanted in values.items())]
