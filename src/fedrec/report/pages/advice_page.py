"""An advice as one self-contained HTML page: what was tried side by side, and what to take."""

from __future__ import annotations

from pathlib import Path

from markupsafe import Markup

from fedrec.experiment.advise import Advice
from fedrec.html import write_page
from fedrec.report import charts
from fedrec.report.pages import PAGES

MOST = 6  # curves that can be told apart


def write_advice(advice: Advice, path: Path) -> Path:
    """The page looks like the run reports."""
    title, chart = f"Advice on {advice.data}", Markup(_curves(advice))
    return write_page(path, "advice.html", PAGES, title=title, advice=advice, chart=chart)


def _curves(advice: Advice) -> str:
    """How the best attempts rose while they were trained."""
    drawn = []
    for line in advice.lines[:MOST]:
        points = [(float(at), value) for at, value in line.attempt.curve.items()]
        if points:
            seconds, values = zip(*points, strict=True)
            drawn.append(charts.Line(line.name, seconds, values))
    if not drawn:
        return ""
    title = f"{advice.metric} on validation items, the best so far"
    return charts.line_chart(drawn, title=title, x_label="seconds", y_label=advice.metric, y_zero=True)
