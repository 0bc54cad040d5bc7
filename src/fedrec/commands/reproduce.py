"""`fedrec reproduce`: plan, run, write."""

from __future__ import annotations

import dataclasses
import shlex
from collections.abc import Sequence
from pathlib import Path

from fedrec import console
from fedrec.data.atomic import require_unlinked
from fedrec.reproduce.cells import Cell, cells, require_runnable, run_cells
from fedrec.reproduce.definition import Table, chosen, narrowed, papers, tables
from fedrec.reproduce.page import write_page


@dataclasses.dataclass(frozen=True)
class Wanted:
    """Which part of a paper is run, and how."""

    datasets: Sequence[str] = ()
    protocols: Sequence[str] = ()
    rows: Sequence[str] = ()
    seeds: Sequence[int] = ()
    quick: bool = False
    jobs: int = 1
    drop_models: bool = False
    device: str = "cpu"
    memory: str = "8G"


def show_papers() -> None:
    """All tables that can be run."""
    rows = [
        [f"{paper}/{table.name}", len(table.rows), ", ".join(table.datasets), ", ".join(table.protocols), table.title]
        for paper in papers()
        for table in tables(paper).values()
    ]
    console.table(["table", "rows", "datasets", "protocols", "what"], rows)


def reproduce(target: str, wanted: Wanted, out: Path | None, dry_run: bool) -> bool:
    """Run the tables of `target`; whether every run succeeded."""
    paper, found = chosen(target)
    folder = out or Path("runs") / "reproduce" / (paper + ("-quick" if wanted.quick else ""))
    parts = narrowed(found, wanted.datasets, wanted.protocols, wanted.rows, wanted.seeds, wanted.quick)
    planned = [(table, cells(table, folder, wanted.device, wanted.memory)) for table in parts]
    for _, runs in planned:
        for cell in runs:
            require_unlinked(cell.folder, folder)
        require_runnable(runs)
    if dry_run:
        for _, runs in planned:
            _show_commands(runs)
        return True
    whole = [cell for table in tables(paper).values() for cell in cells(table, folder, wanted.device, wanted.memory)]
    others = [] if wanted.quick else whole  # quick runs are kept apart
    # a list, so that one failure does not stop the others
    succeeded = [_run_table(table, runs, wanted, folder, others) for table, runs in planned]
    return all(succeeded)


def _run_table(table: Table, runs: Sequence[Cell], wanted: Wanted, folder: Path, others: Sequence[Cell]) -> bool:
    console.out.print(f"{table.name}: {table.title}", style="bold")
    try:
        failed = run_cells(runs, wanted.jobs, lambda line: console.err.print(line), others, wanted.drop_models)
    except KeyboardInterrupt:
        write_page(table, runs, {}, folder)
        console.err.print("interrupted; the same command goes on where it stopped")
        raise
    path = write_page(table, runs, failed, folder)
    console.out.print(path.read_text(encoding="utf-8"))
    console.out.print(f"{path} written")
    return not failed


def _show_commands(runs: Sequence[Cell]) -> None:
    for cell in runs:
        console.out.print(shlex.join(["fedrec", "run", cell.config.method, *cell.config.flags()]))
