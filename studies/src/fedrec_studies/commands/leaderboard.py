"""`fedrec leaderboard`: trials, runs, data, pages."""

from __future__ import annotations

import dataclasses
import shlex
from collections.abc import Sequence
from pathlib import Path

from fedrec.commands import console
from fedrec.experiment import device_named, settings_text
from fedrec_studies.leaderboard.board_definition import Board, Row, board, cells_of, narrow_board
from fedrec_studies.leaderboard.board_page import write_pages
from fedrec_studies.leaderboard.record import write_records
from fedrec_studies.leaderboard.work import run_rows, run_trials


@dataclasses.dataclass(frozen=True)
class LeaderboardRequest:
    """Which part is run, how, and where it is kept."""

    datasets: Sequence[str]
    rows: Sequence[str]
    seeds: Sequence[int]
    device: str
    jobs: int
    minutes: float | None
    runs: Path
    results: Path
    page: Path
    readme: Path


def leaderboard(wanted: LeaderboardRequest, dry_run: bool, pages_only: bool) -> None:
    """Go on with the leaderboard: what is missing is run, then data and pages are brought up to date."""
    whole = board()
    part = narrow_board(whole, wanted.datasets, wanted.rows, wanted.seeds)
    datasets = wanted.datasets or whole.every_dataset()
    device_named(wanted.device)
    if dry_run:
        _show_commands(part, datasets)
        return
    try:
        if not pages_only:
            run_trials(part, wanted.runs, wanted.results, wanted.device, _say)
            minutes = wanted.minutes or whole.minutes
            run_rows(part, datasets, wanted.runs, wanted.results, wanted.device, wanted.jobs, minutes, _say)
    except KeyboardInterrupt:
        console.err.print("interrupted; the same command continues where it stopped")
        raise
    finally:
        write_records(whole, datasets, wanted.runs, wanted.results)
    write_pages(whole, wanted.results, wanted.page, wanted.readme)
    console.out.print(f"{wanted.page} written, from {wanted.results}")


def _say(line: str) -> None:
    console.err.print(line)


def _first_of(row: Row) -> str:
    """The first trial of a row, where it is not what the method has by itself; `fedrec tune` has no option for that."""
    return f"  # first trial: {settings_text(row.start)}" if row.start else ""


def _show_commands(part: Board, datasets: Sequence[str]) -> None:
    """Trials first; what they will find is not known yet, so runs stand with the methods' own settings."""
    needed = {row.source for row in part.rows}
    for row in (row for row in part.studies if row.label in needed):
        config = part.config(row)
        space = [word for name, text in row.space.items() for word in ("--space", f"{name}={text}")]
        words = ["fedrec", "tune", config.method, *config.flags(), *space, "--trials", str(part.trials)]
        console.out.print(shlex.join(words) + _first_of(row))
    for dataset in datasets:
        for cell in cells_of(part, dataset, {}, Path(), "cpu"):
            if not part.reason_to_skip(cell):
                console.out.print(shlex.join(["fedrec", "run", cell.config.method, *cell.config.flags()]))
