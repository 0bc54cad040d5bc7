"""The trials and runs of the leaderboard. Each has a folder of its own: what has ended is not repeated."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path

from fedrec import __version__
from fedrec.data import atomic_file
from fedrec.errors import FedrecError
from fedrec.experiment import Budget, Listener, RunFolder, method_of, search
from fedrec.schema import json_line
from fedrec_studies.leaderboard.board_definition import Board, beginning, best_trials, cells_of, trials_found
from fedrec_studies.reproduce.cells import Cell, require_runnable, run_cells
from fedrec_studies.reproduce.estimate import hours

ABOUT, WHY = "about.json", "why.json"  # of a run: the code that made it; why it did not end
Told = Callable[[str], None]


def run_trials(whole: Board, runs: Path, results: Path, device: str, told: Told) -> None:
    """Every tuned row gets the trials that it lacks: those here and those with the results are its beginning."""
    have, needed = trials_found(whole, runs, results), {row.source for row in whole.rows}
    rows = [row for row in whole.studies if row.label in needed]
    studies = [whole.study(row, runs, device) for row in rows]
    for study in studies:
        if study.about.exists():
            study.begin()  # refuses trials of another search, a finished one too
    begun = [beginning(study, results, row.label) for study, row in zip(studies, rows, strict=True)]
    for row, study, kept in zip(rows, studies, begun, strict=True):
        if len(have[row.label]) >= whole.trials:
            continue
        told(f"{row.label}: trials {len(have[row.label]) + 1} to {whole.trials} on {whole.tuned_on}")
        done = search(
            study,
            method_of(study.config),
            Budget(whole.trials),
            lambda trial, best: None,
            lambda number: Listener(),
            row.start,
            kept,
        )
        told(f"{row.label}: {len(done)} trials, {sum(trial.seconds for trial in done):.0f} s")


def run_rows(
    whole: Board, datasets: Sequence[str], runs: Path, results: Path, device: str, jobs: int, minutes: float, told: Told
) -> None:
    """Every cell that is not there. A row that is to be tuned waits for its trials."""
    best = best_trials(whole, trials_found(whole, runs, results))
    waiting = whole.waiting(best)
    for label in sorted(waiting):
        told(f"{label}: waiting for its trials")
    for dataset in datasets:
        every = cells_of(whole, dataset, best, runs, device)
        planned = [cell for cell in every if cell.row not in waiting and not whole.reason_to_skip(cell)]
        planned = [cell for cell in planned if _may_end(cell, minutes)]
        _require_current(planned)
        require_runnable(planned)
        for cell in planned:
            _note(cell.folder / ABOUT, {"version": __version__, "commit": commit()}, keep=True)
        failed = run_cells(planned, jobs, told, drop_models=True, minutes=minutes)
        for cell in planned:
            if cell.name() in failed:
                _note(
                    cell.folder / WHY,
                    {"why": failed[cell.name()] + _how_far(cell), "minutes": f"{minutes:g}", "command": cell.command()},
                )


def has_ended(cell: Cell) -> bool:
    """Whether a run has ended with the settings that its row has now: trials may have found others since."""
    return cell.summary() is not None and cell.current()


def _require_current(planned: Sequence[Cell]) -> None:
    earlier = [cell for cell in planned if RunFolder(cell.folder).config.is_file() and not cell.current()]
    if earlier:
        more = f", and so are {len(earlier) - 1} others" if len(earlier) > 1 else ""
        raise FedrecError(
            f"{earlier[0].folder} is a run with settings that {earlier[0].row} had before{more}; "
            "move such runs away to run their cells again"
        )


def why_not(cell: Cell) -> str:
    """Why a run did not end; empty where it did, or was not tried."""
    return _read_stop_note(cell).get("why", "")


def _read_stop_note(cell: Cell) -> dict[str, str]:
    """Read why a run with the present settings of its row did not end."""
    said = _read_note(cell.folder / WHY)
    return said if said.get("command", cell.command()) == cell.command() else {}


def read_origin(cell: Cell) -> dict[str, str]:
    """Read the version and commit of the code that made a run."""
    return _read_note(cell.folder / ABOUT)


def _how_far(cell: Cell) -> str:
    """Of a run that was stopped: the round it had come to, and the time that all of them would take."""
    done = RunFolder(cell.folder).records()
    if cell.summary() is not None or not done:
        return ""
    rounds = method_of(cell.config).rounds
    each = sum(record["seconds"] for record in done) / len(done)
    return f", in round {len(done)} of {rounds} ({cell.config.device}; training alone takes {hours(each * rounds)})"


def _may_end(cell: Cell, minutes: float) -> bool:
    """What was stopped after as many minutes before is not tried again."""
    return float(_read_stop_note(cell).get("minutes", "0")) < minutes


def commit() -> str:
    """Of the code that is running, where it is a checkout; FEDREC_COMMIT names it where git cannot."""
    if "FEDREC_COMMIT" in os.environ:
        return os.environ["FEDREC_COMMIT"]
    command = ["git", "-C", str(Path(__file__).parent), "rev-parse", "--short", "HEAD"]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return ""


def _note(path: Path, values: dict[str, str], keep: bool = False) -> None:
    if not (keep and path.exists()):
        with atomic_file(path) as temporary:
            temporary.write_text(json.dumps(values) + "\n", encoding="utf-8")


def _read_note(path: Path) -> dict[str, str]:
    return (json_line(path.read_text(encoding="utf-8"), {}) or {}) if path.is_file() else {}
