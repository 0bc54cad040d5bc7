"""Charts: always well-formed, never empty-handed on odd numbers, and in the right place."""

from __future__ import annotations

import re
from itertools import pairwise
from xml.etree import ElementTree

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedrec.report.charts import Bar, Line, bars, histogram, line_chart
from fedrec.report.charts.scales import axis, number

FLOATS = st.floats(-1e6, 1e6, allow_nan=False)


def words(svg: str) -> list[str]:
    return [text for text in (node.text for node in ElementTree.fromstring(svg).iter("text")) if text]


@given(st.lists(FLOATS, min_size=1, max_size=30), st.booleans(), st.booleans())
def test_any_curve_is_well_formed_and_inside_its_frame(values: list[float], x_log: bool, y_log: bool) -> None:
    line = Line("a<b", np.arange(len(values)) + 1, values, low=values, high=values, marks=[1])
    svg = line_chart([line], title='"<&', x_label="x", y_label="y", x_log=x_log, y_log=y_log)
    root = ElementTree.fromstring(svg)
    assert root.get("aria-label") == root.findtext("title") == '"<&'
    for shape in root.iter("polyline"):
        for pair in (shape.get("points") or "").split():
            x, y = map(float, pair.split(","))
            assert 0 <= x <= 400
            assert 0 <= y <= 260


@given(FLOATS, FLOATS, st.booleans())
def test_an_axis_has_ticks_on_it(low: float, high: float, log: bool) -> None:
    low, high = min(low, high), max(low, high)
    scale = axis(low, high, 0, 100, log)
    assert all(-1e-6 <= scale(tick) <= 100 + 1e-6 for tick in scale.ticks())
    assert len(scale.ticks()) <= 12


def test_points_that_are_not_numbers_are_left_out() -> None:
    svg = line_chart([Line("a", [0, 1, 2], [1.0, float("nan"), 3.0])], title="t", x_label="x", y_label="y")
    assert "nan" not in svg
    assert line_chart([Line("a", [], [])], title="t", x_label="x", y_label="y") == ""


def test_a_higher_value_stands_higher() -> None:
    svg = line_chart([Line("a", [0, 1], [1.0, 2.0])], title="t", x_label="x", y_label="y")
    points = re.search(r'points="([^"]+)"', svg)
    assert points is not None
    (_, low), (_, high) = (map(float, pair.split(",")) for pair in points[1].split())
    assert high < low


def test_labels_of_curves_that_end_together_do_not_overlap() -> None:
    lines = [Line(f"m{i}", [0, 1], [0.0, 1.0]) for i in range(6)]
    root = ElementTree.fromstring(line_chart(lines, title="t", x_label="x", y_label="y"))
    heights = sorted(float(t.get("y", 0)) for t in root.iter("text") if "end" in (t.get("class") or ""))
    assert all(b - a >= 12 for a, b in pairwise(heights))


def test_bars_are_as_long_as_their_values() -> None:
    svg = bars([Bar("big", 0.2, "0.2", 0.01), Bar("small", 0.1, "0.1")], title="t")
    big, small = (float(rect.get("width", 0)) for rect in ElementTree.fromstring(svg).iter("rect"))
    assert big == pytest.approx(2 * small, rel=0.01)
    assert words(svg) == ["big", "0.2", "small", "0.1"]


def test_a_histogram_shows_both_distributions_by_name() -> None:
    svg = histogram(
        [1, 2, 4, 8],
        [10.0, 20.0, 70.0],
        title="t",
        x_label="x",
        y_label="y",
        labels=["1", "2", "4"],
        outline=[50.0, 30.0, 20.0],
        names=("mine", "other"),
    )
    assert {"mine", "other"} <= set(words(svg))
    assert "1 to below 2: 10.0 %" in svg


@pytest.mark.parametrize(("value", "text"), [(0.05, "0.05"), (1500, "1,500"), (20000, "20k"), (3e6, "3M"), (0, "0")])
def test_ticks_are_short(value: float, text: str) -> None:
    assert number(value) == text
