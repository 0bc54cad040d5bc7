"""The rows of a comparison as a report shows them: short names and colours."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from fedrec.experiment.command_line import command_line
from fedrec.experiment.config import RunConfig, make_config
from fedrec.experiment.finished_run import REFERENCES
from fedrec.methods import is_installed
from fedrec.report.charts import style_of
from fedrec.report.comparison import Comparison, Row

_LONGEST = 14
_REFERENCE_STYLES = {"popularity": "ref", "local": "ref2"}


@dataclass(frozen=True)
class View:
    """A configuration, its name in charts and its colour."""

    row: Row
    name: str
    style: str
    reference: bool


def views(comparison: Comparison) -> list[View]:
    """The configurations in question first, references last; alone, a reference is itself in question."""
    rows = comparison.rows
    # A report on references alone is about them.
    asked = [row for row in rows if row.method not in REFERENCES] or list(rows)
    methods = Counter(row.method for row in asked)
    found = []
    for index, row in enumerate(asked):
        alone = methods[row.method] == 1
        name = row.method if alone else row.label if len(row.label) <= _LONGEST else f"{row.method} #{index + 1}"
        found.append(View(row, name, style_of(index), False))
    rest = [row for row in rows if row not in asked]
    beside = Counter(row.method for row in rest)
    for row in rest:
        name = row.method if beside[row.method] == 1 else row.label
        found.append(View(row, name, _REFERENCE_STYLES[row.method], True))
    return found


def cutoff(names: Sequence[str]) -> int:
    """The list length that the headline speaks of: 10, or the shortest there is."""
    found = sorted({int(name.split("@")[1]) for name in names if "@" in name})
    return 10 if 10 in found or not found else found[0]


def command(row: Row) -> str:
    """The command line that repeats the row's runs."""
    # The seed is taken out here, since the flags of all seeds stand at the end.
    config = replace(make_config(row.runs[0].config), seed=RunConfig.seed)
    seeds = [str(run.summary["seed"]) for run in row.runs]
    of_seeds = ["--seed", seeds[0]] if len(seeds) == 1 else ["--seeds", ",".join(seeds)]
    return command_line("run", config.method, *config.flags(), *of_seeds, own=not is_installed(config.method))


def settings(row: Row) -> list[tuple[str, str]]:
    """The configuration without what differs between seeds."""
    pairs: list[tuple[str, Any]] = []
    for key, value in row.runs[0].config.items():
        if key == "params":
            pairs += [(f"set {name}", inner) for name, inner in value.items()]
        elif key != "seed" and value != "":
            pairs.append((key.replace("_", " "), value))
    return [(key, str(value)) for key, value in pairs]
