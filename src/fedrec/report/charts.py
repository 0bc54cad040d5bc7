"""Charts as SVG text: pure functions of numbers. Colours and fonts come from the page's style sheet."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from html import escape
from itertools import pairwise
from typing import Any

import numpy as np

from fedrec.report.scales import Axis, axis, number

Values = Sequence[float] | np.ndarray[Any, np.dtype[Any]]

WIDTH, HEIGHT = 400.0, 260.0
LEFT, TOP, BOTTOM = 46.0, 26.0, 42.0
LONGEST = 14  # letters of a label
RUG = 7  # height of a row of strokes
COLOURS = 6  # classes s0..s5 of the style sheet; "ref" is the grey of references


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


@dataclass(frozen=True)
class Bar:
    label: str
    value: float
    text: str
    spread: float | None = None
    style: str = "s0"


def style_of(index: int) -> str:
    return f"s{index % COLOURS}"


def line_chart(
    lines: Sequence[Line], *, title: str, x_label: str, y_label: str, x_log: bool = False, y_log: bool = False,
    y_zero: bool = False, y_top: float | None = None, rule: tuple[float, str] | None = None, longest: int = LONGEST,
) -> str:  # fmt: skip
    """Curves over one x axis, labelled where they end; `rule` is a vertical line with a word to it."""
    drawn = [line for line in map(_finite, lines) if len(line.x)]
    if not drawn:
        return ""
    right = max(9.0 + 6.4 * max(len(_short(line.label, longest)) for line in drawn), 14.0)
    x = _span([line.x for line in drawn if len(line.x) > 1] or [drawn[0].x], LEFT, WIDTH - right, x_log)
    heights = [v for line in drawn for v in (line.y, line.low, line.high) if v is not None]
    y = _lifted(_span(heights, HEIGHT - BOTTOM, TOP, y_log, y_zero, y_top), sum(len(line.rug) > 0 for line in drawn))
    parts = [frame(x, y, x_label, y_label)]
    if rule is not None:
        parts.append(_rule(x, *rule))
    parts += [_band(line, x, y) for line in drawn if line.low is not None and len(line.x) > 1]
    parts += [_curve(line, x, y) for line in drawn]
    parts += [_rug(line, x, row) for row, line in enumerate(line for line in drawn if len(line.rug))]
    parts.append(_end_labels(drawn, x, y, longest))
    return svg(title, "".join(parts))


def histogram(
    edges: Values, shares: Values, *, title: str, x_label: str, y_label: str, labels: Sequence[str],
    outline: Values | None = None, names: tuple[str, str] = ("", ""), rule: tuple[int, str] | None = None,
    style: str = "s0",
) -> str:  # fmt: skip
    """Bars of equal width, one per bin; `outline` is a second distribution as a stepped line; `rule` stands before a
    bin. `labels` are written under the edges."""
    count = len(shares)
    top = max([*map(float, shares), *([] if outline is None else map(float, outline)), 1e-9])
    x, y = Axis(0, count, LEFT, WIDTH - 14), axis(0, top * 1.12, HEIGHT - BOTTOM, TOP)
    parts = [_grid(y), _axis_titles(x_label, y_label), _bin_labels(x, labels)]
    for index, share in enumerate(shares):
        left, width, up = x(index) + 1, x(index + 1) - x(index) - 2, y(float(share))
        words = f"<title>{escape(_bin_name(edges, index))}: {float(share):.1f} %</title>"
        box = f'x="{left:.1f}" y="{up:.1f}" width="{width:.1f}" height="{max(y(0) - up, 0):.1f}"'
        parts.append(f'<rect class="bar hist {style}" {box}>{words}</rect>')
    if outline is not None:
        points = " ".join(f"{x(i + d):.1f},{y(float(v)):.1f}" for i, v in enumerate(outline) for d in (0, 1))
        parts.append(f'<polyline class="line ref over" points="{points}"/>')
    if rule is not None:
        parts.append(_rule(x, *rule))
    if outline is not None:
        parts.append(_names(names, style))
    return svg(title, "".join(parts))


def bars(rows: Sequence[Bar], *, title: str, longest: int = 20, most: float | None = None) -> str:
    """Horizontal bars from zero, name on the left, value at the end, a whisker for the spread. `most` is the value that
    the whole width stands for; without it the largest."""
    height = 27.0
    left = 14 + 6.6 * max((len(_short(row.label, longest)) for row in rows), default=0)
    room = 8 + 6.9 * max((len(row.text) for row in rows), default=0)
    largest = max((row.value + (row.spread or 0) for row in rows), default=1)
    x = axis(0, largest if most is None else most, left, WIDTH - room)
    parts = []
    for index, row in enumerate(rows):
        top, end, middle = index * height + 4, x(row.value), index * height + 4 + (height - 8) / 2
        reach = x(row.value + (row.spread or 0))
        parts.append(
            f'<text class="name" x="{left - 8:.1f}" y="{middle + 4:.1f}" text-anchor="end">'
            f"{escape(_short(row.label, longest))}</text>"
            f'<rect class="bar {row.style}" x="{left:.1f}" y="{top:.1f}" width="{max(end - left, 0.8):.1f}" '
            f'height="{height - 8:.1f}"/>'
        )
        if row.spread:
            parts.append(_whisker(x(row.value - row.spread), reach, middle))
        parts.append(f'<text class="value" x="{reach + 7:.1f}" y="{middle + 4:.1f}">{escape(row.text)}</text>')
    return svg(title, "".join(parts), height=len(rows) * height + 4)


# -- pieces --


def svg(title: str, body: str, height: float = HEIGHT) -> str:
    """A picture of the common width, with its name for those who do not see it."""
    name = escape(title)
    return (
        f'<svg class="chart" viewBox="0 0 {WIDTH:.0f} {height:.0f}" role="img" aria-label="{name}">'
        f"<title>{name}</title>{body}</svg>"
    )


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
    flat = flat[np.isfinite(flat) & (flat > 0 if log else True)]
    low, high = (float(flat.min()), float(flat.max())) if len(flat) else (0.0, 1.0)
    if log:
        return axis(low, high, start, end, True)
    low = 0.0 if zero else low
    return axis(low, top if top is not None else high, start, end)


def _lifted(y: Axis, rows: int) -> Axis:
    """With room for rows of a rug below the lowest value."""
    high = y.start - y.end
    return y if y.log or not rows else replace(y, low=y.high - (y.high - y.low) * high / (high - 4 - RUG * rows))


def frame(x: Axis, y: Axis, x_label: str, y_label: str) -> str:
    """Ticks, grid and titles of both axes."""
    marks = "".join(
        f'<line class="tick" x1="{x(t):.1f}" x2="{x(t):.1f}" y1="{y.start:.1f}" y2="{y.start + 4:.1f}"/>'
        f'<text x="{x(t):.1f}" y="{y.start + 17:.1f}" text-anchor="middle">{number(t)}</text>'
        for t in x.ticks(5)
    )
    return _grid(y, x.end) + marks + _axis_titles(x_label, y_label, (x.start + x.end) / 2)


def _grid(y: Axis, right: float = WIDTH - 14) -> str:
    lines = "".join(
        f'<line class="grid" x1="{LEFT}" x2="{right:.1f}" y1="{y(t):.1f}" y2="{y(t):.1f}"/>'
        f'<text x="{LEFT - 6}" y="{y(t) + 4:.1f}" text-anchor="end">{number(t)}</text>'
        for t in y.ticks(4)
    )
    base = f'<line class="base" x1="{LEFT}" x2="{right:.1f}" y1="{y.start:.1f}" y2="{y.start:.1f}"/>'
    return lines + base


def _axis_titles(x_label: str, y_label: str, middle: float = (LEFT + WIDTH - 14) / 2) -> str:
    return (
        f'<text class="axis" x="2" y="12">{escape(y_label)}</text>'
        f'<text class="axis" x="{middle:.1f}" y="{HEIGHT - 6:.0f}" text-anchor="middle">{escape(x_label)}</text>'
    )


def _rule(x: Axis, value: float, word: str) -> str:
    at = x(value)
    return (
        f'<line class="rule" x1="{at:.1f}" x2="{at:.1f}" y1="{TOP}" y2="{HEIGHT - BOTTOM}"/>'
        f'<text class="note" x="{at - 4:.1f}" y="{TOP + 8}" text-anchor="end">{escape(word)}</text>'
    )


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
    gap = min(14.0, (HEIGHT - BOTTOM - TOP) / max(len(lines), 1))
    places, last = [], TOP - gap
    for height, index in wanted:
        last = max(height, last + gap)
        places.append((last, index))
    over = max(0.0, places[-1][0] - (HEIGHT - BOTTOM))
    return "".join(
        f'<text class="end {lines[i].style}" x="{x.end + 6:.1f}" y="{h - over + 4:.1f}">'
        f"{escape(_short(lines[i].label, longest))}</text>"
        for h, i in places
    )


def _whisker(left: float, right: float, middle: float) -> str:
    ends = "".join(f"M{at:.1f} {middle - 3.5:.1f}v7" for at in (left, right))
    return f'<path class="whisker" d="M{left:.1f} {middle:.1f}H{right:.1f}{ends}"/>'


def _bin_labels(x: Axis, labels: Sequence[str]) -> str:
    return "".join(
        f'<text x="{x(i):.1f}" y="{HEIGHT - BOTTOM + 17}" text-anchor="middle">{escape(label)}</text>'
        for i, label in enumerate(labels)
        if label
    )


def _bin_name(edges: Values, index: int) -> str:
    return f"{number(float(edges[index]))} to below {number(float(edges[index + 1]))}"


def _names(names: tuple[str, str], own: str) -> str:
    """The two distributions by name, above the plot on the right, each with a piece of itself."""
    parts, right = [], WIDTH - 14
    for name, style in zip(reversed(names), ("ref", own), strict=True):
        if name:
            parts.append(
                f'<text class="end {style}" x="{right}" y="12" text-anchor="end">{escape(_short(name))}</text>'
            )
            left = right - 7.2 * len(_short(name)) - 20
            piece = f'<path class="line ref" d="M{left:.1f} 8h14"/>' if style == "ref" else ""
            parts.append(piece or f'<rect class="bar hist {own}" x="{left + 4:.1f}" y="3" width="10" height="10"/>')
            right = left - 14
    return "".join(parts)


def _short(label: str, most: int = LONGEST) -> str:
    return label if len(label) <= most else label[: most - 1] + "…"
