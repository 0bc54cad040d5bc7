"""Popularity and local beside a table: run once per data version and protocol, then read from the cache."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Sequence
from pathlib import Path

from fedrec.data import cache_folder
from fedrec.data.atomic import scratch_folder
from fedrec.errors import FedrecError
from fedrec.evaluation import parse_protocol, protocol
from fedrec.evaluation.own_metrics import fingerprint
from fedrec.experiment.config import COLUMNS, RunConfig
from fedrec.experiment.driver import Listener, execute
from fedrec.experiment.finished_run import REFERENCES, FinishedRun, read_run
from fedrec.experiment.prepare import Prepared

PLACE = ("data", "protocol", "silos", "train", "valid", "test", "attributes", "skip_bad", "silo_column", *COLUMNS)
"""What a reference must share with the runs."""


def silent(label: str) -> Listener:
    return Listener()


def find_references(
    runs: Sequence[FinishedRun], train: bool | None, follow: Callable[[str], Listener] = silent
) -> list[FinishedRun]:
    """Return the references for a table: with `train` all of them, without none, for None those at hand.

    `follow`: the listener of a reference that must be trained, given its label.
    """
    if train is None:
        return references_at_hand(runs)
    return [_reference(name, runs[0], follow) for name in absent_references(runs)] if train else []


def references_at_hand(runs: Sequence[FinishedRun], data: Prepared | None = None) -> list[FinishedRun]:
    """Return what needs no training: popularity if the data is here, local if it was run before.

    `data`: what the first run has prepared, where it is still in memory.
    """
    found = []
    for name in absent_references(runs):
        try:
            if (_place(name, runs[0])[1] / "summary.json").exists():
                found.append(read_run(_place(name, runs[0])[1]))
            elif name == "popularity" and (data is not None or runs[0].has_data()):
                found.append(_reference(name, runs[0], silent, data))
        except (FedrecError, OSError):
            continue  # the data or the cache cannot be used: the report does without
    return [run for run in found if (run.data, run.protocol) == (runs[0].data, runs[0].protocol)]


def absent_references(runs: Sequence[FinishedRun]) -> list[str]:
    """Return the names of the references that are not among the runs but could stand beside them."""
    if parse_protocol(runs[0].protocol).split == "cold-items":
        return []  # neither says anything about items that nobody met
    there = {run.summary["method"] for run in runs}
    return [name for name in REFERENCES if name not in there]


def _place(method: str, beside: FinishedRun) -> tuple[RunConfig, Path]:
    same = {key: beside.config[key] for key in PLACE if key in beside.config}
    config = RunConfig(method=method, eval_every=5, **same)
    # the dataset's own record tells versions of a file apart, the library versions what may change a number
    text = f"{beside.data} {beside.summary['dataset']} {sorted(config.to_dict().items())} {beside.summary['versions']}"
    text += fingerprint(parse_protocol(beside.protocol).all_metrics)
    return config, cache_folder() / "references" / f"{method}-{hashlib.sha256(text.encode()).hexdigest()[:16]}"


def _reference(
    method: str, beside: FinishedRun, follow: Callable[[str], Listener], data: Prepared | None = None
) -> FinishedRun:
    config, folder = _place(method, beside)
    if not (folder / "summary.json").exists():
        _require_metrics(beside)
        bar = follow(f"reference {method}")
        try:
            with scratch_folder(folder.parent) as scratch:  # several runs may come here at the same time
                execute(config, scratch / "run", listener=bar, data=data or beside.kept_data)
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
