"""Which company gains by joining the federation, and which loses: every silo's users, together and alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from fedrec.experiment.finished_run import FinishedRun
from fedrec.report.charts import Bar, bars
from fedrec.report.comparison import compare
from fedrec.report.figures.figure import Drawing, Figure, Panel, Table
from fedrec.report.figures.names import LONGEST, choose_metric
from fedrec.report.groups import group_comparison

ALONE = "local"


@dataclass(frozen=True)
class Joining(Figure):
    name: ClassVar[str] = "joining"
    summary: ClassVar[str] = "who gains by joining: each silo's users, against training alone; a run and a run of local"

    metric: str = "ndcg@10"

    def draw(self, runs: Sequence[FinishedRun]) -> Drawing:
        comparison = compare(runs)
        metric = choose_metric(runs, self.metric)
        found = group_comparison(comparison, "silo", metric)
        rows = dict(zip([row.method for row in comparison.rows], found.rows, strict=True))
        joined = [method for method in rows if method != ALONE]
        self.require(
            ALONE in rows and len(joined) == 1,
            "give a run and a run of local on the same silos: fedrec run local with the same data and --silos",
        )
        together, alone = ([value for value, _ in rows[name][2]] for name in (joined[0], ALONE))
        most = max(*together, *alone)
        panels, lines = [], []
        for place, silo in enumerate(found.names):
            gain = together[place] - alone[place]
            word = "gains" if gain > 0 else "loses" if gain < 0 else "keeps what it had"
            drawn = [
                Bar("together", together[place], f"{together[place]:.4f}", None, "s0"),
                Bar("alone", alone[place], f"{alone[place]:.4f}", None, "ref"),
            ]
            caption = f"{silo} {word}: {found.users[place]:,} users"
            panels.append(Panel(bars(drawn, title=caption, longest=LONGEST, most=most), caption))
            figures = (f"{together[place]:.4f}", f"{alone[place]:.4f}", f"{gain:+.4f}")
            lines.append((silo, f"{found.users[place]:,}", *figures))
        winners = sum(a > b for a, b in zip(together, alone, strict=True))
        lead = f"{winners} of {len(found.names)} gain by joining ({joined[0]}), by {metric} on test items."
        table = Table(f"{metric} of each silo's users", ("silo", "users", "together", "alone", "gain"), tuple(lines))
        return Drawing("Who gains by joining", lead, tuple(panels), tables=(table,))
