"""How long a cell would take that nobody has run: by the pace of runs on record."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from fedrec.experiment import build_method
from fedrec_studies.reproduce.cells import Cell
from fedrec_studies.reproduce.estimate import Clock
from fedrec_studies.reproduce.measured import MeasuredRun, read_all_shipped


def clock_of(records: Iterable[Mapping[str, Any]]) -> Clock:
    """From the papers' runs that come with the library, and those of the leaderboard itself."""
    known = read_all_shipped()
    sizes = Clock(known).sizes
    return Clock([*known, *(run for record in records for run in _runs(record, sizes.get(record["dataset"], 0)))])


def too_long(clock: Clock, cell: Cell, minutes: float) -> str:
    """Why it is not run; empty where it would end in time, or nothing is known."""
    found = clock.estimate(cell)
    over = found is not None and found.seconds > 60 * minutes
    return f"more than {minutes:g} minutes, by the pace of other runs of the method" if over else ""


def _runs(record: Mapping[str, Any], interactions: int) -> Iterator[MeasuredRun]:
    for row in record["rows"] if interactions else ():
        usual = getattr(build_method(row["method"]), "backbone", "") if row["cells"] else ""
        for cell in row["cells"]:
            words = cell["command"].split()
            backbone = words[words.index("--backbone") + 1] if "--backbone" in words else usual
            yield MeasuredRun(
                record["dataset"],
                row["label"],
                record["dataset"],
                record["protocol"],
                cell["seed"],
                cell["command"],
                cell["device"],
                {},
                cell["rounds_run"],
                cell["best_round"],
                cell["seconds"],
                interactions,
                backbone,
            )
