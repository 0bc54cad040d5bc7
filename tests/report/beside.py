"""Finished runs with the references that need no training beside them, as `fedrec report` shows them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from fedrec.experiment.finished_run import FinishedRun, find_runs
from fedrec.experiment.references import cheap_references


def with_cheap_references(paths: Sequence[Path]) -> list[FinishedRun]:
    runs = find_runs(paths)
    return [*runs, *cheap_references(runs)]
