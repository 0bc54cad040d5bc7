"""Charts as SVG text: pure functions of numbers. Colours and fonts come from the page's style sheet."""

from fedrec.report.charts.bar_charts import Bar, bars, histogram
from fedrec.report.charts.frame import style_of
from fedrec.report.charts.line_charts import Line, line_chart

__all__ = ["Bar", "Line", "bars", "histogram", "line_chart", "style_of"]
