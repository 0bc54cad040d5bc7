"""A table as it came out, beside what is printed: Markdown for people, JSON for programs."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from fedrec.data import atomic_file
from fedrec.report import count_in_words, markdown_lines
from fedrec_studies.reproduce.cells import Cell
from fedrec_studies.reproduce.run_figures import figure_name, figures_of
from fedrec_studies.reproduce.table_definition import Row, Table


def write_page(table: Table, planned: Sequence[Cell], failed: Mapping[str, str], folder: Path) -> Path:
    """`table.md` and `table.json` below the table's folder; what is missing is left open."""
    path = folder / table.name / "table.md"
    for file, text in (
        (path, "\n".join(_lines(table, planned, failed)) + "\n"),
        (path.with_suffix(".json"), json.dumps(_records(table, planned), indent=2) + "\n"),
    ):
        file.parent.mkdir(parents=True, exist_ok=True)
        with atomic_file(file) as temporary:
            temporary.write_text(text, encoding="utf-8")
    return path


def _lines(table: Table, planned: Sequence[Cell], failed: Mapping[str, str]) -> Iterable[str]:
    yield f"# {table.title}"
    yield ""
    for note in table.notes:
        yield f"- {note}"
    for protocol in table.protocols:
        for dataset in table.datasets:
            yield from ("", f"## {dataset}, protocol `{protocol}`", "")
            here = [cell for cell in planned if (cell.protocol, cell.dataset) == (protocol, dataset)]
            yield from (*_grid(table, here, protocol), *_blocks(table, here, protocol))
    if failed:
        yield from ("", "Failed:", *(f"- {name}: {error}" for name, error in failed.items()))


def _grid(table: Table, planned: Sequence[Cell], protocol: str) -> Iterable[str]:
    heads = [
        part
        for m in table.metrics_under(protocol)
        for part in ([m, "printed", "difference"] if table.has_print(protocol) else [m])
    ]
    lines = [
        [row.label, *_figures(table, row, mine, protocol)]
        for row in table.rows
        if (mine := [cell for cell in planned if cell.row == row.label])
    ]
    yield from markdown_lines(["method", *heads, "seeds", "s"], lines)


def _blocks(table: Table, planned: Sequence[Cell], protocol: str) -> Iterable[str]:
    """Where clients are of several kinds: what was tested of each, and how it did."""
    lines = []
    for row in table.rows:
        done = [summary for cell in planned if cell.row == row.label and (summary := cell.summary()) is not None]
        for same in zip(*(summary.get("blocks", ()) for summary in done), strict=True):
            tested = f"{same[0]['users_tested']} of {same[0]['users']}"
            values = [
                _spread([block["test"][m] for block in same if m in block["test"]])
                for m in table.metrics_under(protocol)
            ]
            lines.append([row.label, same[0]["name"], tested, *values])
    if lines:
        heads = ["method", "block", "users tested", *table.metrics_under(protocol)]
        yield from ("", "Block by block:", "", *markdown_lines(heads, lines))


def _figures(table: Table, row: Row, mine: Sequence[Cell], protocol: str) -> Iterable[str]:
    ran = [(cell, summary) for cell in mine if (summary := cell.summary()) is not None]
    done, found = [summary for _, summary in ran], [figures_of(summary, cell.folder) for cell, summary in ran]
    printed = row.printed.get(mine[0].dataset, ()) if protocol == table.published else ()
    for index, metric in enumerate(table.metrics_under(protocol)):
        name = figure_name(metric, row.group)
        values = [figures[name] for figures in found if name in figures]
        yield _spread(values)
        if table.has_print(protocol):
            print = printed[index] if index < len(printed) else None
            yield "-" if print is None else f"{print:.4f}"
            yield "-" if print is None or not values else f"{mean(values) - print:+.4f}"
    yield count_in_words(done)
    yield f"{mean(summary['seconds']['total'] for summary in done):.0f}" if done else "-"


def _spread(values: Sequence[float]) -> str:
    if not values:
        return "-"
    return f"{mean(values):.4f}" + (f" ± {stdev(values):.4f}" if len(values) > 1 else "")


def _records(table: Table, planned: Sequence[Cell]) -> list[dict[str, Any]]:
    rows = {row.label: row for row in table.rows}
    found = []
    for cell in planned:
        summary = cell.summary()
        printed = rows[cell.row].printed.get(cell.dataset, ()) if cell.protocol == table.published else ()
        found.append(
            {
                "row": cell.row,
                "dataset": cell.dataset,
                "protocol": cell.protocol,
                "seed": cell.config.seed,
                "printed": {m: value for m, value in zip(table.metrics, printed, strict=False) if value is not None},
                "config": cell.config.to_dict(),
                "test": None if summary is None else summary["test"],
                "best_round": None if summary is None else summary["best_round"],
                "diverged": None if summary is None else summary.get("diverged", ""),
            }
        )
    return found
