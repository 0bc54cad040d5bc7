"""Whole pieces of work with a number of seconds that they may take on an accelerator, and whether they do.

`python -m fedrec_studies.bench.goals NAME DEVICE DATA SIZE` is one of them; DATA is synthetic, or movielens for the
data set that the synthetic world is as large as.
"""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch

from fedrec.experiment import Run
from fedrec.federation import Progress, Rules, run_rounds
from fedrec_studies.bench.machine import device_peak_gib, print_result, seconds, settle
from fedrec_studies.bench.task import Task
from fedrec_studies.bench.trace import trace_work

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
    "sasrec-bfloat16": Goal("sasrec", 100, 60.0, params={"products": "bfloat16"}),
    "fedgram": Goal("fedgram", 1, 4.0),
    "fedopt": Goal(
        "fedopt",
        2300,
        60.0,
        params={
            "backbone": "sasrec",
            "dim": "128",
            "length": "200",
            "clients_per_round": "256",
        },
    ),
}
REAL = {"100k": "ml-100k", "1m": "ml-1m"}  # what the synthetic worlds are as large as
WORLDS = (SYNTHETIC, MOVIELENS) = ("synthetic", "movielens")


def command_words(name: str, device: str, data: str, quick: bool) -> list[str]:
    return ["-m", "fedrec_studies.bench.goals", name, device, data, "quick" if quick else GOALS[name].size]


def task_of(goal: Goal, device: str, data: str, size: str) -> Task:
    chosen = REAL[size] if data == MOVIELENS and size in REAL else SYNTHETIC
    return Task(goal.method, data=chosen, size=size, device=device, params=goal.params)


def measure_goal(name: str, device: str, data: str, size: str) -> dict[str, Any]:
    """Time the whole task after rounds of set-up, and trace one round more."""
    goal, started = GOALS[name], time.perf_counter()
    task = task_of(goal, device, data, size)
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
    rounds = goal.rounds if size != "quick" else 2
    training, evaluating = _rounds(run, goal, rounds)
    whole = training + sum(evaluating)
    return {
        "goal": name,
        "method": goal.method,
        "params": goal.params,
        "data": task.label,
        "rounds": rounds,
        "every": goal.every,
        "seconds_data_and_set_up": made - started,
        "seconds_warm_up": ready - made,
        "seconds": whole,
        "seconds_round": training / rounds,
        "seconds_evaluation": sum(evaluating) / max(1, len(evaluating)),
        "within": goal.seconds,
        "met": whole <= goal.seconds,
        "peak_gib": device_peak_gib(at),
        **trace_work(partial(run.simulator.begin, WARM + rounds), at),
    }


def _rounds(run: Run, goal: Goal, rounds: int) -> tuple[float, list[float]]:
    """Seconds of so many rounds, as a run goes through them, and of each evaluation in between."""
    evaluating: list[float] = []

    def evaluate(number: int) -> None:
        if goal.every and (number + 1) % goal.every == 0:
            evaluating.append(seconds(partial(run.evaluate, "valid", number), run.world.device))

    rules = Rules(WARM + rounds, goal.every or WARM + rounds)
    work = partial(
        run_rounds, run.simulator, Progress(next_round=WARM), rules, evaluate, lambda: None, lambda log, score: None
    )
    whole = seconds(work, run.world.device)
    return whole - sum(evaluating), evaluating


if __name__ == "__main__":
    sys.exit(print_result(lambda: measure_goal(*sys.argv[1:])))
