"""`fedrec tune`: search a method's parameters on validation items."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import typer

from fedrec.commands import console, progress
from fedrec.errors import FedrecError
from fedrec.evaluation import protocol
from fedrec.experiment.command_line import command_line
from fedrec.experiment.config import RunConfig
from fedrec.experiment.driver import Listener
from fedrec.experiment.folder import folder_name
from fedrec.experiment.interrupt import TERMINATED, Terminated, sigterm_interrupts
from fedrec.experiment.params import method_of
from fedrec.experiment.search_space import describe_space, settings_text, space_of
from fedrec.experiment.tuning import Budget, Study, Trial, best_of, search


def tune(config: RunConfig, given: Sequence[str], budget: Budget, out: Path | None, quiet: bool) -> None:
    """Run or continue the study, and print the best settings."""
    method, metric = method_of(config), protocol(config.protocol).select_metric
    space = space_of(method, given, config.params)
    study = Study(out or study_folder(config, "tune"), config, space)

    def say(line: str) -> None:
        if not quiet:
            console.err.print(line)

    def report(trial: Trial, best: Trial) -> None:
        say(
            f"{_number(trial, budget)}: {settings_text(trial.params)}: {_outcome(trial, metric)}; best "
            f"{best.value or 0:.4f} (trial {best.number + 1})"
        )

    def listener(trial: int) -> Listener:
        return progress.listener(f"trial {trial + 1} of {budget.trials}", quiet, as_json=False, notes=trial == 0)

    say(f"searched: {'; '.join(f'{name} {text}' for name, text in describe_space(space).items())}")
    try:
        with sigterm_interrupts():
            done = search(study, method, budget, report, listener)
    except KeyboardInterrupt as stop:
        console.err.print("interrupted; the same command continues after the last finished trial")
        if isinstance(stop, Terminated):
            # Another exit code than Ctrl-C has, so that a scheduler knows that it ended the study itself.
            raise typer.Exit(TERMINATED) from None
        raise
    _show_best(done, metric, study.best)


def _number(trial: Trial, budget: Budget) -> str:
    return f"trial {trial.number + 1} of {budget.trials}"


def _outcome(trial: Trial, metric: str) -> str:
    came = f"{metric} {trial.value:.4f}, round {trial.best_round + 1} of {trial.rounds_run}" if trial.rounds_run else ""
    return f"{came or trial.note} ({trial.seconds:.0f} s)"


def _show_best(done: Sequence[Trial], metric: str, file: Path) -> None:
    best = best_of(done)
    if best is None:
        raise FedrecError(
            f"none of {len(done)} trials could be trained ({done[-1].note}); choose another range with --space"
        )
    minutes = sum(trial.seconds for trial in done) / 60
    console.out.print(
        f"best of {len(done)} trials in {minutes:.1f} minutes: {settings_text(best.params)}, {metric} "
        f"{best.value:.4f} on validation items"
    )
    console.out.print(f"run it with: {command_line('run', '--config', file)}")


def study_folder(config: RunConfig, kind: str, more: str = "", method: str | None = None) -> Path:
    """runs/tune/METHOD-DATA-..., the same for the same command, which therefore goes on."""
    data = Path(config.train).stem if config.train else Path(config.data).name
    # The default seed is left out, so that the usual folder has the shorter name.
    seed = f"seed{config.seed}" if config.seed else ""
    parts = [
        config.method if method is None else method,
        config.backbone or "",
        config.preset or "",
        data,
        config.protocol,
        seed,
        more,
    ]
    text = "-".join(part for part in parts if part)
    return Path("runs") / kind / folder_name(text, also="=")
