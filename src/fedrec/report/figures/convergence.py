"""Quality over rounds, with the rounds in which clients uploaded: steps show where knowledge came in."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

from fedrec.experiment.finished_run import FinishedRun
from fedrec.report.charts import Line, line_chart, style_of
from fedrec.report.comparison import Row, compare, selection
from fedrec.report.figures.figure import Drawing, Figure, Panel, Table
from fedrec.report.figures.names import LONGEST, short_names
from fedrec.report.records import FIRST, Curve, curve, find_convergence, rounds
from fedrec.schema import is_number


@dataclass(frozen=True)
class Convergence(Figure):
    name: ClassVar[str] = "convergence"
    summary: ClassVar[str] = "a validation metric by round, with upload rounds marked; several runs"

    metric: str | None = None  # none: the one that chose the round
    rounds: Literal["linear", "log"] = "linear"

    def draw(self, runs: Sequence[FinishedRun]) -> Drawing:
        comparison = compare(runs)
        chosen, on = selection(comparison.protocol, 10)
        metric = self.metric or chosen
        names = short_names([row.label for row in comparison.rows])
        curves = [curve(row.runs, metric, "valid") for row in comparison.rows]
        for row, found in zip(comparison.rows, curves, strict=True):
            folder = row.runs[0].folder
            self.require(
                len(found.rounds) > 0, f"{folder} has no {metric} by round in metrics.jsonl; choose another metric"
            )
        lines = [
            _line(name, row, found, style_of(index))
            for index, (name, row, found) in enumerate(zip(names, comparison.rows, curves, strict=True))
        ]
        log = self.rounds == "log"
        svg = line_chart(
            lines,
            title=f"{metric} on {on} by round: {', '.join(names)}",
            y_label=f"{metric} on {on}",
            x_label="round (logarithmic)" if log else "round",
            x_log=log,
            longest=LONGEST,
        )
        panel = Panel(svg, f"{metric} on {on} by round")
        rows = tuple(
            (
                name,
                row.label,
                _rounds_of(line.rug, found),
                f"{found.mean.max():.4f}",
                f"{found.mean[-1]:.4f}",
                _within(row, metric),
            )
            for name, row, line, found in zip(names, comparison.rows, lines, curves, strict=True)
        )
        heads = (
            "line",
            "configuration",
            "rounds with uploads",
            f"highest {metric}",
            "last",
            "first round within 1 % of the highest",
        )
        table = Table("Curves", heads, rows)
        lead = "Ticks at the bottom mark rounds with uploads, dots the chosen rounds."
        bands = " Bands show the range over seeds." if any(row.seeds > 1 for row in comparison.rows) else ""
        return Drawing(f"Convergence: {metric} by round", lead + bands, (panel,), tables=(table,))


def _line(name: str, row: Row, found: Curve, style: str) -> Line:
    uploads = sorted(
        {
            int(record["round"])
            # Seeds may upload in different rounds; a tick means that any of them did.
            for run in row.runs
            for record in rounds(run)
            if is_number(record.get("bytes_up")) and record["bytes_up"] > 0
        }
    )
    band = row.seeds > 1
    return Line(
        name,
        found.rounds + FIRST,
        found.mean,
        found.low if band else None,
        found.high if band else None,
        marks=sorted({float(run.summary["best_round"] + FIRST) for run in row.runs}),
        style=style,
        rug=[float(round + FIRST) for round in uploads],
    )


def _within(row: Row, metric: str) -> str:
    """Of every seed by itself, since a mean over seeds has its highest value elsewhere."""
    found = [round + FIRST for run in row.runs if (round := find_convergence(run, metric)) is not None]
    spread = "" if min(found) == max(found) else f" ({min(found)} to {max(found)} over {len(found)} seeds)"
    return f"{sum(found) / len(found):.4g}{spread}"


def _rounds_of(uploads: Sequence[float], found: Curve) -> str:
    return "none" if not len(uploads) else f"{len(uploads)}, up to round {int(found.rounds[-1]) + FIRST}"
