"""FedRKG's gates by group of users, from one guidance round to the next, and what every commit did."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from fedrec.evaluation.groups import ACTIVITY, TASTE
from fedrec.experiment.finished_run import FinishedRun
from fedrec.report.charts import Line, line_chart, style_of
from fedrec.report.comparison import Row, compare, selection
from fedrec.report.figures.figure import Drawing, Figure, Panel, Table
from fedrec.report.records import FIRST, curve, rounds
from fedrec.schema import is_number

GROUPS = (ACTIVITY[0], ACTIVITY[-1], TASTE[0], TASTE[-1])
PAIRS = ((ACTIVITY[0], ACTIVITY[-1]), (TASTE[0], TASTE[-1]))
WORDS = {"gate": "mean gate", "logit": "mean logit of the gate"}


@dataclass(frozen=True)
class Gates(Figure):
    name: ClassVar[str] = "gates"
    summary: ClassVar[str] = "FedRKG's gates of cold, warm, distinct users and followers by guidance round; one run"

    metric: str | None = None  # of the table of commits; none: the one that chose the round

    def draw(self, runs: Sequence[FinishedRun]) -> Drawing:
        comparison = compare(runs)
        self.require(len(comparison.rows) == 1, "shows one configuration; give one run, or seeds of one")
        row = comparison.rows[0]
        there = curve(row.runs, f"gate {GROUPS[0]}", "inside")
        self.require(
            len(there.rounds) > 0,
            f"{row.runs[0].folder} has no gates in metrics.jsonl; run fedrkg with "
            "gate=true and with --eval-every dividing interval",
        )
        metric = self.metric or selection(comparison.protocol, 10)[0]
        panels = tuple(_panel(row, kind) for kind in WORDS)
        lead = (
            "Cold and warm: the 30% of users with the fewest and the most training interactions, over all items. "
            "Distinct and followers: the 100 users with the smallest and the largest share of popular items, over "
            "popular items. A gate of 1/2 is plain guidance."
        )
        tables = (_last(row), _commits(row, metric))
        return Drawing("Gates by guidance round", lead, panels, tables=tuple(table for table in tables if table.rows))


def _panel(row: Row, kind: str) -> Panel:
    lines = []
    for index, group in enumerate(GROUPS):
        found, band = curve(row.runs, f"{kind} {group}", "inside"), row.seeds > 1
        low, high = (found.low, found.high) if band else (None, None)
        lines.append(Line(group, found.rounds + FIRST, found.mean, low, high, style=style_of(index)))
    svg = line_chart(lines, title=f"{WORDS[kind]} by guidance round", x_label="round", y_label=WORDS[kind])
    return Panel(svg, f"{WORDS[kind][0].upper()}{WORDS[kind][1:]} by guidance round")


def _last(row: Row) -> Table:
    """Signed means of the last guidance round: where logits are near zero, a ratio alone would mislead."""
    cells = []
    for low, high in PAIRS:
        left, right = (
            {kind: float(curve(row.runs, f"{kind} {group}", "inside").mean[-1]) for kind in WORDS}
            for group in (low, high)
        )
        change = 100 * (right["gate"] - left["gate"]) / left["gate"]
        cells.append(
            (
                f"{low}, {high}",
                f"{left['gate']:.5f}, {right['gate']:.5f}",
                f"{change:+.3f} %",
                f"{left['logit']:+.5f}, {right['logit']:+.5f}",
            )
        )
    return Table("Last guidance round", ("groups", "mean gates", "difference", "mean logits"), tuple(cells))


def _commits(row: Row, metric: str) -> Table:
    """Validation just before and just after each commit, seed by seed."""
    cells = []
    for run in row.runs:
        for record in rounds(run):
            parts: list[Any] = [record.get(part) for part in ("before", "valid")]
            found: list[Any] = [part.get(metric) for part in parts if isinstance(part, dict)]
            if len(found) == 2 and all(map(is_number, found)):
                before, after = found
                at = str(record["round"] + FIRST)
                cells.append((str(run.summary["seed"]), at, f"{before:.4f}", f"{after:.4f}", f"{after - before:+.4f}"))
    heads = ("seed", "round", f"{metric} before", "after", "change")
    return Table("Effect of each commit on validation", heads, tuple(cells))
