"""Comparisons, tables, charts and pages of finished runs.

What other packages may use of it is named here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fedrec.plugins import lazily

if TYPE_CHECKING:
    from fedrec.report.charts.bar_charts import Bar, bars
    from fedrec.report.charts.front import Offer, front, front_chart
    from fedrec.report.charts.scatter import Points, scatter
    from fedrec.report.comparison import Row, count_in_words
    from fedrec.report.figures.figure import Drawing, Panel
    from fedrec.report.figures.write import as_svg
    from fedrec.report.markdown import markdown_lines
    from fedrec.report.significance import columns_by_row
else:
    __getattr__, __dir__ = lazily(
        __name__,
        {
            "fedrec.report.charts.bar_charts": ["Bar", "bars"],
            "fedrec.report.charts.front": ["Offer", "front", "front_chart"],
            "fedrec.report.charts.scatter": ["Points", "scatter"],
            "fedrec.report.comparison": ["Row", "count_in_words"],
            "fedrec.report.figures.figure": ["Drawing", "Panel"],
            "fedrec.report.figures.write": ["as_svg"],
            "fedrec.report.markdown": ["markdown_lines"],
            "fedrec.report.significance": ["columns_by_row"],
        },
        {"counted": "count_in_words"},
    )

__all__ = [
    "Bar",
    "Drawing",
    "Offer",
    "Panel",
    "Points",
    "Row",
    "as_svg",
    "bars",
    "columns_by_row",
    "count_in_words",
    "front",
    "front_chart",
    "markdown_lines",
    "scatter",
]
