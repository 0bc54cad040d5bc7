"""A sweep or a study: its trials as points, as lines through all parameters, and as a table."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import numpy as np
from markupsafe import Markup

from fedrec.board.folders import Entry, FolderIndex
from fedrec.errors import FedrecError
from fedrec.evaluation import parse_protocol
from fedrec.experiment.command_line import command_line
from fedrec.experiment.config import make_config
from fedrec.experiment.tuning import TRIAL, Trial, best_of
from fedrec.report.charts.parallel import Dimension, parallel
from fedrec.report.charts.scatter import Points, scatter
from fedrec.schema import is_number, json_line

SHOWN = 500  # trials of a table
DIMENSIONS = 6  # parameters that are drawn


def view_study(index: FolderIndex, entry: Entry) -> dict[str, Any]:
    """Make the page of a study, whether it goes on or not."""
    folder = index.path(entry.name)
    content: dict[str, Any] = {"title": entry.label or entry.name, "entry": entry, "names": [], "trials": []}
    content |= {"charts": [], "lines": "", "best": None, "metric": "", "command_text": "", "failed": 0, "seconds": 0.0}
    if entry.state == "damaged":
        return content
    about = json.loads((folder / "study.json").read_text(encoding="utf-8"))
    trials = read_trials(folder / "trials.jsonl")
    metric = parse_protocol(make_config(about["config"]).protocol).select_metric
    names = list(about["space"])
    ranked = sorted(trials, key=lambda trial: -np.inf if trial.value is None else trial.value, reverse=True)
    best = best_of(trials)
    has_best = (folder / "best.toml").is_file()
    return content | {
        "names": names,
        "space": about["space"],
        "trials": ranked[:SHOWN],
        "count": len(trials),
        "metric": metric,
        "charts": _charts(trials, names, metric, best),
        "lines": _lines(trials, names, metric),
        "best": best,
        "failed": sum(trial.value is None for trial in trials),
        "seconds": sum(trial.seconds for trial in trials),
        "command_text": command_line("run", "--config", folder / "best.toml") if has_best else "",
    }


def read_trials(path: Any) -> list[Trial]:
    """Return the trials that can be read; a line that was cut short is passed over."""
    try:
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    except FileNotFoundError:
        return []
    except OSError as error:
        raise FedrecError(f"cannot read {path.name}: {error.strerror}") from None
    found = (json_line(line, TRIAL) for line in lines)
    return [Trial(**{name: values[name] for name in TRIAL}) for values in found if values is not None]


def _charts(trials: Sequence[Trial], names: Sequence[str], metric: str, best: Trial | None) -> list[dict[str, Any]]:
    """The metric against the number of the trial, then against every parameter that is a number."""
    usable = [trial for trial in trials if trial.value is not None]
    if len(usable) < 2:
        return []
    columns: list[tuple[str, list[Any]]] = [("trial", [trial.number + 1 for trial in usable])]
    columns += [(name, [trial.params.get(name) for trial in usable]) for name in names[:DIMENSIONS]]
    return [
        {"caption": f"{metric} by {name}", "svg": _points(usable, values, name, metric, best)}
        for name, values in columns
        if all(map(is_number, values))
    ]


def _points(usable: Sequence[Trial], values: list[Any], name: str, metric: str, best: Trial | None) -> Markup:
    spot = np.array([[value, trial.value] for value, trial in zip(values, usable, strict=True)], float)
    top = [row for row, trial in enumerate(usable) if best is not None and trial.number == best.number]
    sets = [Points(spot, "trial", "s0"), Points(spot[top], "best", "s1", 5.0)]
    span = (spot.min(0), spot.max(0))
    return Markup(scatter(sets, title=f"{metric} by {name}, {len(usable)} trials", x_label=name, y_label="", span=span))


def _lines(trials: Sequence[Trial], names: Sequence[str], metric: str) -> Markup:
    usable = [trial for trial in trials if trial.value is not None]
    if len(usable) < 2 or not names:
        return Markup("")
    dimensions = [Dimension(name, [trial.params.get(name) for trial in usable]) for name in names[:DIMENSIONS]]
    values = [trial.value for trial in usable]
    words = f"{len(usable)} trials as lines through {', '.join(names)} and {metric}"
    return Markup(parallel([*dimensions, Dimension(metric, values)], title=words))
