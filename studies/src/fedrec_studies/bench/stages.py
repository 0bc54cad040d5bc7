"""Measure the stages of a FedCA round, as Table 8 of its paper has them.

    python -m fedrec_studies.bench.stages DATA cpu

Local training and SVD are of one client alone; the server's stages of all clients that a round aggregates. With the
settings of the paper.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from statistics import median
from typing import Any

import numpy as np

from fedrec import data as rooms
from fedrec.experiment import Run, RunConfig, plan_run
from fedrec_studies.bench.machine import print_result, seconds

SERVER = {"compare_tables": "Similarity", "compare_pictures": "Complementarity", "solve": "Optimization"}
"""What the server's functions are called in print."""
# CLIENTS are timed alone, TURNS times; LONG is more rounds than are ever run, so that no schedule ends early
CLIENTS, TURNS, LONG = 20, 5, 2_000


def stages(dataset: str, device: str = "cpu") -> dict[str, Any]:
    """Seconds by stage."""
    config = RunConfig("fedca", data=dataset, preset="paper", protocol="fedca", rounds=LONG, device=device)
    run = Run(plan_run(config, rooms.load(dataset)))
    run.simulator.round(0)  # kernels are compiled
    method: Any = run.simulator.method
    return {
        "data": dataset,
        "device": str(run.world.device),
        "clients": run.world.clients,
        "items": run.world.items,
        "aggregated": int(method.aggregated_fraction * run.world.clients),
        "seconds": _client(run, method) | _server(run),
    }


def _client(run: Run, method: Any) -> dict[str, float]:
    """Medians of clients that are evenly spread by number, one after another."""
    every = max(1, run.world.clients // CLIENTS)
    spent = [_alone(run, method, client) for client in range(0, run.world.clients, every)]
    return {"Local Training": median(train for train, _ in spent), "SVD": median(svd for _, svd in spent)}


def _alone(run: Run, method: Any, client: int) -> tuple[float, float]:
    chunk = run.simulator.data.chunk(np.array([client]))
    state = method.init_clients(run.world, chunk)
    user, tables = state.per_user["user"], {"item": state.per_client["item"]}
    fitted: list[Any] = []
    train = seconds(lambda: fitted.append(method.trainer.fit_own(chunk, 1, user, tables)), run.world.device)
    return train, seconds(lambda: method.represent(fitted[0][1]["item"], chunk, 1), run.world.device)


def _server(run: Run) -> dict[str, float]:
    spent: dict[str, list[float]] = {name: [] for name in SERVER}
    with _time_stages(spent, run):
        for number in range(1, TURNS + 1):
            run.simulator.round(number)
    return {SERVER[name]: median(some) for name, some in spent.items()}


@contextmanager
def _time_stages(spent: dict[str, list[float]], run: Run) -> Iterator[None]:
    """Time every call of the server's functions; a frozen method is changed by its dictionary."""
    method = run.simulator.method

    def time_call(function: Callable[..., Any], times: list[float], *arguments: Any) -> Any:
        found: list[Any] = []
        times.append(seconds(lambda: found.append(function(*arguments)), run.world.device))
        return found[0]

    try:
        for name, times in spent.items():
            vars(method)[name] = partial(time_call, getattr(method, name), times)
        yield
    finally:
        for name in spent:
            vars(method).pop(name, None)


if __name__ == "__main__":
    sys.exit(print_result(lambda: stages(*sys.argv[1:])))
