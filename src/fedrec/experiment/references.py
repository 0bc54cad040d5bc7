"""Popularity and local beside every table: run once per data version and protocol, then found again."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Sequence
from pathlib import Path

from fedrec.data import cache_folder
from fedrec.data.atomic import scratch_folder
from fedrec.errors import FedrecError
from fedrec.evaluation import protocol, recorded
from fedrec.evaluation.own_metrics import fingerprint
from fedrec.experiment.config import COLUMNS, RunConfig
from fedrec.experiment.finished_run import REFERENCES, FinishedRun, read_run
from fedrec.experiment.prepare import Prepared
from fedrec.experiment.run import Listener, execute

PLACE = ("data", "protocol", "silos", "train", "valid", "test", "attributes", *COLUMNS)
"""What a reference must share with the runs."""


def silent(label: str) -> Listener:
    return Listener()


def train_references(runs: Sequence[FinishedRun], told: Callable[[str], Listener] = silent) -> list[FinishedRun]:
    """Return the references that are not among the runs; `told` follows one that must be trained."""
    return [_reference(name, runs[0], told) for name in _missing(runs)]


def cheap_references(runs: Sequence[FinishedRun], data: Prepared | None = None) -> list[FinishedRun]:
    """What can stand beside the runs without training: popularity if the data is here, local if it was run before.

    `data`: what the first run has prepared, where it is still in memory.
    """
    found = []
    for name in _missing(runs):
        try:
            if (_place(name, runs[0])[1] / "summary.json").exists():
                found.append(read_run(_place(name, runs[0])[1]))
            elif name == "popularity" and (data is not None or runs[0].has_data()):
                found.append(_reference(name, runs[0], silent, data))
        except (FedrecError, OSError):
            continue  # the data or the cache cannot be used: the report does without
    return [run for run in found if (run.data, run.protocol) == (runs[0].data, runs[0].protocol)]


def _missing(runs: Sequence[FinishedRun]) -> list[str]:
    if recorded(runs[0].protocol).split == "cold-items":
        return []  # neither says anything about items that nobody met
    there = {run.summary["method"] for run in runs}
    return [name for name in REFERENCES if name not in there]


def _place(method: str, beside: FinishedRun) -> tuple[RunConfig, Path]:
    same = {key: beside.config[key] for key in PLACE if key in beside.config}
    config = RunConfig(method=method, eval_every=5, **same)
    text = f"{beside.data} {beside.summary['dataset']} {sorted(config.to_dict().items())} {beside.summary['versions']}"
    text += fingerprint(recorded(beside.protocol).named_metrics)
    return config, cache_folder() / "references" / f"{method}-{hashlib.sha256(text.encode()).hexdigest()[:16]}"


def _reference(
    method: str, beside: FinishedRun, told: Callable[[str], Listener], data: Prepared | None = None
) -> FinishedRun:
    config, folder = _place(method, beside)
    if not (folder / "summary.json").exists():
        _require_metrics(beside)
        bar = told(f"reference {method}")
        try:
            with scratch_folder(folder.parent) as scratch:  # several runs may come here at the same time
                execute(config, scratch / "run", listener=bar, data=data or beside.kept)
                _move(scratch / "run", folder)
        finally:
            bar.stop()
    return read_run(folder)


def _require_metrics(beside: FinishedRun) -> None:
    try:
        protocol(beside.protocol)
    except FedrecError as error:
        raise FedrecError(f"{error}; without it {beside.folder} is compared by --no-references") from None


def _move(finished: Path, folder: Path) -> None:
    try:
        os.replace(finished, folder)
    except OSError:
        if not (folder / "summary.json").exists():  # else somebody else was first with the same
            raise
