"""A run with its own report beside it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from fedrec.errors import FedrecError
from fedrec.experiment.config import RunConfig
from fedrec.experiment.disk import Keep
from fedrec.experiment.driver import Listener, execute
from fedrec.experiment.finished_run import FinishedRun, take_result
from fedrec.experiment.listeners import Keeping
from fedrec.experiment.opening import Chosen
from fedrec.experiment.prepare import Prepared
from fedrec.experiment.references import references_at_hand
from fedrec.experiment.result import Result
from fedrec.federation.group import ALONE, Group
from fedrec.report.pages.report import write_report

# Ranking references and a few users' items over more rows than this takes longer than a report is worth.
LARGEST_AUTOMATIC = 5_000_000  # interactions up to which a run's own report ranks popularity and a few users' items


def run_and_report(
    config: RunConfig,
    folder: Path,
    resume: bool,
    listener: Listener,
    note: Callable[[str], None],
    data: Prepared | None = None,
    group: Group = ALONE,
    keep: Keep = "model",
) -> tuple[Result, Prepared]:
    """The result, and what was prepared for it, which `data` may take from a run on the same data.

    The run is saved before its report begins: a page that cannot be written is a note, not an error.
    """
    keeping = Keeping(listener)
    try:
        result = execute(config, folder, resume, keeping, data, group=group, keep=keep)
    finally:
        keeping.stop()
    try:
        if group.first:  # of several processes none has all clients: the folder does
            write_own_report(take_result(result), keeping.chosen if group.size == 1 else None)
    # The run is saved already: a page that cannot be written must not make it look failed.
    except (FedrecError, OSError) as error:
        note(f"report.html was not written: {error}")
    return result, keeping.chosen.run.prepared


def write_own_report(run: FinishedRun, chosen: Chosen | None = None) -> Path:
    """Write report.html of a run that has just finished. `chosen`: the same in memory."""
    path = run.folder / "report.html"
    if run.summary["dataset"]["interactions"] > LARGEST_AUTOMATIC:
        return write_report([run], path, users=False)
    beside = references_at_hand([run], None if chosen is None else chosen.run.prepared)
    return write_report([run, *beside], path, chosen=chosen)
