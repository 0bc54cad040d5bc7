"""Take the finished runs of a study into what comes with the library.

python -m fedrec_studies.reproduce.collect PAPER FOLDER
"""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from fedrec.errors import FedrecError
from fedrec_studies.reproduce.cells import Cell, plan_cells
from fedrec_studies.reproduce.measured import (
    MeasuredRun,
    collect_finished,
    merge_runs,
    read_shipped,
    still_asked_for,
    write,
)
from fedrec_studies.reproduce.run_figures import figure_name
from fedrec_studies.reproduce.table_definition import Table, tables

ABOUT = "Runs of the tables of `fedrec reproduce`, one a line; `command` and `device` say how each was made."
# kept of every run, so that rows of different tables can be compared by a standard metric
ALWAYS = ("recall@10", "ndcg@10")


def collect_runs(paper: str, folder: Path, kept: Sequence[MeasuredRun]) -> list[MeasuredRun]:
    """Merge the shipped runs with those of a folder, without runs that no table asks for any more."""
    known = tables(paper)
    planned = [(table.name, cell) for table in known.values() for cell in plan_cells(table, folder, "cpu", "8G")]
    runs = merge_runs(match_runs(kept, planned), kept, match_runs(collect_finished(planned), planned))
    return trim_figures(still_asked_for(runs, planned), known.values())


def match_runs(runs: Iterable[MeasuredRun], planned: Iterable[tuple[str, Cell]]) -> list[MeasuredRun]:
    """Give a run to every table and row that ask for its command, whatever the order of the options."""
    by_command = {_options(run.command): run for run in runs}
    asked = ((table, cell, by_command.get(_options(cell.command()))) for table, cell in planned)
    return [
        replace(
            run,
            table=table,
            row=cell.row,
            dataset=cell.dataset,
            protocol=cell.protocol,
            seed=cell.config.seed,
            command=cell.command(),
        )
        for table, cell, run in asked
        if run is not None
    ]


def _options(command: str) -> tuple[str, ...]:
    return tuple(sorted(shlex.split(command)))


def trim_figures(runs: Iterable[MeasuredRun], known: Iterable[Table]) -> list[MeasuredRun]:
    """Drop the figures that no table shows, except the usual ones."""
    shown = {
        (table.name, row.label): {*ALWAYS, *(figure_name(m, row.group) for m in (*table.metrics, *table.measured))}
        for table in known
        for row in table.rows
    }
    return [
        replace(run, figures={name: value for name, value in run.figures.items() if name in shown[run.table, run.row]})
        for run in runs
    ]


def main(paper: str, folder: Path) -> None:
    place = Path(__file__).parent / "measured" / f"{paper}.json"
    runs = collect_runs(paper, folder, read_shipped(paper))
    write(place, ABOUT, runs)
    print(f"{len(runs)} runs in {place}")


if __name__ == "__main__":
    try:
        main(sys.argv[1], Path(sys.argv[2]))
    except FedrecError as error:
        sys.exit(str(error))
