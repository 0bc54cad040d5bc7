"""The runs of a table, each in a folder and a process of its own, so that one can fail, stop or go on alone."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from fedrec import evaluation
from fedrec.errors import FedrecError
from fedrec.experiment import RunConfig, RunFolder, device_named, folder_name, make_config, method_of, require_same
from fedrec.federation import Method
from fedrec.schema import COUNT, METRICS, NUMBER, damage_error, read_json
from fedrec_studies.reproduce.table_definition import Table

MACHINE = ("device", "memory")  # what a result does not depend on
RESULT = {"test": METRICS, "seconds": {"total": NUMBER}, "best_round": COUNT}
"""What a table shows of a run."""
STOPPED = "stopped after"
# the built method says these completely, whatever words the config used for them
SAID_BY_METHOD = ("method", "backbone", "preset", "params", "rounds")


@dataclass(frozen=True)
class Cell:
    """One run of a table."""

    row: str
    dataset: str
    protocol: str
    config: RunConfig
    folder: Path

    def summary(self) -> dict[str, Any] | None:
        """Read the result of the run; None until it has ended."""
        path = self.folder / "summary.json"
        try:
            return dict(read_json(path, "summary", RESULT)) if path.is_file() else None
        except (ValueError, OSError) as error:
            raise damage_error(self.folder, error) from None

    def work(self) -> tuple[Method, RunConfig]:
        """Return what is run, without names: cells of equal work have equal results."""
        return work_of(self.config)

    def current(self) -> bool:
        """Whether the run in its folder has the settings that are asked for now, on whatever machine."""
        try:
            return work_of(make_config(RunFolder(self.folder).settings())) == self.work()
        except FedrecError:
            return False  # none there, or of a version that knew other parameters

    def command(self) -> str:
        """Write the equal `fedrec run`, without defaults and without what a result does not depend on."""
        bare = RunConfig("")
        config = replace(self.config, **{name: getattr(bare, name) for name in MACHINE})
        return f"fedrec run {shlex.join([config.method, *config.flags()])}"

    def name(self) -> str:
        return f"{self.row}, {self.dataset}, {self.protocol}, seed {self.config.seed}"


def work_of(config: RunConfig) -> tuple[Method, RunConfig]:
    """The method as it is built, and the rest of the config: the same for configs that differ in words alone."""
    bare = RunConfig("")
    rest = replace(config, **{name: getattr(bare, name) for name in (*SAID_BY_METHOD, *MACHINE)})
    return method_of(config), rest


def plan_cells(table: Table, out: Path, device: str, memory: str) -> list[Cell]:
    """List every run of the table, seeds last: an interrupted study has whole columns first."""
    found = []
    for seed in table.seeds:
        for protocol in table.protocols:
            for dataset in table.datasets:
                for row in table.rows:
                    if protocol not in (row.only or [protocol]) or dataset not in (row.datasets or [dataset]):
                        continue
                    config = replace(table.config(row, dataset, protocol, seed), device=device, memory=memory)
                    folder = (
                        out
                        / table.name
                        / folder_name(protocol)
                        / folder_name(dataset)
                        / folder_name(row.label)
                        / f"seed{seed}"
                    )
                    found.append(Cell(row.label, dataset, protocol, config, folder))
    return found


def require_runnable(planned: Sequence[Cell], here: bool = True) -> None:
    """Every method, preset and parameter is checked before the first run; so is what an earlier study left behind.
    Unless they are to run `here`, the device may be one of another machine."""
    for cell in planned:
        config = cell.config
        evaluation.protocol(config.protocol)
        if here:
            device_named(config.device)
        cell.work()
        folder = RunFolder(cell.folder)
        folder.require_own_files()
        if folder.config.is_file():
            there, wanted = folder.settings(), config.to_dict()
            if cell.summary() is not None:  # what is finished may come from another machine
                there |= {name: wanted[name] for name in MACHINE}
            require_same(there, wanted, cell.folder)
        if (folder.config.is_file() or cell.summary() is not None) and not cell.current():
            raise FedrecError(
                f"{cell.folder} holds a run with other settings than {cell.row} has now, such as fewer "
                "rounds (--quick); use another --out, or move it away"
            )


def run_cells(
    planned: Sequence[Cell],
    jobs: int,
    told: Callable[[str], None],
    others: Sequence[Cell] = (),
    drop_models: bool = False,
    minutes: float | None = None,
) -> dict[str, str]:
    """Run what is not there yet, `jobs` at a time; returns the error of every cell that failed.

    Where one of `others` has done the same work, its result is taken. With `drop_models` only results stay.
    A run that takes more than `minutes` is stopped.
    """
    there = sum(cell.summary() is not None for cell in planned)
    taken = _take_over(planned, others)
    todo = [cell for cell in planned if cell.summary() is None]
    for cell in planned if drop_models else ():
        _drop_model(cell)  # of earlier runs too
    told(f"{count_words('run', len(planned))}, {there} already done" + (f", {taken} in other tables" if taken else ""))
    failed: dict[str, str] = {}
    for number, (cell, seconds, error) in enumerate(_run_all(todo, jobs, minutes), start=1):
        if error:
            failed[cell.name()] = error
        elif drop_models:
            _drop_model(cell)
        told(f"{number} of {len(todo)}: {cell.name()}: {error or _headline(cell)} ({seconds:.0f} s)")
    return failed


def count_words(what: str, number: int) -> str:
    """Write a count for people: `1 run`, `2 runs`."""
    return f"{number:,} {what}" + ("s" if number != 1 else "")


def _take_over(planned: Sequence[Cell], others: Sequence[Cell]) -> int:
    """Copy results of equal work into cells that nobody has begun; returns how many."""
    done = [(cell.work(), cell.folder) for cell in others if cell.summary() is not None]
    taken = 0
    for cell in planned:
        if RunFolder(cell.folder).config.is_file():
            continue
        wanted = cell.work()
        found = next((folder for work, folder in done if work == wanted), None)
        if found is None:
            continue
        RunFolder.create(cell.folder, cell.config.to_dict()).take_over(RunFolder.open(found))
        taken += 1
    return taken


def _drop_model(cell: Cell) -> None:
    """Delete the model of a run that has ended; one under way needs it to resume."""
    if cell.summary() is not None:
        RunFolder(cell.folder).drop_model()


def _run_all(todo: Sequence[Cell], jobs: int, minutes: float | None) -> Iterator[tuple[Cell, float, str]]:
    pool = ThreadPoolExecutor(jobs)
    try:
        waiting = {pool.submit(_run, cell, jobs, minutes): cell for cell in todo}
        for future in as_completed(waiting):
            yield waiting[future], *future.result()
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def _run(cell: Cell, jobs: int, minutes: float | None) -> tuple[float, str]:
    """Run one cell in a process, which leaves no memory behind; return its seconds and error."""
    started = time.monotonic()
    folder = RunFolder(cell.folder)
    if not folder.config.is_file():
        RunFolder.create(cell.folder, cell.config.to_dict())
    command = [sys.executable, "-m", "fedrec_studies.reproduce.worker", str(cell.folder)]
    threads = {name: str(max(1, (os.cpu_count() or 1) // jobs)) for name in ("OMP_NUM_THREADS", "NUMBA_NUM_THREADS")}
    environment, limit = {**os.environ, **(threads if jobs > 1 else {})}, None if minutes is None else 60 * minutes
    try:
        done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=limit)
    except subprocess.TimeoutExpired:
        return time.monotonic() - started, f"{STOPPED} {minutes:g} minutes"
    if done.returncode == 0:
        folder.forget_last()  # it has all its rounds
        return time.monotonic() - started, ""
    last = done.stderr.strip().splitlines()[-1:] or ["it ended without a message"]
    return time.monotonic() - started, last[0]


def _headline(cell: Cell) -> str:
    summary = cell.summary()
    if summary is None:
        raise FedrecError(f"{cell.folder} has no summary.json although its run succeeded; remove it and run again")
    name = next(iter(summary["test"]))
    return f"{name} {summary['test'][name]:.4f}, round {summary['best_round'] + 1} of {summary['rounds_run']}"
