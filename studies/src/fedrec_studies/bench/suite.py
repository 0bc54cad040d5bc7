"""All methods' fixed pieces of work, one process after another, and two such measurements beside each other."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

from fedrec.errors import FedrecError, unknown
from fedrec.experiment import device_named
from fedrec.methods import method_class
from fedrec_studies.bench import goals
from fedrec_studies.bench.machine import describe, in_a_process
from fedrec_studies.bench.measure import command_words
from fedrec_studies.bench.result_file import RowFile
from fedrec_studies.bench.task import Task, require_size

NOISE = 0.1  # a smaller change of a median says nothing, however still the machine was
SPREADS = 3  # times the spread of both measurements
Row = dict[str, Any]
Say = Callable[[str], None]


def measure_all(tasks: Sequence[Task], programs: Mapping[str, Path], kept: RowFile, command: str, say: Say) -> Row:
    """`{"machine": ..., "methods": [...]}`, in the order of the tasks; a method that fails stops nobody."""
    for task in tasks:
        method_class(task.method)  # an unknown name ends it before any work is done
        require_size(task.size)
    kept.begin(describe(device_named(tasks[0].device)), command)
    for number, task in enumerate(tasks, 1):
        kept.row(
            asdict(task),
            partial(in_a_process, command_words(task, programs)),
            partial(say, f"{task.title}: {number} of {len(tasks)}"),
        )
    names = [task.title for task in tasks]
    kept.found["methods"].sort(key=lambda row: names.index(row["method"]) if row["method"] in names else len(names))
    return kept.complete()


def reach_all(names: Sequence[str], device: str, data: str, quick: bool, kept: RowFile, command: str, say: Say) -> Row:
    """`{"machine": ..., "goals": [...]}`, in the order of the names."""
    names = names or list(goals.GOALS)
    for name in names:
        if name not in goals.GOALS:
            raise unknown("goal", name, goals.GOALS)
    if data not in goals.WORLDS:
        raise FedrecError(f"--data {data} with --goals: use {' or '.join(goals.WORLDS)}")
    kept.begin(describe(device_named(device)), command)
    for number, name in enumerate(names, 1):
        task = {"goal": name, "device": device, "data": data, "quick": quick, "definition": asdict(goals.GOALS[name])}
        kept.forget(task, unlike="definition")
        kept.row(
            task,
            partial(in_a_process, goals.command_words(name, device, data, quick)),
            partial(say, f"{name}: {number} of {len(names)}"),
        )
    kept.found["goals"].sort(key=lambda row: names.index(row["goal"]) if row["goal"] in names else len(names))
    return kept.complete()


def compare_seconds(before: Row, after: Row) -> Iterator[tuple[str, float, float, float, str]]:
    """Yield name, seconds before and after, their ratio, and whether the change is more than noise."""
    old = _collect_seconds(before)
    for name, rounds in _collect_seconds(after).items():
        if name not in old:
            continue
        first, second = median(old[name]), median(rounds)
        noise = max(NOISE, SPREADS * (_spread(old[name]) + _spread(rounds)))
        times = first / second
        verdict = "" if 1 / (1 + noise) <= times <= 1 + noise else "faster" if times > 1 else "slower"
        yield name, first, second, times, verdict


def _collect_seconds(found: Row) -> dict[str, list[float]]:
    """Collect the seconds of rounds by the name of what was measured."""
    methods = {row["method"]: row["seconds"]["rounds"] for row in found.get("methods", []) if "seconds" in row}
    reached = {row["goal"]: [row["seconds_round"]] for row in found.get("goals", []) if "seconds" in row}
    points = {_name(row): row["seconds_all"][1:] for row in found.get("points", []) if "seconds_all" in row}
    return methods | reached | points


def _name(row: Row) -> str:
    return (
        f"{row['method']}, {row['clients']:,} clients, {row['items']:,} items, {row['interactions']:,} "
        f"interactions, {row['processes']} process(es)"
    )


def _spread(rounds: Sequence[float]) -> float:
    """Median distance to the median, as a part of it."""
    middle = median(rounds)
    return median(abs(value - middle) for value in rounds) / middle
