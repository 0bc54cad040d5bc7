"""Who gains by joining: each silo's figure under a run, beside what it has under another, such as training alone."""

from __future__ import annotations

import csv
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from statistics import mean
from typing import Any

from markupsafe import Markup

from fedrec.board.folders import Entry, FolderIndex
from fedrec.data.spreadsheet import unguard
from fedrec.errors import FedrecError
from fedrec.experiment.finished_run import FinishedRun, read_run
from fedrec.report import charts
from fedrec.report.charts import Bar
from fedrec.report.records import per_user

ALONE = "local"
DRAWN = 40  # silos of a chart; the table has all
MOST = 2_000  # clients up to which they are silos that somebody looks at one by one


@dataclass(frozen=True)
class Gain:
    """A silo, its users, and its mean under both runs."""

    silo: str
    users: int
    joined: float
    alone: float

    @property
    def gain(self) -> float:
        return self.joined - self.alone


def view_silos(index: FolderIndex, entry: Entry, against: str = "", metric: str = "") -> dict[str, Any]:
    """Make the page of the silos of a run."""
    choices = [
        other
        for other in index.entries
        if other.name != entry.name
        and (other.state, other.data, other.protocol) == ("finished", entry.data, entry.protocol)
    ]
    if entry.state != "finished":
        raise FedrecError("this run has not finished; its users' figures are written at the end")
    own = read_run(index.path(entry.name))
    wanted = next((one for one in choices if one.name == against), None)
    wanted = wanted or next((one for one in choices if one.method == ALONE), None) or next(iter(choices), None)
    metrics = [name for name in own.summary["test"] if name in per_user(own)]
    content: dict[str, Any] = {
        "title": "Who gains by joining",
        "entry": entry,
        "choices": choices,
        "against": wanted,
        "metric": metric,
        "metrics": metrics,
        "gains": [],
        "chart": "",
        "winners": 0,
    }
    if wanted is None:
        return content
    metric = metric if metric in metrics else _default_metric(metrics)
    gains = find_gains(own, read_run(index.path(wanted.name)), metric)
    return content | {
        "metric": metric,
        "gains": gains,
        "chart": _chart(gains, metric),
        "winners": sum(one.gain > 0 for one in gains),
    }


def find_gains(own: FinishedRun, other: FinishedRun, metric: str) -> list[Gain]:
    """Compare the means of every silo over the users that both runs have tested, the largest gain first."""
    silos = read_silos(own.folder)
    if len(set(silos.values())) > MOST:
        raise FedrecError(
            f"{len(set(silos.values())):,} clients are one user each: there are no silos here; run with --silos"
        )
    joined, alone = _by_user(own, metric), _by_user(other, metric)
    members: dict[str, list[str]] = defaultdict(list)
    for user, silo in silos.items():
        if user in joined and user in alone:
            members[silo].append(user)
    gains = [
        Gain(silo, len(users), mean(joined[user] for user in users), mean(alone[user] for user in users))
        for silo, users in members.items()
    ]
    return sorted(gains, key=lambda one: (-one.gain, one.silo))


def read_silos(folder: Path) -> dict[str, str]:
    """Return the silo of each user, from users.csv."""
    try:
        with (folder / "users.csv").open(newline="", encoding="utf-8") as file:
            rows = list(csv.DictReader(file))
        return {unguard(row["user"]): str(row["client"]) for row in rows}
    except PermissionError:
        raise FedrecError("users.csv of this run can be read by its owner only") from None
    except (OSError, KeyError, csv.Error, UnicodeDecodeError):
        raise FedrecError("this run has no usable users.csv, which says who belongs to which silo") from None


def _by_user(run: FinishedRun, metric: str) -> dict[str, float]:
    table = per_user(run)
    if metric not in table:
        raise FedrecError(f"{run.folder.name} has no {metric} of single users")
    return dict(zip(table["user"], map(float, table[metric]), strict=True))


def _default_metric(metrics: list[str]) -> str:
    return next((name for name in ("ndcg@10", "recall@10") if name in metrics), metrics[0] if metrics else "")


def _chart(gains: list[Gain], metric: str) -> Markup:
    """Bars of what every silo has in the federation, with what it had before as text."""
    rows = [
        Bar(f"silo {one.silo}", one.joined, f"{one.gain:+.4f}", style="s0" if one.gain > 0 else "s1")
        for one in gains[:DRAWN]
    ]
    words = f"{metric} of each silo in the federation; the figure at the end is the gain"
    return Markup(charts.bars(rows, title=words)) if rows else Markup("")
