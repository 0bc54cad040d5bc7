"""Whole pieces of work with a number of seconds that they may take on an accelerator, and whether they do.

`python -m fedrec.bench.goals NAME DEVICE SIZE` is one of them.
"""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch

from fedrec.bench.machine import device_peak_gib, seconds, settle, told
from fedrec.bench.task import Task
from fedrec.bench.trace import traced
from fedrec.experiment.run import Run

WARM = 2  # rounds of set-up: kernels are compiled, memory is taken


@dataclass(frozen=True)
class Goal:
    """So many rounds of a method within so many seconds."""

    method: str
    rounds: int
    seconds: float
    every: int | None = None  # rounds between two evaluations, which count; None: none
    size: str = "1m"
    params: dict[str, Any] = field(default_factory=dict)


GOALS = {
    "fedmf": Goal("fedmf", 100, 3.0),
    "fedrkg": Goal("fedrkg", 1000, 30.0, every=50, params={"dim": "32"}),
    "fedca": Goal("fedca", 1, 1.0, params={"epochs": "10"}),
    "fedrap": Goal("fedrap", 1, 0.3, params={"dim": "32"}),
    "cgfedrec": Goal("cgfedrec", 100, 30.0, size="100k"),
    "sasrec": Goal("sasrec", 100, 60.0),
    "fedgram": Goal("fedgram", 1, 4.0),
}


def words(name: str, device: str, quick: bool) -> list[str]:
    return ["-m", "fedrec.bench.goals", name, device, "quick" if quick else GOALS[name].size]


def reached(name: str, device: str, size: str) -> dict[str, Any]:
    """The whole piece, timed after rounds of set-up, and a trace of one round more."""
    goal, started = GOALS[name], time.perf_counter()
    task = Task(goal.method, size=size, device=device, params=goal.params)
    run = task.run(task.interactions())
    at = run.world.device
    made = time.perf_counter()
    for number in range(WARM):
        run.simulator.round(number)
    run.evaluate("valid", WARM - 1)
    settle(at)
    ready = time.perf_counter()
    if at.type == "cuda":
        torch.cuda.reset_peak_memory_stats(at)
    training, evaluating = _rounds(run, goal, goal.rounds if size != "quick" else 2)
    return {
        "goal": name, "method": goal.method, "params": goal.params, "data": task.label, "rounds": len(training),
        "every": goal.every, "seconds_data_and_set_up": made - started, "seconds_warm_up": ready - made,
        "seconds": sum(training) + sum(evaluating), "seconds_round": sum(training) / len(training),
        "seconds_evaluation": sum(evaluating) / max(1, len(evaluating)), "within": goal.seconds,
        "met": sum(training) + sum(evaluating) <= goal.seconds, "peak_gib": device_peak_gib(at),
        **traced(partial(run.simulator.round, WARM + len(training)), at),
    }  # fmt: skip


def _rounds(run: Run, goal: Goal, rounds: int) -> tuple[list[float], list[float]]:
    training, evaluating = [], []
    for number in range(WARM, WARM + rounds):
        training.append(seconds(partial(run.simulator.round, number), run.world.device))
        if goal.every and (number - WARM + 1) % goal.every == 0:
            evaluating.append(seconds(partial(run.evaluate, "valid", number), run.world.device))
    return training, evaluating


if __name__ == "__main__":
    sys.exit(told(lambda: reached(*sys.argv[1:])))
