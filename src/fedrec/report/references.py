"""Popularity and local beside every table: run once per data version and protocol, then found again."""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Sequence
from pathlib import Path

from fedrec import console
from fedrec.data import cache_folder
from fedrec.experiment.config import RunConfig
from fedrec.experiment.run import execute
from fedrec.report.comparison import FinishedRun, read_run

REFERENCES = ("popularity", "local")
PLACE = ("data", "protocol", "silos", "train", "valid", "test")  # what a reference must share with the runs


def with_references(runs: Sequence[FinishedRun]) -> list[FinishedRun]:
    """The runs, and those references that are not among them."""
    there = {run.summary["method"] for run in runs}
    return [*runs, *(_reference(name, runs[0]) for name in REFERENCES if name not in there)]


def _reference(method: str, beside: FinishedRun) -> FinishedRun:
    same = {key: beside.config[key] for key in PLACE if key in beside.config}
    config = RunConfig(method=method, eval_every=5, **same)
    text = f"{beside.data} {beside.summary['dataset']} {sorted(config.to_dict().items())} {beside.summary['versions']}"
    folder = cache_folder() / "references" / f"{method}-{hashlib.sha256(text.encode()).hexdigest()[:16]}"
    if not (folder / "summary.json").exists():
        shutil.rmtree(folder, ignore_errors=True)  # one that was interrupted
        bar = console.listener(f"reference {method}", quiet=False, as_json=False)
        try:
            execute(config, Path(folder), listener=bar)
        finally:
            bar.stop()
    return read_run(folder)
