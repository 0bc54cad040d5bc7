"""What was measured of tables that nothing is printed of: our own studies, figures and causes of a paper."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import mean, stdev

from fedrec.data import atomic_file
from fedrec.report import markdown_lines
from fedrec_studies.reproduce.measured import MeasuredRun
from fedrec_studies.reproduce.run_figures import figure_name
from fedrec_studies.reproduce.table_definition import Row, Table


def write_study(title: str, known: Sequence[Table], runs: Sequence[MeasuredRun], folder: Path) -> Path:
    """`measured.md`: a table for each dataset of each study, of the rows that have runs."""
    path = folder / "measured.md"
    path.parent.mkdir(parents=True, exist_ok=True)
    with atomic_file(path) as temporary:
        temporary.write_text("\n".join(study_lines(title, known, runs)) + "\n", encoding="utf-8")
    return path


def without_print(known: Sequence[Table]) -> list[Table]:
    """Select the tables without printed figures: a paper's curves, and runs for a cause."""
    return [table for table in known if not any(row.print for row in table.rows)]


def study_lines(title: str, known: Sequence[Table], runs: Sequence[MeasuredRun]) -> Iterator[str]:
    yield f"# {title}"
    for table in known:
        yield from ("", f"## {table.name}", "", f"{table.title}.", "", *(f"- {note}" for note in table.notes))
        for dataset in table.datasets:
            yield from _grid(table, dataset, [run for run in runs if (run.table, run.dataset) == (table.name, dataset)])


def _grid(table: Table, dataset: str, runs: Sequence[MeasuredRun]) -> Iterator[str]:
    rows = [row for row in table.rows if dataset in (row.datasets or [dataset])]
    done = [(row, mine) for row in rows if (mine := [run for run in runs if run.row == row.label])]
    yield from ("", f"**{dataset}**: {len(done)} of {len(rows)} rows measured.", "")
    if done:
        heads = ["row", *table.metrics, "round", "seeds", "device"]
        yield from markdown_lines(heads, ([row.label, *_cells(table, row, mine)] for row, mine in done))


def _cells(table: Table, row: Row, mine: Sequence[MeasuredRun]) -> Iterator[str]:
    for metric in table.metrics:
        name = figure_name(metric, row.group)
        values = [run.figures[name] for run in mine if name in run.figures]
        spread = f" ± {stdev(values):.4f}" if len(values) > 1 else ""
        yield f"{mean(values):.4f}{spread}" if values else "-"
    ended = sum(bool(run.diverged) for run in mine)
    yield f"{mean(run.best_round + 1 for run in mine):.0f}" + (
        f", {ended} of {len(mine)} diverged later" if ended else ""
    )
    yield str(len(mine))
    yield ", ".join(sorted({run.device for run in mine}))
