"""Bars from zero: one for each row, or one for each bin of a distribution."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from fedrec.report.charts.frame import BOTTOM, HEIGHT, LEFT, TOP, WIDTH, Values, axis_titles, grid, rule_at, short, svg
from fedrec.report.charts.scales import Axis, axis, number


@dataclass(frozen=True)
class Bar:
    label: str
    value: float
    text: str
    spread: float | None = None
    style: str = "s0"


def bars(rows: Sequence[Bar], *, title: str, longest: int = 20, most: float | None = None) -> str:
    """Horizontal bars from zero, name on the left, value at the end, a whisker for the spread. `most` is the value that
    the whole width stands for; without it the largest."""
    height = 27.0
    # By an average width of letters, since the browser's font is not known when the page is written.
    left = 14 + 6.6 * max((len(short(row.label, longest)) for row in rows), default=0)
    room = 8 + 6.9 * max((len(row.text) for row in rows), default=0)
    largest = max((row.value + (row.spread or 0) for row in rows), default=1)
    # A given width lets several charts share one scale.
    x = axis(0, largest if most is None else most, left, WIDTH - room)
    parts = []
    for index, row in enumerate(rows):
        top, end, middle = index * height + 4, x(row.value), index * height + 4 + (height - 8) / 2
        reach = x(row.value + (row.spread or 0))
        parts.append(
            f'<text class="name" x="{left - 8:.1f}" y="{middle + 4:.1f}" text-anchor="end">'
            f"{escape(short(row.label, longest))}</text>"
            # A bar of 0 keeps a sliver, so that it is seen to be there.
            f'<rect class="bar {row.style}" x="{left:.1f}" y="{top:.1f}" width="{max(end - left, 0.8):.1f}" '
            f'height="{height - 8:.1f}"/>'
        )
        if row.spread:
            parts.append(_whisker(x(row.value - row.spread), reach, middle))
        parts.append(f'<text class="value" x="{reach + 7:.1f}" y="{middle + 4:.1f}">{escape(row.text)}</text>')
    return svg(title, "".join(parts), height=len(rows) * height + 4)


def histogram(
    edges: Values,
    shares: Values,
    *,
    title: str,
    x_label: str,
    y_label: str,
    labels: Sequence[str],
    outline: Values | None = None,
    names: tuple[str, str] = ("", ""),
    rule: tuple[int, str] | None = None,
    style: str = "s0",
) -> str:
    """Bars of equal width, one per bin; `outline` is a second distribution as a stepped line; `rule` stands before a
    bin. `labels` are written under the edges."""
    count = len(shares)
    # A tiny floor: all shares may be 0, and an axis needs a height.
    top = max([*map(float, shares), *([] if outline is None else map(float, outline)), 1e-9])
    # Some room above the highest bar, where the names of the distributions stand.
    x, y = Axis(0, count, LEFT, WIDTH - 14), axis(0, top * 1.12, HEIGHT - BOTTOM, TOP)
    parts = [grid(y), axis_titles(x_label, y_label), _bin_labels(x, labels)]
    for index, share in enumerate(shares):
        left, width, up = x(index) + 1, x(index + 1) - x(index) - 2, y(float(share))
        words = f"<title>{escape(_bin_name(edges, index))}: {float(share):.1f} %</title>"
        box = f'x="{left:.1f}" y="{up:.1f}" width="{width:.1f}" height="{max(y(0) - up, 0):.1f}"'
        parts.append(f'<rect class="bar hist {style}" {box}>{words}</rect>')
    if outline is not None:
        points = " ".join(f"{x(i + d):.1f},{y(float(v)):.1f}" for i, v in enumerate(outline) for d in (0, 1))
        # The outline comes after the bars, which would cover it.
        parts.append(f'<polyline class="line ref over" points="{points}"/>')
    if rule is not None:
        parts.append(rule_at(x, *rule))
    if outline is not None:
        parts.append(_names(names, style))
    return svg(title, "".join(parts))


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


WIDE_LETTER = 8.6  # of the bold names, in the widest of the usual fonts


def _names(names: tuple[str, str], own: str) -> str:
    """The two distributions by name, above the plot on the right, each with a piece of itself."""
    parts, right = [], WIDTH - 14
    for name, style in zip(reversed(names), ("ref", own), strict=True):
        if name:
            parts.append(f'<text class="end {style}" x="{right}" y="12" text-anchor="end">{escape(short(name))}</text>')
            left = right - WIDE_LETTER * len(short(name)) - 20
            piece = f'<path class="line ref" d="M{left:.1f} 8h14"/>' if style == "ref" else ""
            parts.append(piece or f'<rect class="bar hist {own}" x="{left + 4:.1f}" y="3" width="10" height="10"/>')
            right = left - 14
    return "".join(parts)
