"""What all charts share: their size, their axes, and the element around them."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import Any

import numpy as np

from fedrec.report.charts.scales import Axis, number

Values = Sequence[float] | np.ndarray[Any, np.dtype[Any]]

WIDTH, HEIGHT = 400.0, 260.0
LEFT, TOP, BOTTOM = 46.0, 26.0, 42.0
LONGEST = 14  # letters of a label
COLOURS = 6  # classes s0..s5 of the style sheet; "ref" is the grey of references


def style_of(index: int) -> str:
    return f"s{index % COLOURS}"


def svg(title: str, body: str, height: float = HEIGHT) -> str:
    """A picture of the common width, with its name for those who do not see it."""
    name = escape(title)
    return (
        f'<svg class="chart" viewBox="0 0 {WIDTH:.0f} {height:.0f}" role="img" aria-label="{name}">'
        f"<title>{name}</title>{body}</svg>"
    )


def frame(x: Axis, y: Axis, x_label: str, y_label: str) -> str:
    """Ticks, grid and titles of both axes."""
    marks = "".join(
        f'<line class="tick" x1="{x(t):.1f}" x2="{x(t):.1f}" y1="{y.start:.1f}" y2="{y.start + 4:.1f}"/>'
        f'<text x="{x(t):.1f}" y="{y.start + 17:.1f}" text-anchor="middle">{number(t)}</text>'
        for t in x.ticks(5)
    )
    return grid(y, x.end) + marks + axis_titles(x_label, y_label, (x.start + x.end) / 2)


def grid(y: Axis, right: float = WIDTH - 14) -> str:
    lines = "".join(
        f'<line class="grid" x1="{LEFT}" x2="{right:.1f}" y1="{y(t):.1f}" y2="{y(t):.1f}"/>'
        f'<text x="{LEFT - 6}" y="{y(t) + 4:.1f}" text-anchor="end">{number(t)}</text>'
        for t in y.ticks(4)
    )
    base = f'<line class="base" x1="{LEFT}" x2="{right:.1f}" y1="{y.start:.1f}" y2="{y.start:.1f}"/>'
    return lines + base


def axis_titles(x_label: str, y_label: str, middle: float = (LEFT + WIDTH - 14) / 2) -> str:
    return (
        f'<text class="axis" x="2" y="12">{escape(y_label)}</text>'
        f'<text class="axis" x="{middle:.1f}" y="{HEIGHT - 6:.0f}" text-anchor="middle">{escape(x_label)}</text>'
    )


def rule_at(x: Axis, value: float, word: str) -> str:
    at = x(value)
    return (
        f'<line class="rule" x1="{at:.1f}" x2="{at:.1f}" y1="{TOP}" y2="{HEIGHT - BOTTOM}"/>'
        f'<text class="note" x="{at - 4:.1f}" y="{TOP + 8}" text-anchor="end">{escape(word)}</text>'
    )


def short(label: str, most: int = LONGEST) -> str:
    return label if len(label) <= most else label[: most - 1] + "…"
