"""Methods x data sets, as a paper's table: the best of every data set is bold, the second underlined."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

from fedrec.data.atomic import atomic_file
from fedrec.data.file_formats import ending_of
from fedrec.data.frames import make_frame
from fedrec.errors import FedrecError
from fedrec.experiment.finished_run import FinishedRun
from fedrec.experiment.folder import require_harmless
from fedrec.experiment.prepare import Part
from fedrec.report.comparison import Comparison, choose_metrics, compare
from fedrec.report.tables import latex_text

ENDINGS = (".md", ".tex", ".html")
Marks = dict[str, tuple[str, str, str, str]]
MARKS: Marks = {
    ".md": ("**", "**", "<u>", "</u>"),
    ".tex": (r"\textbf{", "}", r"\underline{", "}"),
    ".html": ("<b>", "</b>", "<u>", "</u>"),
}


@dataclass(frozen=True, repr=False)
class AcrossData:
    """One comparison for each data set, under one protocol."""

    comparisons: tuple[Comparison, ...]
    metrics: tuple[str, ...]
    pandas: bool = False

    @property
    def columns(self) -> list[tuple[Comparison, str]]:
        return [(comparison, metric) for comparison in self.comparisons for metric in self.metrics]

    @property
    def methods(self) -> list[str]:
        """In the order in which they are first met."""
        return list(dict.fromkeys(row.label for comparison in self.comparisons for row in comparison.rows))

    def value(self, method: str, comparison: Comparison, metric: str) -> float | None:
        """The mean over seeds; None where the method was not run on that data."""
        return next((row.mean(metric) for row in comparison.rows if row.label == method), None)

    @property
    def frame(self) -> Any:
        """A row for every method, a column for every data set and metric."""
        found: dict[str, list[Any]] = {"method": self.methods}
        for comparison, metric in self.columns:
            found[f"{comparison.data} {metric}"] = [self.value(name, comparison, metric) for name in self.methods]
        return make_frame(found, self.pandas)

    def to_markdown(self) -> str:
        rows = self._rows(".md")
        ruled = [rows[0], ["---"] * len(rows[0]), *rows[1:]]
        return "\n".join(f"| {' | '.join(row)} |" for row in ruled) + "\n"

    def to_latex(self) -> str:
        rows = [" & ".join(row) + r" \\" for row in self._rows(".tex")]
        lines = [rf"\begin{{tabular}}{{l{'r' * len(self.columns)}}}", r"\toprule", rows[0], r"\midrule", *rows[1:]]
        return "\n".join([*lines, r"\bottomrule", r"\end{tabular}"]) + "\n"

    def to_html(self) -> str:
        head, *rows = self._rows(".html")
        body = "".join(f"<tr>{''.join(f'<td>{cell}</td>' for cell in row)}</tr>" for row in rows)
        heads = "".join(f"<th>{cell}</th>" for cell in head)
        return f"<table><thead><tr>{heads}</tr></thead><tbody>{body}</tbody></table>\n"

    def save(self, path: str | Path) -> Path:
        """As Markdown, LaTeX or HTML, by the ending."""
        path = Path(path)
        require_harmless(path)
        writers: dict[str, Callable[[], str]] = {".md": self.to_markdown, ".tex": self.to_latex, ".html": self.to_html}
        write = writers[ending_of(path, ENDINGS)]
        with atomic_file(path) as temporary:
            temporary.write_text(write(), encoding="utf-8")
        return path

    def _rows(self, ending: str) -> list[list[str]]:
        escapes: dict[str, Callable[[str], str]] = {".md": str, ".tex": latex_text, ".html": escape}
        plain = escapes[ending]
        # Without the version, which would make the columns too wide; it is in the frame.
        heads = [f"{comparison.data.split('@')[0]} {metric}" for comparison, metric in self.columns]
        ranked = [self._ranks(comparison, metric) for comparison, metric in self.columns]
        placed = list(zip(self.columns, ranked, strict=True))
        lines = [
            [plain(name), *(self._cell(name, *column, ranks, ending) for column, ranks in placed)]
            for name in self.methods
        ]
        return [["method", *map(plain, heads)], *lines]

    def _ranks(self, comparison: Comparison, metric: str) -> list[float]:
        """The best value and the second: equal ones share a place."""
        # A set: rows with equal means share the first or the second place.
        values = {value for name in self.methods if (value := self.value(name, comparison, metric)) is not None}
        return sorted(values, reverse=True)[:2]

    def _cell(self, method: str, comparison: Comparison, metric: str, ranks: Sequence[float], ending: str) -> str:
        value = self.value(method, comparison, metric)
        if value is None:
            # A dash and no zero: the method was not run on that data.
            return "-"
        bold, bold_end, under, under_end = MARKS[ending]
        text = f"{value:.4f}"
        if value == ranks[0]:
            return f"{bold}{text}{bold_end}"
        return f"{under}{text}{under_end}" if value in ranks else text

    def __repr__(self) -> str:
        return self.to_markdown()

    def _repr_html_(self) -> str:
        return self.to_html()


def compare_across(
    runs: Sequence[FinishedRun], metrics: Sequence[str] | None, part: Part, pandas: bool = False
) -> AcrossData:
    """One table of runs on several data sets, each compared with those on the same data alone."""
    # Means under different protocols cannot stand in one table.
    if len({run.protocol for run in runs}) > 1:
        raise FedrecError(f"one table has one protocol, not {', '.join(sorted({run.protocol for run in runs}))}")
    groups: dict[str, list[FinishedRun]] = {}
    for run in runs:
        groups.setdefault(run.data, []).append(run)
    comparisons = tuple(compare(group, part) for group in groups.values())
    # Metrics that some data set lacks would leave holes in the middle of the table.
    common = [name for name in comparisons[0].metrics() if all(name in one.metrics() for one in comparisons)]
    usual = [name for name in choose_metrics(comparisons[0], None) if name in common]
    chosen = usual if metrics is None else choose_metrics(comparisons[0], ",".join(metrics))
    return AcrossData(comparisons, tuple(chosen), pandas)
