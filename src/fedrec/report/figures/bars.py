"""One metric, one bar per configuration; a panel for each data set and protocol."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import mean, stdev
from typing import ClassVar, Literal

from fedrec.experiment.finished_run import FinishedRun
from fedrec.report.charts import Bar, bars, style_of
from fedrec.report.comparison import Row, count_in_words
from fedrec.report.figures.figure import Drawing, Figure, Panel, Table
from fedrec.report.figures.names import LONGEST, choose_metric, rows_of, short_names
from fedrec.report.tables import value_text


@dataclass(frozen=True)
class Bars(Figure):
    name: ClassVar[str] = "bars"
    summary: ClassVar[str] = "one metric, one bar per configuration, by dataset and protocol"

    metric: str = "ndcg@10"
    on: Literal["test", "valid"] = "test"

    def draw(self, runs: Sequence[FinishedRun]) -> Drawing:
        metric = choose_metric(runs, self.metric, self.on)
        rows = rows_of(runs)
        labels = list(dict.fromkeys(row.label for row in rows))
        names = dict(zip(labels, short_names(labels), strict=True))
        styles = {label: style_of(index) for index, label in enumerate(labels)}
        groups: dict[tuple[str, str], list[Row]] = {}
        for row in rows:
            groups.setdefault((row.runs[0].data, row.runs[0].protocol), []).append(row)
        panels = []
        for (data, protocol), members in groups.items():
            beside = [row for (other, _), some in groups.items() if other == data for row in some]
            # One scale for each data set.
            most = max(_end(row.values(metric, self.on)) for row in beside)
            drawn = [_bar(names[row.label], row.values(metric, self.on), styles[row.label]) for row in members]
            drawn.sort(key=lambda bar: -bar.value)
            title = f"{metric} on {self.on}, {data}, {protocol}: " + ", ".join(f"{b.label} {b.text}" for b in drawn)
            svg = bars(drawn, title=title, longest=LONGEST, most=most)
            panels.append(Panel(svg, f"{metric} on {self.on}; {data}, {protocol}"))
        table = Table(
            f"{metric} on {self.on}",
            ("configuration", "data", "protocol", "seeds", metric),
            tuple(
                (
                    row.label,
                    row.runs[0].data,
                    row.runs[0].protocol,
                    count_in_words(row.summaries),
                    value_text(row.values(metric, self.on)),
                )
                for row in rows
            ),
        )
        # Said on the page, because bars that do not begin at zero exaggerate differences.
        lead = "Bars start at zero. "
        lead += "Whiskers show the standard deviation over seeds." if any(row.seeds > 1 for row in rows) else ""
        return Drawing(f"{metric} of {len(labels)} configurations", lead, tuple(panels), tables=(table,))


def _end(values: Sequence[float]) -> float:
    return mean(values) + (stdev(values) if len(values) > 1 else 0)


def _bar(name: str, values: Sequence[float], style: str) -> Bar:
    return Bar(name, mean(values), f"{mean(values):.4f}", stdev(values) if len(values) > 1 else None, style)
