"""The rows of a comparison as a report shows them: short names, colours, the sentences of the headline."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from fedrec.errors import FedrecError
from fedrec.evaluation import protocol
from fedrec.experiment.config import RunConfig
from fedrec.report.charts import style_of
from fedrec.report.comparison import Comparison, Row
from fedrec.report.references import REFERENCES

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
    asked = [row for row in rows if row.method not in REFERENCES] or list(rows)
    methods = Counter(row.method for row in asked)
    found = []
    for index, row in enumerate(asked):
        alone = methods[row.method] == 1
        name = row.method if alone else row.label if len(row.label) <= _LONGEST else f"{row.method} #{index + 1}"
        found.append(View(row, name, style_of(index), False))
    rest = [row for row in rows if row not in asked]
    return [*found, *(View(row, row.method, _REFERENCE_STYLES[row.method], True) for row in rest)]


def cutoff(names: Sequence[str]) -> int:
    """The list length that the headline speaks of: 10, or the shortest there is."""
    found = sorted({int(name.split("@")[1]) for name in names if "@" in name})
    return 10 if 10 in found or not found else found[0]


def percent(value: float) -> str:
    return f"{100 * value:.1f} %" if value >= 0.001 else f"{100 * value:.2f} %"


def headline(shown: Sequence[View], chance: Mapping[str, float], k: int, single: bool, users: int) -> str:
    """What came out, in words a reader needs no table for."""
    metric = f"recall@{k}"
    asked = [view for view in shown if not view.reference and view.row.mean(metric) is not None]
    if not asked:
        return ""
    best = max(asked, key=lambda view: view.row.mean(metric) or 0.0)
    value = best.row.mean(metric) or 0.0
    what = (
        f"of {users:,} users find their held-out item among the first {k}"
        if single
        else f"of a user's held-out items, on average over {users:,} users, are among the first {k}"
    )
    lead = f"With {best.name}, " if len(asked) == 1 else f"Highest of {len(asked)}: with {best.name}, "
    text = f"{lead}{percent(value)} {what} recommended."
    others = [(view.name, view.row.mean(metric)) for view in shown if view.reference]
    parts = [f"{name} reaches {percent(mean)}" for name, mean in others if mean is not None]
    if metric in chance:
        parts.append(f"chance gives {percent(chance[metric])}")
    if parts:
        joined = ", ".join(parts)
        text += f" {joined[0].upper()}{joined[1:]}."
    beaten = [name for name, mean in others if mean is not None and mean >= value]
    return text + (f" It does not do better than {' and '.join(beaten)}." if beaten else "")


def selection(label: str, k: int) -> tuple[str, str]:
    """The metric that chose the round, and on what."""
    try:
        found = protocol(label)
    except FedrecError:
        return f"ndcg@{k}", "validation"
    return found.select_metric, found.select_on


def command(row: Row) -> str:
    """The command line that repeats the row's runs."""
    config = row.runs[0].config
    parts = ["fedrec", "run", str(config["method"])]
    defaults = {field.name: field.default for field in fields(RunConfig)}
    for key, value in config.items():
        if key in ("data", "protocol") or (key not in ("method", "seed", "params") and value != defaults.get(key)):
            parts += [f"--{key.replace('_', '-')}", str(value)]
    for key, value in config.get("params", {}).items():
        parts += ["--set", f"{key}={value}"]
    seeds = [str(run.summary["seed"]) for run in row.runs]
    parts += ["--seed", seeds[0]] if len(seeds) == 1 else ["--seeds", ",".join(seeds)]
    return " ".join(shlex.quote(part) for part in parts)


def settings(row: Row) -> list[tuple[str, str]]:
    """The configuration without what differs between seeds."""
    pairs: list[tuple[str, Any]] = []
    for key, value in row.runs[0].config.items():
        if key == "params":
            pairs += [(f"set {name}", inner) for name, inner in value.items()]
        elif key != "seed" and value != "":
            pairs.append((key.replace("_", " "), value))
    return [(key, str(value)) for key, value in pairs]
