"""What was measured of the papers' tables: runs that come with this library, and those of a study on this machine."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from importlib import resources
from pathlib import Path
from typing import Any

from fedrec import __version__
from fedrec.data import atomic_file
from fedrec.errors import FedrecError
from fedrec.experiment import RunFolder
from fedrec_studies.reproduce.cells import Cell
from fedrec_studies.reproduce.run_figures import figures_of


@dataclass(frozen=True)
class MeasuredRun:
    """One finished run of a table. It counts as long as the table asks for the same `command`.

    Of an earlier version only the mean over so many `seeds` may be known; it then has no `seconds`.
    """

    table: str
    row: str
    dataset: str
    protocol: str
    seed: int
    command: str
    device: str
    figures: Mapping[str, float]
    rounds: int
    best_round: int
    seconds: float
    interactions: int
    backbone: str = ""
    diverged: str = ""
    seeds: int = 1
    fedrec: str = __version__

    def key(self) -> tuple[str, str, str, str, int]:
        return self.table, self.row, self.dataset, self.protocol, self.seed


def read_shipped(paper: str) -> list[MeasuredRun]:
    """Read the runs of a paper's tables that come with the package, `measured/PAPER.json`."""
    file = resources.files("fedrec_studies.reproduce.measured") / f"{paper}.json"
    if not file.is_file():
        return []
    known = {f.name for f in fields(MeasuredRun)}
    try:
        records = json.loads(file.read_text(encoding="utf-8"))["runs"]
        return [MeasuredRun(**{name: record[name] for name in record if name in known}) for record in records]
    except (ValueError, KeyError, TypeError) as error:
        raise FedrecError(f"measured/{paper}.json is damaged ({error}); install fedrec again") from None


def read_stage_seconds(paper: str) -> dict[tuple[str, str], float]:
    """Return seconds by dataset and stage, as `python -m fedrec_studies.bench.stages` measured them."""
    file = resources.files("fedrec_studies.reproduce.measured") / "stages" / f"{paper}.json"
    records = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else []
    return {(one["data"], stage): spent for one in records for stage, spent in one["seconds"].items()}


def read_all_shipped() -> list[MeasuredRun]:
    """Read the runs of all papers that come with the package."""
    files = resources.files("fedrec_studies.reproduce.measured").iterdir()
    return [
        run
        for file in sorted(file.name for file in files)
        if file.endswith(".json")
        for run in read_shipped(file.removesuffix(".json"))
    ]


def collect_finished(planned: Iterable[tuple[str, Cell]]) -> list[MeasuredRun]:
    """Collect the cells, each with its table's name, whose run has ended with the present settings of the table."""
    return [
        _run(table, cell, summary)
        for table, cell in planned
        if (summary := cell.summary()) is not None and cell.current()
    ]


def _run(table: str, cell: Cell, summary: Mapping[str, Any]) -> MeasuredRun:
    figures = {name: round(value, 6) for name, value in figures_of(summary, cell.folder).items()}
    size = summary.get("dataset", {}).get("interactions", 0)
    device = RunFolder(cell.folder).settings().get("device", cell.config.device)  # where it ran, not where it would
    return MeasuredRun(
        table,
        cell.row,
        cell.dataset,
        cell.protocol,
        cell.config.seed,
        cell.command(),
        device,
        figures,
        summary.get("rounds_run", summary["best_round"] + 1),
        summary["best_round"],
        summary["seconds"]["total"],
        size,
        summary.get("backbone") or "",
        summary.get("diverged", ""),
    )


def merge_runs(*parts: Iterable[MeasuredRun]) -> list[MeasuredRun]:
    """Merge runs; a later one replaces an earlier one of the same place."""
    return list({run.key(): run for part in parts for run in part}.values())


def still_asked_for(runs: Iterable[MeasuredRun], planned: Iterable[tuple[str, Cell]]) -> list[MeasuredRun]:
    """Drop runs whose row has other settings by now."""
    wanted = {
        (table, cell.row, cell.dataset, cell.protocol, cell.config.seed): cell.command() for table, cell in planned
    }
    return [run for run in runs if wanted.get(run.key()) == run.command]


def write(path: Path, about: str, runs: Sequence[MeasuredRun]) -> None:
    """One run a line, in order, so that a change shows as one."""
    lines = [json.dumps(asdict(run), sort_keys=True) for run in sorted(runs, key=MeasuredRun.key)]
    with atomic_file(path) as temporary:
        text = f'{{"about": {json.dumps(about)}, "runs": [\n' + ",\n".join(lines) + "\n]}\n"
        temporary.write_text(text, encoding="utf-8")
