"""`fedrec reproduce`: plan, run, write."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path

from fedrec.commands import console
from fedrec.data import require_unlinked
from fedrec_studies.reproduce.causes import read_findings
from fedrec_studies.reproduce.cells import Cell, count_words, plan_cells, require_runnable, run_cells
from fedrec_studies.reproduce.coverage import CellCoverage, coverage
from fedrec_studies.reproduce.coverage_page import (
    NOT_RUN,
    TOO_LONG,
    WAITING,
    by_table,
    missing_data,
    not_run,
    summary_line,
    too_long,
    turn,
    write_coverage,
)
from fedrec_studies.reproduce.estimate import Clock, Estimate, hours
from fedrec_studies.reproduce.measured import collect_finished, merge_runs, read_all_shipped, read_shipped
from fedrec_studies.reproduce.overview_page import judge_papers, overview_table, write_overview
from fedrec_studies.reproduce.printed import read_print
from fedrec_studies.reproduce.studies import without_print, write_study
from fedrec_studies.reproduce.table_definition import Row, Table, names, narrow_tables, papers, select_tables, tables
from fedrec_studies.reproduce.table_page import write_page
from fedrec_studies.reproduce.verdicts import judge


@dataclasses.dataclass(frozen=True)
class ReproduceRequest:
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


def reproduce(target: str, wanted: ReproduceRequest, out: Path | None, dry_run: bool) -> bool:
    """Run the tables of `target`; whether every run succeeded."""
    paper, found = select_tables(target)
    folder = out or _folder(paper, wanted.quick)
    parts = narrow_tables(found, wanted.datasets, wanted.protocols, wanted.rows, wanted.seeds, wanted.quick)
    planned = [(table, plan_cells(table, folder, wanted.device, wanted.memory)) for table in parts]
    for _, runs in planned:
        for cell in runs:
            require_unlinked(cell.folder, folder)
        require_runnable(runs, here=not dry_run)
    if dry_run:
        _show_plan(paper, planned)
        return True
    whole = [
        cell for table in tables(paper).values() for cell in plan_cells(table, folder, wanted.device, wanted.memory)
    ]
    others = [] if wanted.quick else whole  # quick runs are kept apart
    # a list, so that one failure does not stop the others
    succeeded = [_run_table(table, runs, wanted, folder, others) for table, runs in planned]
    return all(succeeded)


def show_overview(out: Path | None) -> None:
    """The verdicts on all papers with printed tables, by the runs that come with fedrec."""
    judged = judge_papers()
    header, *rows = overview_table(judged)
    console.table(header, rows)
    for path in write_overview(judged, out or Path("runs") / "reproduce"):
        console.out.print(f"{path} written")


def _folder(paper: str, quick: bool = False) -> Path:
    return Path("runs") / "reproduce" / (paper + ("-quick" if quick else ""))


def show_coverage(target: str, device: str, out: Path | None) -> None:
    """What a paper prints against what was measured: by runs that come with fedrec, and by those in the folder."""
    paper, found = select_tables(target)
    folder = out or _folder(paper)
    here = collect_finished(
        (table.name, cell) for table in tables(paper).values() for cell in plan_cells(table, folder, device, "8G")
    )
    runs = merge_runs(read_shipped(paper), here)
    reached = coverage(paper, runs, device, read_all_shipped())
    if "/" in target:
        mine = {cell for table in found for row in table.rows for same in row.cells.values() for cell in same}
        reached = [one for one in reached if one.cell in mine]
    if not reached:  # a study of our own methods, or a figure
        console.out.print(f"{write_study(names(paper).title or paper, found, runs, folder)} written")
        return
    known = read_findings(paper)
    judged = judge(reached, known)
    header, *rows = turn(by_table(judged), "printed table")
    console.table(header, rows)
    _show_missing(reached)
    if endless := too_long(reached):
        console.table([*WAITING, "why"], endless, title=TOO_LONG)
    if waiting := not_run(reached):
        console.table(WAITING, waiting, title=NOT_RUN)
    console.out.print(summary_line(judged))
    paths = write_coverage(names(paper).title, reached, known, folder, [*names(paper).words.values()])
    if drawn := without_print(found):
        paths.append(write_study(f"{names(paper).title}: what has no printed figures", drawn, runs, folder))
    for path in paths:
        console.out.print(f"{path} written")


def _show_missing(reached: Sequence[CellCoverage], title: str = "Data that is not available") -> None:
    if data := missing_data(reached):
        console.table(["data", "cells", "why, and where to get it"], data, title=title)
    for table, why in sorted({(one.cell.table, one.why) for one in reached if one.state == "elsewhere"}):
        console.out.print(f"{table}: {why}")


def _run_table(
    table: Table, runs: Sequence[Cell], wanted: ReproduceRequest, folder: Path, others: Sequence[Cell]
) -> bool:
    console.out.print(f"{table.name}: {table.title}", style="bold")
    try:
        failed = run_cells(runs, wanted.jobs, lambda line: console.err.print(line), others, wanted.drop_models)
    except KeyboardInterrupt:
        write_page(table, runs, {}, folder)
        console.err.print("interrupted; the same command continues where it stopped")
        raise
    path = write_page(table, runs, failed, folder)
    console.out.print(path.read_text(encoding="utf-8"))
    console.out.print(f"{path} written")
    return not failed


def _show_plan(paper: str, planned: Sequence[tuple[Table, Sequence[Cell]]]) -> None:
    """The runs of every table by row, with the time that they may take, then what cannot be run at all."""
    clock, every = Clock(read_all_shipped()), list[Estimate | None]()
    device = next((cell.config.device for _, mine in planned for cell in mine), "")
    for table, mine in planned:
        times = [clock.estimate(cell) for cell in mine]
        every += times
        console.out.print(f"{table.name}: {table.title}", style="bold")
        console.out.print(f"{count_words('run', len(mine))}, {_time_words(times, device)}")
        for row in table.rows:
            of_row = [cell for cell in mine if cell.row == row.label]
            if of_row:
                printed = count_words("printed cell", _count_printed(table, row))
                console.out.print(f"  {row.label}: {count_words('run', len(of_row))}, {printed}")
            for cell in of_row:
                console.out.print(f"    {cell.command()}")
        for command in table.drawn:
            console.out.print(f"  figure: {command}")
    console.out.print(f"all: {count_words('run', len(every))} in sequence, {_time_words(every, device)}")
    if read_print(paper):
        _show_missing(coverage(paper, read_shipped(paper)), "Data that is not available, for any table of the paper")


def _count_printed(table: Table, row: Row) -> int:
    """Count the printed cells that the runs of a row stand beside."""
    shown = table.published in table.protocols
    return sum(len(same) for (data, _), same in row.cells.items() if shown and data in table.datasets)


def _time_words(times: Sequence[Estimate | None], device: str) -> str:
    """By the device that times were measured on; where that is not the one asked for, nothing else is known."""
    known = [time for time in times if time is not None]
    if not known:
        return "time unknown"
    words = []
    for on in sorted({time.device for time in known}, key=lambda name: name != device):
        some = [time.seconds for time in known if time.device == on]
        other = "" if on == device else f" ({count_words('run', len(some))} that nobody has timed on {device})"
        words.append(f"{hours(sum(some))} on {on}{other}")
    rest = len(times) - len(known)
    return f"about {' and '.join(words)}" + (f", {rest} unknown" if rest else "")
