"""A metric for the users with the fewest and with the most training interactions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from fedrec.evaluation.groups import ACTIVITY
from fedrec.experiment.finished_run import FinishedRun
from fedrec.report.charts import Bar, bars, style_of
from fedrec.report.comparison import compare
from fedrec.report.figures.figure import Drawing, Figure, Panel, Table
from fedrec.report.figures.names import LONGEST, choose_metric, short_names
from fedrec.report.groups import group_comparison
from fedrec.report.tables import spread_text

SHOWN = (ACTIVITY[0], ACTIVITY[-1])


@dataclass(frozen=True)
class Activity(Figure):
    name: ClassVar[str] = "activity"
    summary: ClassVar[str] = "a metric for cold and warm users, as bars; several runs"

    metric: str = "ndcg@10"

    def draw(self, runs: Sequence[FinishedRun]) -> Drawing:
        comparison = compare(runs)
        metric = choose_metric(runs, self.metric)
        found = group_comparison(comparison, "activity", metric)
        names = short_names([label for label, _, _ in found.rows])
        places = [place for place, group in enumerate(found.names) if group in SHOWN]
        most = max(value + (spread or 0) for _, _, cells in found.rows for value, spread in cells)
        panels = []
        for place in places:
            drawn = [
                Bar(name, cells[place][0], f"{cells[place][0]:.4f}", cells[place][1], style_of(index))
                for index, (name, (_, _, cells)) in enumerate(zip(names, found.rows, strict=True))
            ]
            caption = f"{metric} of {found.users[place]:,} {found.names[place]} users"
            title = f"{caption}: " + ", ".join(f"{bar.label} {bar.text}" for bar in drawn)
            panels.append(Panel(bars(drawn, title=title, longest=LONGEST, most=most), caption))
        rows = tuple((label, str(seeds), *(spread_text(*cell) for cell in cells)) for label, seeds, cells in found.rows)
        table = Table(f"{metric} on test by activity", ("configuration", "seeds", *found.names), rows)
        meaning = f"{found.meaning[0].upper()}{found.meaning[1:]}."
        return Drawing(f"{metric} of cold and warm users", meaning, tuple(panels), tables=(table,))
