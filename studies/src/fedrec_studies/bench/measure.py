"""Measure one method's fixed piece of work in a process of its own.

python -m fedrec_studies.bench.measure '{"method": ...}'
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Mapping
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from fedrec.experiment import Run
from fedrec_studies.bench.estimates import work_of
from fedrec_studies.bench.machine import Elsewhere, device_peak_gib, print_result, rates, seconds
from fedrec_studies.bench.phases import SAMPLING, TRAINING, Phases, split_kernel
from fedrec_studies.bench.plain_programs import reference_of
from fedrec_studies.bench.task import Task
from fedrec_studies.bench.trace import trace_work

ENOUGH = 5.0  # seconds of rounds after which no more are measured
AGAIN, SPLIT, COUNTED = 100, 200, 300  # numbers of rounds that are run for other reasons than their seconds


def command_words(task: Task, programs: Mapping[str, Path]) -> list[str]:
    """Name the command that measures a task; `programs` are the plain ones to compare with, see `plain_programs.py`."""
    given = {name: str(path) for name, path in programs.items()}
    return ["-m", "fedrec_studies.bench.measure", json.dumps(asdict(task)), json.dumps(given)]


def measure_method(task: Task, programs: Mapping[str, Path]) -> dict[str, Any]:
    """Measure one method: time, traffic and memory per round, beside a plain program."""
    started = time.perf_counter()
    data = task.interactions()
    made = time.perf_counter()
    run = task.run(data)
    ready = time.perf_counter()
    simulator, device = run.simulator, run.world.device
    elsewhere = Elsewhere()
    first = seconds(lambda: simulator.round(0), device)
    rounds = _rounds(run, 1, task.turns)
    others = elsewhere.cores()
    peak = device_peak_gib(device)
    reference = reference_of(run, task, programs)
    if sum(rounds) < ENOUGH:
        # behind the reference too: that shows where the machine was busy meanwhile
        rounds += _rounds(run, AGAIN, task.turns)
    typical = min(rounds)  # other work on the machine only adds to it
    phases, evaluation = _phases(run, max(1, min(task.turns, int(ENOUGH / typical))))
    inside = split_kernel(simulator, phases)
    alone = reference is not None and reference.of == TRAINING  # the reference does nothing else
    ours = phases[TRAINING] + phases[SAMPLING] if alone else typical
    ratio = None if reference is None or reference.seconds is None else reference.seconds / ours
    found = rates(device)
    return {
        "method": task.title,
        "ratio": ratio,
        "training_ratio": ratio if alone else None,
        "ratio_to": None if reference is None else reference.what,
        "reference_seconds": None if reference is None else reference.seconds,
        "data": task.label,
        "clients": run.world.clients,
        "items": run.world.items,
        "interactions": int(simulator.data.positives.sum()),
        "seconds": {
            "data": made - started,
            "set_up": ready - made,
            "compilation": max(0.0, first - typical),
            "round": typical,
            "rounds": rounds,
            "evaluation": evaluation,
        },
        "phases": phases,
        "sampling_inside_training": inside,
        **work_of(simulator, COUNTED).rates(typical, found),
        "peak_gib": peak,
        **trace_work(partial(simulator.round, COUNTED + 1), device),
        "machine": found | {"others_cores": others},
        "task": asdict(task),
    }


def _rounds(run: Run, start: int, turns: int) -> list[float]:
    """Seconds of rounds, as they are; fewer where they are long."""
    found: list[float] = []
    while len(found) < turns and sum(found) < ENOUGH:
        found.append(seconds(partial(run.simulator.round, start + len(found)), run.world.device))
    return found


def _phases(run: Run, turns: int) -> tuple[dict[str, float], float]:
    """The phases of the fastest of some rounds, and the fastest evaluation of all users."""
    seen: list[tuple[float, dict[str, float]]] = []
    evaluations: list[float] = []
    for number in range(SPLIT, SPLIT + turns):
        phases = Phases(run.world.device)
        with phases.watching(run.simulator):
            whole = seconds(partial(run.simulator.round, number), run.world.device)
        seen.append((whole, phases.seconds | {"other": whole - sum(phases.seconds.values())}))
        evaluations.append(seconds(partial(run.evaluate, "valid", number), run.world.device))
    return min(seen, key=lambda one: one[0])[1], min(evaluations)


def main(task: str, programs: str) -> dict[str, Any]:
    given = {name: Path(path) for name, path in json.loads(programs).items()}
    return measure_method(Task(**json.loads(task)), given)


if __name__ == "__main__":
    sys.exit(print_result(lambda: main(*sys.argv[1:])))
