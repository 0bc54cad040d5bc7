"""One measurement in a process of its own, so that the peak of memory is that of this work alone.

python -m benchmarks.scale round 100000 20000 2000000     a FedMF round on a synthetic world
python -m benchmarks.scale personal 6040 3706 1000000     scoring and ranking with one table per client
"""

from __future__ import annotations

import json
import resource
import sys
import time
from pathlib import Path
from typing import Any

from benchmarks import machine
from benchmarks.speed import METHOD
from fedrec.data import one_user_per_client, synthetic
from fedrec.evaluation import Evaluator, protocol
from fedrec.experiment.prepare import prepare
from fedrec.federation.clients import ClientData
from fedrec.federation.contract import World
from fedrec.federation.simulator import Simulator
from fedrec.methods.reference.local import Local


def apart(kind: str, clients: int, items: int, interactions: int) -> dict[str, Any]:
    """Measure in a new process."""
    return machine.in_a_process("benchmarks.scale", kind, clients, items, interactions)


def one_round(clients: int, items: int, interactions: int) -> dict[str, Any]:
    """All interactions are trained on; the second round on, when everything is compiled and loaded."""
    data = _whole(clients, items, interactions)
    simulator = Simulator(METHOD, data)
    first = simulator.round(0).seconds
    seconds = [simulator.round(number).seconds for number in range(1, 4)]
    return {
        "clients": clients,
        "items": items,
        "interactions": len(data.items),
        "seconds_first_round": first,
        "seconds_round": min(seconds),
        "seconds_all": seconds,
        "microseconds_per_interaction": 1e6 * min(seconds) / len(data.items),
        "peak_gib": peak_gib(),
        "dense_tables_gib": clients * items * METHOD.dim * 4 / 2**30,
    }


def personal(clients: int, items: int, interactions: int) -> dict[str, Any]:
    """Every client with a table of its own: train once, then score all items and rank the held-out one."""
    rules = protocol("honest")
    prepared = prepare(synthetic(clients, items, interactions).interactions, rules)
    kept = prepared.source  # users with too few interactions are dropped
    simulator = Simulator(Local(dim=METHOD.dim), prepared.clients(World(items=kept.n_items, clients=kept.n_users)))
    simulator.round(0)
    started = time.perf_counter()
    for _ in simulator.scores(1):
        pass
    scored = time.perf_counter()
    evaluator = Evaluator(prepared.test, ks=rules.ks, ties=rules.ties, item_counts=prepared.item_counts())
    for users, scores in simulator.scores(1):
        evaluator.update(users, scores)
    evaluator.result()
    ended = time.perf_counter()
    return {
        "clients": kept.n_users,
        "items": kept.n_items,
        "seconds_round": simulator.round(1).seconds,
        "seconds_scores": scored - started,
        "seconds_scores_and_ranking": ended - scored,
        "peak_gib": peak_gib(),
    }


def _whole(clients: int, items: int, interactions: int) -> ClientData:
    found, parts = synthetic(clients, items, interactions).interactions, one_user_per_client(clients)
    return ClientData.build(
        World(items=items, clients=clients), found.user, found.item, users=parts.users, client_ptr=parts.offsets
    )


def peak_gib() -> float:
    """The most memory this process ever held. (ru_maxrss would count the parent's, from before the program began.)"""
    status = Path("/proc/self/status")
    if status.exists():
        line = next(line for line in status.read_text().splitlines() if line.startswith("VmHWM"))
        return int(line.split()[1]) / 2**20
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / (2**30 if sys.platform == "darwin" else 2**20)


if __name__ == "__main__":
    kind, *sizes = sys.argv[1:]
    work = {"round": one_round, "personal": personal}[kind]
    print(json.dumps(work(*(int(size) for size in sizes))))
