"""Curves over one x axis."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from html import escape
from itertools import pairwise

import numpy as np

from fedrec.report.charts.frame import BOTTOM, HEIGHT, LEFT, LONGEST, TOP, WIDTH, Values, frame, rule_at, short, svg
from fedrec.report.charts.scales import Axis, axis

RUG = 7  # height of a row of strokes


@dataclass(frozen=True)
class Line:
    """A curve with its label at its end; `low` and `high` draw a band, `marks` are x values to point out and `rug`
    those to mark at the foot of the chart.

    A line of one point is drawn across the whole chart.
    """

    label: str
    x: Values
    y: Values
    low: Values | None = None
    high: Values | None = None
    marks: Sequence[float] = ()
    style: str = "s0"
    stairs: bool = False
    rug: Sequence[float] = ()
    unit: str = "round"


def line_chart(
    lines: Sequence[Line],
    *,
    title: str,
    x_label: str,
    y_label: str,
    x_log: bool = False,
    y_log: bool = False,
    y_zero: bool = False,
    y_top: float | None = None,
    rule: tuple[float, str] | None = None,
    longest: int = LONGEST,
) -> str:
    """Curves over one x axis, labelled where they end; `rule` is a vertical line with a word to it."""
    # Curves without points drop out here, so that nothing below has to think of them.
    drawn = [line for line in map(_finite, lines) if len(line.x)]
    if not drawn:
        return ""
    # The room at the right grows with the longest name, and never so little that ticks are cut off.
    right = max(9.0 + 6.4 * max(len(short(line.label, longest)) for line in drawn), 14.0)
    # Lines of one point cross the whole chart and must not stretch its x axis.
    x = _span([line.x for line in drawn if len(line.x) > 1] or [drawn[0].x], LEFT, WIDTH - right, x_log)
    # Bands belong to the heights: the axis would otherwise cut them off.
    heights = [v for line in drawn for v in (line.y, line.low, line.high) if v is not None]
    y = _lift(_span(heights, HEIGHT - BOTTOM, TOP, y_log, y_zero, y_top), sum(len(line.rug) > 0 for line in drawn))
    parts = [frame(x, y, x_label, y_label)]
    if rule is not None:
        parts.append(rule_at(x, *rule))
    # Bands lie below curves, so that no mean is covered by another method's spread.
    parts += [_band(line, x, y) for line in drawn if line.low is not None and len(line.x) > 1]
    parts += [_curve(line, x, y) for line in drawn]
    parts += [_rug(line, x, row) for row, line in enumerate(line for line in drawn if len(line.rug))]
    parts.append(_end_labels(drawn, x, y, longest))
    return svg(title, "".join(parts))


def _finite(line: Line) -> Line:
    """Without the points that cannot be drawn."""
    x, y = np.asarray(line.x, float), np.asarray(line.y, float)
    keep = np.isfinite(x) & np.isfinite(y)
    low, high = (None if v is None else np.asarray(v, float)[keep] for v in (line.low, line.high))
    return replace(line, x=x[keep], y=y[keep], low=low, high=high)


def _span(
    values: Sequence[Values], start: float, end: float, log: bool, zero: bool = False, top: float | None = None
) -> Axis:
    flat = np.concatenate([np.asarray(v, float) for v in values])
    # What is not above 0 has no place on a logarithmic axis, and would pull its end to nowhere.
    flat = flat[np.isfinite(flat) & (flat > 0 if log else True)]
    low, high = (float(flat.min()), float(flat.max())) if len(flat) else (0.0, 1.0)
    if log:
        return axis(low, high, start, end, True)
    # Starting at zero keeps small differences small to the eye.
    low = 0.0 if zero else low
    return axis(low, top if top is not None else high, start, end)


def _lift(y: Axis, rows: int) -> Axis:
    """With room for rows of a rug below the lowest value."""
    high = y.start - y.end
    # Not on a logarithmic axis, where a shift by pixels would be another value.
    return y if y.log or not rows else replace(y, low=y.high - (y.high - y.low) * high / (high - 4 - RUG * rows))


def _points(line: Line, x: Axis, y: Axis) -> list[tuple[float, float]]:
    if len(line.x) == 1:
        return [(x.start, y(float(line.y[0]))), (x.end, y(float(line.y[0])))]
    points = [(x(float(a)), y(float(b))) for a, b in zip(line.x, line.y, strict=True)]
    if not line.stairs:
        return points
    return [points[0]] + [p for (_, b), (c, d) in pairwise(points) for p in ((c, b), (c, d))]


def _curve(line: Line, x: Axis, y: Axis) -> str:
    path = " ".join(f"{a:.1f},{b:.1f}" for a, b in _points(line, x, y))
    dots = []
    for mark in line.marks:
        # The nearest recorded round: the chosen one itself may not be among the points.
        near = int(np.argmin(np.abs(np.asarray(line.x) - mark)))
        if len(line.x) > 1:
            at = f'cx="{x(float(line.x[near])):.1f}" cy="{y(float(line.y[near])):.1f}"'
            words = f"{escape(line.unit)} {mark:g}: {float(line.y[near]):.4g}"
            dots.append(f'<circle class="mark {line.style}" {at} r="3.6"><title>{words}</title></circle>')
    flat = " flat" if len(line.x) == 1 else ""
    return f'<polyline class="line {line.style}{flat}" points="{path}"/>' + "".join(dots)


def _band(line: Line, x: Axis, y: Axis) -> str:
    assert line.low is not None
    assert line.high is not None
    there = [(x(float(a)), y(float(b))) for a, b in zip(line.x, line.high, strict=True) if math.isfinite(b)]
    back = [(x(float(a)), y(float(b))) for a, b in zip(line.x, line.low, strict=True) if math.isfinite(b)]
    path = " ".join(f"{a:.1f},{b:.1f}" for a, b in [*there, *reversed(back)])
    return f'<polygon class="band {line.style}" points="{path}"/>'


def _rug(line: Line, x: Axis, row: int) -> str:
    """Short strokes above the x axis, one row for each line that has them."""
    foot = HEIGHT - BOTTOM - 2 - RUG * row
    strokes = "".join(f"M{x(float(at)):.1f} {foot:.0f}v-5" for at in line.rug)
    return f'<path class="rug {line.style}" d="{strokes}"/>'


def _end_labels(lines: Sequence[Line], x: Axis, y: Axis, longest: int = LONGEST) -> str:
    """Names at the ends, moved apart where they would overlap."""
    wanted = sorted((_points(line, x, y)[-1][1], index) for index, line in enumerate(lines))
    # Fourteen pixels are a line of text; with many lines they share what height there is.
    gap = min(14.0, (HEIGHT - BOTTOM - TOP) / max(len(lines), 1))
    places, last = [], TOP - gap
    for height, index in wanted:
        last = max(height, last + gap)
        places.append((last, index))
    # All move up together when the last would fall below the axis, so that their order stays.
    over = max(0.0, places[-1][0] - (HEIGHT - BOTTOM))
    return "".join(
        f'<text class="end {lines[i].style}" x="{x.end + 6:.1f}" y="{h - over + 4:.1f}">'
        f"{escape(short(lines[i].label, longest))}</text>"
        for h, i in places
    )
