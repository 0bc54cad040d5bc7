"""Finished runs with the references that need no training beside them, as `fedrec report` shows them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from fedrec.experiment.finished_run import FinishedRun, find_runs
from fedrec.experiment.references import references_at_hand


def with_references(paths: Sequence[Path]) -> list[FinishedRun]:
    runs = find_runs(paths)
    return [*runs, *references_at_hand(runs)]
