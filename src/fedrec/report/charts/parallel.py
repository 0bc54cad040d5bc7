"""Parallel coordinates: every trial a line through one axis per parameter, the better the stronger."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

import numpy as np

from fedrec.report.charts.frame import short, svg
from fedrec.report.charts.scales import Axis, axis, number
from fedrec.schema import is_number

WIDE, TALL = 400.0, 210.0  # the width is that of all charts
SIDE, TOP, FOOT = 40.0, 30.0, 14.0
STRONG, FAINT = 0.95, 0.16  # opacity of the best and of the worst line
LOG_FROM = 50.0  # ratio of the largest to the smallest value from which an axis is logarithmic


@dataclass(frozen=True)
class Dimension:
    """An axis and the value of every line on it: numbers, or words in the order in which they come."""

    name: str
    values: Sequence[Any]


def parallel(dimensions: Sequence[Dimension], *, title: str) -> str:
    """Draw lines through all dimensions. The last one is what counts: lines that are high there are drawn strongest."""
    places = np.linspace(SIDE, WIDE - SIDE, len(dimensions))
    heights = [_heights(one) for one in dimensions]
    goal = np.array(dimensions[-1].values, float)
    # The best last, so that nothing covers it.
    order = np.argsort(goal, kind="stable")
    parts = [
        _line([height[row] for height in heights], places, _strength(order, row), row == order[-1]) for row in order
    ]
    parts += [_axis(one, float(place)) for one, place in zip(dimensions, places, strict=True)]
    return svg(title, "".join(parts), height=TALL)


def _scale(values: Sequence[Any]) -> Axis:
    low, high = float(min(values)), float(max(values))
    return axis(low, high, TALL - FOOT, TOP, log=low > 0 and high / low >= LOG_FROM)


def _label_values(values: Sequence[Any]) -> list[str]:
    return list(dict.fromkeys(str(value) for value in values))


def _is_numeric(one: Dimension) -> bool:
    return all(map(is_number, one.values))


def _heights(one: Dimension) -> list[float]:
    if _is_numeric(one):
        scale = _scale(one.values)
        return [scale(float(value)) for value in one.values]
    words = _label_values(one.values)
    scale = axis(0, max(1, len(words) - 1), TALL - FOOT, TOP)
    return [scale(words.index(str(value))) for value in one.values]


def _strength(order: np.ndarray[Any, Any], row: int) -> float:
    share = int(np.flatnonzero(order == row)[0]) / max(1, len(order) - 1)
    # Cubed: the few best stand out among hundreds.
    return FAINT + (STRONG - FAINT) * share**3


def _line(heights: Sequence[float], places: np.ndarray[Any, Any], strength: float, best: bool) -> str:
    points = " ".join(f"{place:.1f},{height:.1f}" for place, height in zip(places, heights, strict=True))
    style = "s1" if best else "s0 through"
    return f'<polyline class="line {style}" opacity="{strength:.2f}" points="{points}"/>'


def _axis(one: Dimension, place: float) -> str:
    line = f'<line class="base" x1="{place:.1f}" x2="{place:.1f}" y1="{TOP}" y2="{TALL - FOOT}"/>'
    name = f'<text class="axis" x="{place:.1f}" y="12" text-anchor="middle">{escape(short(one.name, 12))}</text>'
    if _is_numeric(one):
        scale = _scale(one.values)
        ends = [(scale.start, number(scale.low)), (scale.end, number(scale.high))]
    else:
        words = _label_values(one.values)
        scale = axis(0, max(1, len(words) - 1), TALL - FOOT, TOP)
        ends = [(scale(place), short(word, 10)) for place, word in enumerate(words)]
    # Beside the axis and not on it, where the lines run.
    marks = "".join(
        f'<text class="tickname" x="{place + 4:.1f}" y="{height + 4:.1f}">{escape(text)}</text>'
        for height, text in ends
    )
    return line + name + marks
