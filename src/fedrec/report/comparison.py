"""Runs side by side: seeds of the same configuration are one row, protocols and data versions are never mixed."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from fedrec.errors import FedrecError, unknown
from fedrec.evaluation import recorded
from fedrec.experiment.config import as_meant, make_config
from fedrec.experiment.folder import RunFolder
from fedrec.experiment.kept import at_hand, prepared_of
from fedrec.experiment.params import build_method, convert
from fedrec.experiment.prepare import Part, Prepared
from fedrec.experiment.result import Result
from fedrec.experiment.summary import check_summary
from fedrec.schema import damaged, read_json

REFERENCES = ("popularity", "local")
PARTS = ("test", "valid")
SHOWN = ("recall@10", "ndcg@10")
IDENTITY = (
    "backbone",
    "preset",
    "params",
    "silos",
    "participation",
    "lost_uploads",
    "privacy",
    "epsilon",
    "delta",
    "rounds",
)

DEFAULTS = {"participation": 1.0, "lost_uploads": 0.0}  # not worth a word


@dataclass(frozen=True)
class FinishedRun:
    """A run folder read back, or a result in memory, which has a name for a folder."""

    folder: Path
    summary: dict[str, Any]
    config: dict[str, Any]
    result: Result | None = field(default=None, repr=False)

    @property
    def data(self) -> str:
        return f"{self.summary['dataset']['name']}@{self.summary['dataset']['version']}"

    @property
    def protocol(self) -> str:
        return str(self.summary["protocol"])

    @cached_property
    def kept(self) -> Prepared | None:
        """What the run has kept of its data; None: it must be read again."""
        if self.result is not None:
            return self.result.prepared
        return prepared_of(RunFolder(self.folder), make_config(self.config))

    def has_data(self) -> bool:
        """Whether its data is known here and now, without fetching anything."""
        return self.kept is not None or at_hand(make_config(self.config))

    @cached_property
    def label(self) -> str:
        """Method and what was set beside the defaults; the seed is not part of it."""
        parts, config = [], _beside_defaults(self.config, self.summary.get("defaults", {}))
        for key in IDENTITY:
            value = config.get(key)
            if key == "backbone" and value is None and self.summary["backbone"] not in (None, "mf"):
                value = self.summary["backbone"]
            if isinstance(value, dict):
                parts += [f"{name}={inner}" for name, inner in sorted(value.items())]
            elif value not in (None, "") and value != DEFAULTS.get(key):
                parts.append(str(value) if key in ("backbone", "preset") else f"{key}={value}")
        return " ".join([self.summary["method"], *parts])


def _beside_defaults(config: Mapping[str, Any], noted: Mapping[str, Any]) -> dict[str, Any]:
    """The config without what its method, backbone and preset have by themselves.

    `noted`: what the run says of a method that is not known here.
    """
    try:
        params = config.get("params", {})
        backbone = config.get("backbone") or params.get("backbone")
        plain = build_method(config["method"], backbone=backbone, preset=config.get("preset"))
        given = {key: convert(type(plain), key, value) for key, value in params.items()}
    except FedrecError:
        return _beside(config, params, noted)
    return _beside(config, given, vars(plain))


def _beside(config: Mapping[str, Any], params: Mapping[str, Any], usual: Mapping[str, Any]) -> dict[str, Any]:
    apart = {key: value for key, value in params.items() if key not in usual or usual[key] != value}
    rounds = None if config.get("rounds") == usual.get("rounds") else config.get("rounds")
    return {**config, "params": apart, "rounds": rounds}


def diverged(summaries: Sequence[Mapping[str, Any]]) -> int:
    """How many runs stand with a round chosen before they diverged."""
    return sum(bool(summary.get("diverged")) for summary in summaries)


def counted(summaries: Sequence[Mapping[str, Any]]) -> str:
    lost = diverged(summaries)
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

    def metrics(self) -> list[str]:
        """Metrics that every row has, the usual ones first."""
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
        found = recorded(label)
    except FedrecError:
        return f"ndcg@{k}", "validation"
    return found.select_metric, found.select_on


def read_run(folder: Path) -> FinishedRun:
    files = RunFolder.open(folder)
    files.require_finished()
    try:
        summary = read_json(files.summary, "summary", {})
        check_summary(summary)
        meant = as_meant(summary["protocol"], summary.get("format", 1))
        summary |= {"protocol": meant, "leaks": list(recorded(meant).leaks)}
        config = make_config(files.settings()).to_dict()
    except (ValueError, OSError, FedrecError) as error:
        raise damaged(folder, error) from None
    return FinishedRun(folder, summary, config)


def in_memory(result: Result) -> FinishedRun:
    """A result that was not written anywhere."""
    name = f"{result.summary['method']}-seed{result.summary['seed']}"
    return FinishedRun(Path(name), result.summary, result.config.to_dict(), result)


def find_runs(paths: Sequence[Path]) -> list[FinishedRun]:
    """Run folders among the paths and below them, those of several seeds (as --seeds writes them) one level deeper."""
    found = []
    for path in paths:
        if (path / "config.toml").exists():
            found.append(read_run(path))
            continue
        patterns = ("*/config.toml", "*/seed*/config.toml") if path.is_dir() else ()
        below = sorted(child.parent for pattern in patterns for child in path.glob(pattern))
        if not below:
            raise FedrecError(f"{path} has no run: give folders written by fedrec run")
        found += [read_run(folder) for folder in below]
    return found


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
    own = [run for run in runs if run.summary["method"] not in REFERENCES]
    several = len({run.summary["method"] for run in own}) == 1 and len({run.label for run in own}) > 1
    return "valid" if several and all(run.summary["valid"] for run in runs) else "test"


def compare(runs: Sequence[FinishedRun], part: Part = "test") -> Comparison:
    """One table from runs of one data version under one protocol."""
    if not runs:
        raise FedrecError("nothing to compare: give at least one run folder")
    for kind, values in (
        ("protocols", [run.protocol for run in runs]),
        ("data versions", [run.data for run in runs]),
    ):
        if len(set(values)) > 1:
            folders = [str(run.folder) for run, value in zip(runs, values, strict=True) if value == values[0]]
            raise FedrecError(f"these runs have different {kind} ({'; '.join(sorted(set(values)))}) and cannot share a "
                              f"table; give comparable ones, e.g. {shlex.join(folders[:3])}")  # fmt: skip
    groups: dict[str, list[FinishedRun]] = {}
    for run in runs:
        groups.setdefault(run.label, []).append(run)
    for label, members in groups.items():
        by_seed: dict[int, list[str]] = {}
        for run in members:
            by_seed.setdefault(run.summary["seed"], []).append(str(run.folder))
        if twice := next((folders for folders in by_seed.values() if len(folders) > 1), None):
            raise FedrecError(f"'{label}' is given twice with the same seed ({', '.join(twice)}); remove one of them")
    first = runs[0].summary
    rows = tuple(Row(label, tuple(members), part) for label, members in groups.items())
    chance = first["chance"] if part == "test" else {}  # that of validation was not written down
    return Comparison(runs[0].data, runs[0].protocol, tuple(first["leaks"]), rows, chance, part)
