"""Runs side by side: seeds of the same configuration are one row, protocols and data versions are never mixed."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import mean, stdev
from typing import Any

from fedrec.errors import FedrecError, unknown
from fedrec.evaluation import parse_protocol
from fedrec.experiment.finished_run import REFERENCES, FinishedRun
from fedrec.experiment.prepare import Part
from fedrec.experiment.tested import Tested

PARTS = ("test", "valid")
SHOWN = ("recall@10", "ndcg@10")


def count_diverged(summaries: Sequence[Mapping[str, Any]]) -> int:
    """How many runs stand with a round chosen before they diverged."""
    return sum(bool(summary.get("diverged")) for summary in summaries)


def count_in_words(summaries: Sequence[Mapping[str, Any]]) -> str:
    lost = count_diverged(summaries)
    return str(len(summaries)) + (f" ({lost} diverged)" if lost else "")


@dataclass(frozen=True)
class Row:
    """One configuration: its runs, and mean and deviation of every metric over seeds, on test unless `part` differs."""

    label: str
    runs: tuple[FinishedRun, ...] = field(repr=False)
    part: Part = "test"

    @property
    def method(self) -> str:
        return str(self.runs[0].summary["method"])

    @property
    def seeds(self) -> int:
        return len(self.runs)

    @property
    def summaries(self) -> list[dict[str, Any]]:
        return [run.summary for run in self.runs]

    def mean(self, metric: str) -> float | None:
        values = self.values(metric)
        return mean(values) if values else None

    def std(self, metric: str) -> float | None:
        values = self.values(metric)
        # One run has no deviation; 0 would claim that seeds agree.
        return stdev(values) if len(values) > 1 else None

    def values(self, metric: str, part: str | None = None) -> list[float]:
        part = part or self.part
        return [run.summary[part][metric] for run in self.runs if metric in run.summary[part]]


@dataclass(frozen=True)
class Comparison:
    data: str
    protocol: str
    leaks: tuple[str, ...]
    rows: tuple[Row, ...]
    chance: dict[str, float]
    part: Part = "test"
    tested: Tested | None = None
    """None in runs of earlier versions, which do not say."""

    def metrics(self) -> list[str]:
        """Metrics that every row has, the usual ones first."""
        # Only what every row has, so that no column is half empty.
        common = set.intersection(*(set(row.runs[0].summary[self.part]) for row in self.rows))
        rest = [
            name for name in self.rows[0].runs[0].summary[self.part] if name in common and not name.startswith("hr@")
        ]
        return [name for name in SHOWN if name in common] + [name for name in rest if name not in SHOWN]


def choose_metrics(comparison: Comparison, wanted: str | None) -> list[str]:
    """The metrics asked for, or the usual two."""
    known = comparison.metrics()
    if wanted is None:
        recalls = [name for name in known if name.startswith("recall@")]
        return [name for name in known if name in SHOWN] or recalls[:2] or known[:2]
    names = [name.strip() for name in wanted.split(",") if name.strip()]
    for name in names:
        if name not in known:
            raise unknown("metric", name, known)
    return names


def selection(label: str, k: int) -> tuple[str, str]:
    """The metric that chose the round under a protocol, and on what."""
    try:
        found = parse_protocol(label)
    # A protocol of another version cannot be read any more; what nearly all protocols choose by is assumed.
    except FedrecError:
        return f"ndcg@{k}", "validation"
    return found.select_metric, found.select_on


def part_shown(runs: Sequence[FinishedRun], wanted: str | None = None) -> Part:
    """The part that was asked for; otherwise validation where the runs are settings of one method, and test elsewhere.

    Who looks at several settings is about to choose one, and a choice by the test items would be paid for by them.
    """
    if wanted is not None:
        if wanted not in PARTS:
            raise unknown("part", wanted, PARTS)
        missing = [str(run.folder) for run in runs if wanted == "valid" and not run.summary["valid"]]
        if missing:
            raise FedrecError(f"{missing[0]} has no validation part; use --on test")
        return "valid" if wanted == "valid" else "test"
    # References do not count: popularity beside one method is no choice between methods.
    own = [run for run in runs if run.summary["method"] not in REFERENCES]
    several = len({run.summary["method"] for run in own}) == 1 and len({run.label for run in own}) > 1
    # Only where every run has a validation part; mixed tables would compare different items.
    return "valid" if several and all(run.summary["valid"] for run in runs) else "test"


def rows_of(run: FinishedRun) -> str:
    """Which rows a run is about: a description of the items beside them makes no other data of them."""
    # Only what describes items is cut off; every other part of the version changes the rows.
    return re.sub(r"\+items-[0-9a-f]+", "", run.data)


def _columns_read(runs: Sequence[FinishedRun]) -> list[str]:
    """Which columns of a file each run has read; those of an earlier version do not say, and agree with all."""
    columns = [run.summary["dataset"].get("columns", {}) for run in runs]
    told = [", ".join(f"{role} {name}" for role, name in one.items()) for one in columns]
    # Runs that do not say are given the columns of those that do, so that they do not count as different.
    return [text or max(told) for text in told]


def compare(runs: Sequence[FinishedRun], part: Part = "test") -> Comparison:
    """One table from runs of one data version under one protocol."""
    if not runs:
        raise FedrecError("nothing to compare: give at least one run folder")
    for kind, values in (
        ("protocols", [run.protocol for run in runs]),
        ("data versions", [rows_of(run) for run in runs]),
        ("columns of the data", _columns_read(runs)),
    ):
        # An error instead of a mixed table: figures under different protocols look comparable and are not.
        if len(set(values)) > 1:
            folders = [str(run.folder) for run, value in zip(runs, values, strict=True) if value == values[0]]
            raise FedrecError(
                f"these runs have different {kind} ({'; '.join(sorted(set(values)))}) and cannot share a "
                f"table; give comparable ones, e.g. {shlex.join(folders[:3])}"
            )
    groups: dict[str, list[FinishedRun]] = {}
    for run in runs:
        # In the order given, which is the order in which whoever compares thinks of them.
        groups.setdefault(run.label, []).append(run)
    for label, members in groups.items():
        by_seed: dict[int, list[str]] = {}
        for run in members:
            by_seed.setdefault(run.summary["seed"], []).append(str(run.folder))
        # The same seed twice would count one draw as two and make deviations too small.
        if twice := next((folders for folders in by_seed.values() if len(folders) > 1), None):
            raise FedrecError(f"'{label}' is given twice with the same seed ({', '.join(twice)}); remove one of them")
    first = runs[0].summary
    rows = tuple(Row(label, tuple(members), part) for label, members in groups.items())
    # Chance on validation was never written down.
    chance = first["chance"] if part == "test" else {}
    tested = next(filter(None, (Tested.from_summary(run.summary) for run in runs)), None)
    return Comparison(runs[0].data, runs[0].protocol, tuple(first["leaks"]), rows, chance, part, tested)
