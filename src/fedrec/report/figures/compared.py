"""A comparison as Python has it: frames, LaTeX, figures, and itself as text and as HTML."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedrec.data.atomic import atomic_file
from fedrec.data.file_formats import ending_of
from fedrec.data.frames import make_frame
from fedrec.experiment.finished_run import FinishedRun, find_runs, take_result
from fedrec.experiment.folder import require_harmless
from fedrec.experiment.result import Result, html_table
from fedrec.report.comparison import Comparison, choose_metrics, compare, part_shown
from fedrec.report.figures import figure_class
from fedrec.report.figures.write import write_figure
from fedrec.report.pages.report import write_report
from fedrec.report.significance import Significance, significance
from fedrec.report.tables import ENDINGS, caption, cells, format_of, render


@dataclass(frozen=True, repr=False)
class Compared:
    """Runs side by side, seeds of one configuration in one row."""

    runs: tuple[FinishedRun, ...]
    comparison: Comparison
    shown: tuple[str, ...]
    tests: Significance | None
    pandas: bool = False
    note: str = ""
    """What is printed below the table, such as how to get a reference that is not in it."""

    @property
    def metrics(self) -> Any:
        """A frame with a row for every configuration: seeds, and mean and deviation of the metrics."""
        rows = self.comparison.rows
        found: dict[str, list[Any]] = {"method": [row.label for row in rows], "seeds": [row.seeds for row in rows]}
        for name in self.shown:
            found |= {name: [row.mean(name) for row in rows], f"{name}_std": [row.std(name) for row in rows]}
        return make_frame(found, self.pandas)

    @property
    def significance(self) -> Any:
        """A frame with a row for every pair that was tested; None where nothing was."""
        if self.tests is None:
            return None
        pairs = [pair.to_dict() | {"significant": pair.significant} for pair in self.tests.pairs]
        return make_frame({name: [pair[name] for pair in pairs] for name in pairs[0]}, self.pandas)

    def to_markdown(self) -> str:
        return self._text("markdown")

    def to_latex(self) -> str:
        return self._text("latex")

    def save(self, path: str | Path) -> Path:
        """As Markdown, CSV, LaTeX or JSON by the ending, or as the page of `fedrec report` (.html)."""
        path = Path(path)
        require_harmless(path)
        if ending_of(path, (*ENDINGS, ".html")) == ".html":
            # A page shows all rows, references among them, as the report command does.
            return write_report([run for row in self.comparison.rows for run in row.runs], path)
        with atomic_file(path) as temporary:
            temporary.write_text(self._text(format_of(path, None)), encoding="utf-8")
        return path

    def figure(self, name: str, path: str | Path, width: float | None = None, **settings: Any) -> Path:
        """A figure of `fedrec report --figure list` as HTML, SVG, PDF or PNG; `width` in millimetres."""
        require_harmless(Path(path))
        # Settings as text, because figures read them as the command line gives them.
        text = {key: str(value) for key, value in settings.items()}
        return write_figure(figure_class(name), text, self.runs, Path(path), width)

    def _text(self, kind: str) -> str:
        return render(self.comparison, self.shown, kind, self.tests)

    def __repr__(self) -> str:
        return self.to_markdown() + (f"\n{self.note}\n" if self.note else "")

    def _repr_html_(self) -> str:
        header, *rows = cells(self.comparison, self.shown, self.tests)
        columns = {name: [row[place] for row in rows] for place, name in enumerate(header)}
        return html_table(caption(self.comparison, self.tests), columns, self.note)


def find_finished(given: Any) -> list[FinishedRun]:
    """Results, run folders and folders of run folders, or lists of them, as finished runs."""
    if isinstance(given, Result):
        return [take_result(given)]
    if isinstance(given, str | Path):
        return find_runs([Path(given)])
    return [run for one in given for run in find_finished(one)]


def compare_runs(
    runs: Sequence[FinishedRun],
    references: Sequence[FinishedRun],
    metrics: Sequence[str] | None,
    on: str | None,
    note: str = "",
) -> Compared:
    """Compare the runs, with the references beside them."""
    table = compare([*runs, *references], part_shown(runs, on))
    shown = choose_metrics(table, None if metrics is None else ",".join(metrics))
    # The kind of frame that the results came with, so that nobody who uses one library needs the other.
    pandas = any(run.result is not None and run.result.pandas for run in runs)
    # Tests follow the metrics that were asked for; without a wish they choose their own.
    tests = significance(table, metrics=shown if metrics else ())
    return Compared(tuple(runs), table, tuple(shown), tests, pandas, note)
