"""The live part of a run's page: how far it is, what it costs, its curves so far."""

from __future__ import annotations

import threading
from collections import OrderedDict
from typing import Any

from markupsafe import Markup

from fedrec.board.folders import Entry, FolderIndex, read_plan
from fedrec.board.following import FollowedRun, Thinned, spent_budget
from fedrec.board.words import duration_text
from fedrec.evaluation import parse_protocol
from fedrec.experiment.folder import RunFolder
from fedrec.report import charts
from fedrec.report.charts import Line
from fedrec.report.pages.cost import size

FOLLOWED = 32  # runs whose figures are kept in memory


class Follower:
    """The runs that somebody has looked at lately, each read on where it was left."""

    def __init__(self) -> None:
        self._runs: OrderedDict[str, FollowedRun] = OrderedDict()
        self._one = threading.Lock()

    def follow(self, index: FolderIndex, entry: Entry) -> FollowedRun:
        """Return the figures of a run, read to their present end."""
        with self._one:
            found = self._runs.pop(entry.name, None)
            if found is None:
                found = FollowedRun(RunFolder(index.path(entry.name)).metrics, metric_of(entry))
            found.read_on()
            self._runs[entry.name] = found
            while len(self._runs) > FOLLOWED:
                self._runs.popitem(last=False)
            return found


def metric_of(entry: Entry) -> str:
    """The metric that chooses the round under the entry's protocol."""
    return parse_protocol(entry.protocol).select_metric


def view_live(index: FolderIndex, entry: Entry, follower: Follower) -> dict[str, Any]:
    """Describe a run as it stands."""
    run = follower.follow(index, entry)
    plan = read_plan(RunFolder(index.path(entry.name))) or {}
    planned = entry.planned
    left = run.seconds_left(planned) if entry.state == "running" else None
    facts = [
        ("clients in a round", f"{run.clients:,}" if run.rounds else "–"),
        ("clients lost", f"{run.lost:,}"),
        ("sent up", size(run.bytes_up)),
        ("sent down", size(run.bytes_down)),
        ("training time", duration_text(run.seconds)),
    ]
    if run.best is not None:
        facts.insert(0, (f"best {run.metric} on validation", f"{run.best:.4f}, round {run.best_round}"))
    if run.nodes is not None:
        facts.append(("nodes that answered", str(run.nodes)))
    spent = spent_budget(plan.get("privacy"), run.rounds)
    if plan:
        facts.append(("device", f"{plan['device']}: {plan['hardware']}"))
    if entry.state == "running":
        facts.insert(0, ("training time left", duration_text(left)))
    return {
        "rounds": run.rounds,
        "planned": planned,
        "share": None if not planned else min(1.0, run.rounds / planned),
        "facts": facts,
        "charts": _charts(run),
        "budget": None if spent is None else {"spent": spent[0], "whole": spent[1]},
        "said": _say(run.rounds, planned),
    }


def _say(rounds: int, planned: int | None) -> str:
    whole = f" of {planned:,}" if planned else ""
    return f"round {rounds:,}{whole}" if rounds else f"in the first round{whole}, which also loads and compiles"


def _charts(run: FollowedRun) -> list[dict[str, Any]]:
    known = (
        (run.quality, f"{run.metric} on validation", run.metric, "s0"),
        (run.loss, "Training loss", "loss", "s1"),
        (run.uplink, "Bytes up in a round", "bytes", "s2"),
    )
    return [
        {"caption": caption, "svg": _chart(curve, caption, unit, style)}
        for curve, caption, unit, style in known
        if len(curve.rounds) > 1
    ]


def _chart(curve: Thinned, caption: str, unit: str, style: str) -> Markup:
    rounds, values = curve.points()
    line = Line("", rounds, values, style=style)
    title = f"{caption} per round, now {values[-1]:.4g}"
    return Markup(charts.line_chart([line], title=title, x_label="round", y_label=unit, y_zero=True))
