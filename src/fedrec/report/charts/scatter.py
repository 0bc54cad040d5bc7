"""Points on a plane: several sets, each with its colour and mark."""

from __future__ import annotations

import colorsys
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

import numpy as np

from fedrec.report.charts.frame import LEFT, TOP, WIDTH, svg
from fedrec.report.charts.scales import Axis, axis, number

Array = np.ndarray[Any, np.dtype[Any]]

TALL, FOOT, RIGHT = 380.0, 42.0, 10.0
GOLDEN = 0.618033988749895  # of a turn: neighbouring numbers get hues far apart


@dataclass(frozen=True)
class Points:
    """`style` is a class of the style sheet, drawn as rings of this size; without it, dots in a colour of their own."""

    xy: Array
    label: str = ""
    style: str = ""
    size: float = 3.0
    colour: str = ""


def scatter(
    sets: Sequence[Points], *, title: str, x_label: str, y_label: str, span: tuple[Array, Array] | None = None
) -> str:
    """`span` is (least, most) of both axes, for charts that share a scale."""
    # Two given corners stand in for the points, so that both cases share the rest.
    every = np.concatenate([points.xy for points in sets]) if span is None else np.stack(span)
    (left, low), (right, high) = every.min(0), every.max(0)
    x = _pad(left, right, LEFT, WIDTH - RIGHT)
    y = _pad(low, high, TALL - FOOT, TOP + 2)
    named = [points for points in sets if points.label]
    parts = [_frame(x, y, x_label, y_label), *(_draw(points, x, y) for points in sets), _legend(named)]
    return svg(title, "".join(parts), height=TALL)


def hue(index: int) -> str:
    """A colour for each number that stands out from dark and light paper."""
    # Lightness and saturation vary too, because hues alone run out after a dozen.
    red, green, blue = colorsys.hls_to_rgb((index * GOLDEN) % 1, (0.42, 0.55, 0.48)[index % 3], (0.75, 0.6)[index % 2])
    return f"#{round(255 * red):02x}{round(255 * green):02x}{round(255 * blue):02x}"


def _pad(low: float, high: float, start: float, end: float) -> Axis:
    # A margin, since rings on the frame would be cut in half.
    room = 0.04 * (high - low)
    return axis(float(low - room), float(high + room), start, end)


def _frame(x: Axis, y: Axis, x_label: str, y_label: str) -> str:
    down = "".join(
        f'<line class="grid" x1="{x(t):.1f}" x2="{x(t):.1f}" y1="{y.start:.1f}" y2="{y.end:.1f}"/>'
        f'<text x="{x(t):.1f}" y="{y.start + 16:.1f}" text-anchor="middle">{number(t)}</text>'
        for t in x.ticks(5)
    )
    across = "".join(
        f'<line class="grid" x1="{x.start:.1f}" x2="{x.end:.1f}" y1="{y(t):.1f}" y2="{y(t):.1f}"/>'
        f'<text x="{x.start - 6:.1f}" y="{y(t) + 4:.1f}" text-anchor="end">{number(t)}</text>'
        for t in y.ticks(5)
    )
    return (
        f'{down}{across}<text class="axis" x="2" y="12">{escape(y_label)}</text>'
        f'<text class="axis" x="{(x.start + x.end) / 2:.1f}" y="{TALL - 6:.0f}" text-anchor="middle">'
        f"{escape(x_label)}</text>"
    )


def _draw(points: Points, x: Axis, y: Axis) -> str:
    places = [(x(float(a)), y(float(b))) for a, b in points.xy]
    # A stroke of no length with round ends: by far the shortest way to write a dot.
    if not points.style:
        path = "".join(f"M{a:.1f} {b:.1f}h0" for a, b in places)
        return f'<path class="dots" stroke="{points.colour}" stroke-width="{points.size}" d="{path}"/>'
    rings = "".join(f'<circle cx="{a:.1f}" cy="{b:.1f}" r="{points.size}"/>' for a, b in places)
    return f'<g class="ring {points.style}"><title>{escape(points.label)}</title>{rings}</g>'


def _legend(sets: Sequence[Points]) -> str:
    """Names at the top right, each with its mark."""
    parts, right = [], WIDTH - RIGHT
    for points in reversed(sets):
        left = right - 6.8 * len(points.label)
        parts.append(f'<text class="end {points.style}" x="{left:.1f}" y="12">{escape(points.label)}</text>')
        parts.append(f'<circle class="ring {points.style}" cx="{left - 8:.1f}" cy="8" r="{points.size}"/>')
        right = left - 24
    return "".join(parts)
