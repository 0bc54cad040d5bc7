"""`fedrec sweep`: a method with each of some listed values, judged on validation items."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import typer

from fedrec.commands import console, progress
from fedrec.commands.tune import study_folder
from fedrec.evaluation import protocol
from fedrec.experiment.command_line import command_line
from fedrec.experiment.config import RunConfig
from fedrec.experiment.driver import Listener
from fedrec.experiment.grid_search import Sweep, combinations, grid_of, split_settings, sweep
from fedrec.experiment.interrupt import TERMINATED, Terminated, sigterm_interrupts
from fedrec.experiment.params import method_of
from fedrec.experiment.search_space import settings_text
from fedrec.experiment.tuning import Trial, best_of


def run_sweep(config: RunConfig, settings: Sequence[str], out: Path | None, quiet: bool) -> None:
    """Run what is missing, or everything, and print one table."""
    swept, fixed = split_settings(settings)
    config = dataclasses.replace(config, params={**config.params, **fixed})
    space = grid_of(method_of(config), swept)
    place = out or study_folder(config, "sweep", "-".join([*swept, *(f"{k}={v}" for k, v in fixed.items())]))
    study, number = Sweep(place, config, space), len(combinations(space))
    metric = protocol(config.protocol).select_metric

    def report(trial: Trial) -> None:
        if not quiet:
            console.err.print(f"{settings_text(trial.params)}: {_value(trial)} ({trial.seconds:.0f} s)")

    def listener(trial: int) -> Listener:
        return progress.listener(f"setting {trial + 1} of {number}", quiet, as_json=False, notes=trial == 0)

    try:
        with sigterm_interrupts():
            done = sweep(study, report, listener)
    except KeyboardInterrupt as stop:
        console.err.print("interrupted; the same command continues after the last finished setting")
        if isinstance(stop, Terminated):
            raise typer.Exit(TERMINATED) from None
        raise
    _show(done, metric, study.best)


def _value(trial: Trial) -> str:
    return trial.note if trial.value is None else f"{trial.value:.4f}"


def _show(done: Sequence[Trial], metric: str, file: Path) -> None:
    best = best_of(done)
    header = [*done[0].params, f"{metric} (validation)", "round", "seconds", ""]
    rows: list[list[Any]] = [
        [
            *map(str, trial.params.values()),
            _value(trial),
            f"{trial.best_round + 1} of {trial.rounds_run}",
            f"{trial.seconds:.1f}",
            _remark(trial, trial is best),
        ]
        for trial in done
    ]
    console.table(header, rows, title="On validation items; test items were not ranked")
    if best is not None:
        console.out.print(f"run the best with: {command_line('run', '--config', file)}")


def _remark(trial: Trial, best: bool) -> str:
    last = trial.value is not None and trial.best_round + 1 == trial.rounds_run > 1
    return ", ".join(["best"] * best + ["more rounds may help"] * last)
