"""The charts of the report, from views of runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import mean, stdev
from typing import Any

import numpy as np
from markupsafe import Markup

from fedrec.report import charts
from fedrec.report.charts import Bar, Line
from fedrec.report.pages.views import View
from fedrec.report.records import FIRST, Curve, curve, pool, rank_shares, within

Figure = dict[str, Any]  # svg and caption


def key_figure(shown: Sequence[View], chance: Mapping[str, float], metric: str) -> Markup:
    """One metric of everybody, from zero, the highest first."""
    rows = []
    for view in shown:
        values = view.row.values(metric)
        if values:
            spread = stdev(values) if len(values) > 1 else None
            rows.append(Bar(view.name, mean(values), f"{mean(values):.4f}", spread, view.style))
    if metric in chance:
        # Chance has a grey of its own, so that no method is mistaken for it.
        rows.append(Bar("chance", chance[metric], f"{chance[metric]:.4f}", None, "ref3"))
    # Sorted by value and not by name: the chart answers which is highest.
    rows.sort(key=lambda row: -row.value)
    words = ", ".join(f"{row.label} {row.text}" for row in rows)
    return Markup(charts.bars(rows, title=f"{metric} on test: {words}"))


def curves(shown: Sequence[View], metric: str, on: str) -> list[Figure]:
    """The selection metric and the training loss over rounds, where there is more than one round."""
    asked = [view for view in shown if not view.reference]
    figures = []
    quality = [_line(view, curve(view.row.runs, metric, "valid"), True) for view in shown]
    # One point is no curve; a chart of single points would only repeat the table.
    if any(len(line.x) > 1 for view, line in zip(shown, quality, strict=True) if not view.reference):
        title = f"{metric} on {on} per round for {_join_views(asked)}"
        svg = charts.line_chart(quality, title=title, x_label="round", y_label=metric, y_zero=True)
        figures.append({"svg": Markup(svg), "caption": f"Quality on {on}"})
    loss = [_line(view, curve(view.row.runs, "loss")) for view in asked]
    if any(len(line.x) > 1 for line in loss):
        svg = charts.line_chart(
            [line for line in loss if len(line.x) > 1],
            title=f"training loss per round for {_join_views(asked)}",
            x_label="round",
            y_label="loss",
            y_zero=True,
        )
        figures.append({"svg": Markup(svg), "caption": "Training loss"})
    return figures


def _line(view: View, found: Curve, flat_reference: bool = False) -> Line:
    if flat_reference and view.reference and len(found.rounds):  # a level to compare with, not a curve to follow
        at = [run.summary["best_round"] for run in view.row.runs]
        # The recorded round nearest to the chosen one, since not every round is evaluated.
        level = float(np.mean([found.mean[int(np.argmin(np.abs(found.rounds - best)))] for best in at]))
        return Line(view.name, [float(FIRST)], [level], style=view.style)
    # A band over one seed would have no width, and over one round no length.
    band = view.row.seeds > 1 and len(found.rounds) > 1
    marks = sorted({float(run.summary["best_round"] + FIRST) for run in view.row.runs})
    low, high = (found.low, found.high) if band else (None, None)
    return Line(view.name, found.rounds + FIRST, found.mean, low, high, marks, view.style)


def user_charts(shown: Sequence[View], chance: Mapping[str, float], k: int) -> list[Figure]:
    """How the result spreads over users: ranks of held-out items, or the metric itself where users have several."""
    metric = f"recall@{k}"
    found = [(view, *pool(view.row.runs, metric)) for view in shown]
    ranked = [(view, ranks) for view, ranks, _ in found if ranks is not None and len(ranks)]
    if not ranked:
        return _metric_histogram(shown, [(view, values) for view, _, values in found], metric)
    largest = max(float(ranks.max()) for _, ranks in ranked)
    # Ten lists long at most: what happens at rank 5,000 concerns nobody who is shown ten items.
    return [_rank_histogram(ranked, largest, k), _within_chart(ranked, min(largest, 10.0 * k), k, chance.get(metric))]


def _rank_histogram(ranked: Sequence[tuple[View, Any]], largest: float, k: int) -> Figure:
    asked = [(view, ranks) for view, ranks in ranked if not view.reference] or list(ranked)
    # The best one only: outlines of all would cover each other.
    view, ranks = max(asked, key=lambda pair: float((pair[1] <= k).mean()))
    edges, shares = rank_shares(ranks, largest)
    beside = next(((other, values) for other, values in ranked if other.reference and other.name == "popularity"), None)
    outline = None if beside is None else [100 * share for share in rank_shares(beside[1], largest)[1]]
    # Edges are one above a round number, so that a bin begins after it: 1,001 is written as 1k.
    labels = [f"{edge:,.0f}" if edge < 1000 else f"{(edge - 1) / 1000:g}k" for edge in edges[:-1]]
    first = next((i for i, edge in enumerate(edges) if edge == k + 1), None)
    svg = charts.histogram(
        edges,
        [100 * share for share in shares],
        labels=labels,
        outline=outline,
        title=f"Rank of the held-out item under {view.name}, share of users per range of ranks",
        x_label="rank of the held-out item (bins widen)",
        y_label="% of users",
        names=(view.name, "popularity"),
        rule=None if first is None else (first, f"first {k}"),
        style=view.style,
    )
    hits = f"{100 * (view.row.mean(f'recall@{k}') or 0.0):.1f} % within the first {k}"  # ties counted as in the table
    return {"svg": Markup(svg), "caption": f"Rank of the held-out item with {view.name}: {hits}"}


def _within_chart(ranked: Sequence[tuple[View, Any]], largest: float, k: int, chance: float | None) -> Figure:
    lines = []
    for view, ranks in ranked:
        n, share = within(ranks, largest)
        lines.append(Line(view.name, n, 100 * share, style=view.style))
    if chance:
        n, _ = within(np.array([largest]), largest)
        # Chance is a straight line through the origin; it cannot find more than everybody.
        lines.append(Line("chance", n, np.minimum(100 * chance / k * n, 100), style="ref3"))
    svg = charts.line_chart(
        lines,
        title=f"Share of users whose held-out item is within the first n: {_join_views([v for v, _ in ranked])}",
        x_label="length of the list, n",
        y_label="% of users found",
        x_log=True,
        y_zero=True,
        rule=(k, f"n = {k}"),
    )
    return {"svg": Markup(svg), "caption": "Recall at every list length"}


def _metric_histogram(shown: Sequence[View], found: Sequence[tuple[View, Any]], metric: str) -> list[Figure]:
    there = [(view, values) for view, values in found if len(values)]
    # Without a configuration in question there is nobody to draw.
    if not there or there[0][0].reference:
        return []
    edges = np.linspace(0, 1, 11)

    def shares(values: Any) -> list[float]:
        return [float(100 * c) for c in np.histogram(values, bins=edges)[0] / len(values)]

    beside = next((values for view, values in there[1:] if view.row.method == "popularity"), None)
    svg = charts.histogram(
        edges,
        shares(there[0][1]),
        labels=[f"{edge:.1g}" for edge in edges],
        outline=None if beside is None else shares(beside),
        names=(there[0][0].name, "popularity"),
        title=f"{metric} of each user under {there[0][0].name}",
        x_label=f"{metric} of a user",
        y_label="% of users",
    )
    none = 100 * float((there[0][1] == 0).mean())
    return [{"svg": Markup(svg), "caption": f"{metric} per user; {none:.1f} % of users have 0"}]


def _join_views(shown: Sequence[View]) -> str:
    return ", ".join(view.name for view in shown)
