"""FedCA and the methods it is compared with: where a round on MovieLens-100K goes, and how far they reach.

python -m benchmarks.fedca round [--against SCRIPT --data u.data]   seconds of every part of a round; SCRIPT is a plain
    program that prints {"seconds_per_round": ...} for `--work fedca`, run in turns with the kernel
python -m benchmarks.fedca scale METHOD CLIENTS ITEMS INTERACTIONS [key=value ...]   one round, with its peak of memory
"""

from __future__ import annotations

import argparse
import io
import json
import runpy
import sys
import time
from collections import defaultdict
from collections.abc import Callable
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import torch

from benchmarks import machine
from benchmarks.scale import peak_gib
from fedrec import data as rooms
from fedrec.data import one_user_per_client, synthetic
from fedrec.evaluation import protocol
from fedrec.experiment.params import build_method, parse_settings
from fedrec.experiment.prepare import prepare
from fedrec.federation.clients import ClientData
from fedrec.federation.contract import World
from fedrec.federation.simulator import Simulator
from fedrec.methods.mixture import fedca
from fedrec.methods.mixture.fedca import FedCA

ROUNDS = 5
PARTS = {  # the name of a part, and the function that it is
    "similarity": (fedca, "similarity"),
    "complementarity": (fedca, "complementarity"),
    "weights": (fedca, "composite_weights"),
    "mixing": (fedca, "mix"),
    "training": (FedCA, "fit"),
    "representation": (FedCA, "pictures"),
}


def split() -> dict[str, Any]:
    """The least seconds of every part over some rounds, after one that compiles."""
    prepared = prepare(rooms.load("ml-100k"), protocol("fedca"))
    world = World(items=prepared.n_items, clients=len(prepared.partition.offsets) - 1)
    spent: dict[str, float] = defaultdict(float)
    for name, (owner, function) in PARTS.items():
        setattr(owner, function, _timed(getattr(owner, function), name, spent))
    simulator, seen = Simulator(FedCA(), prepared.clients(world)), []
    simulator.round(0)
    for number in range(1, 1 + ROUNDS):
        spent.clear()
        seen.append({"round": simulator.round(number).seconds, **spent})
    return {name: min(turn[name] for turn in seen) for name in seen[0]}


def _timed(function: Callable[..., Any], name: str, spent: dict[str, float]) -> Callable[..., Any]:
    def timed(*args: Any, **options: Any) -> Any:
        started = time.perf_counter()
        found = function(*args, **options)
        spent[name] += time.perf_counter() - started
        return found

    return timed


def against(script: Path, data: Path) -> dict[str, Any]:
    """The plain program, in this process."""
    threads, arguments, printed = torch.get_num_threads(), sys.argv, io.StringIO()
    sys.argv = [str(script), "--data", str(data), "--work", "fedca", "--rounds", "1"]
    try:
        with redirect_stdout(printed):
            runpy.run_path(str(script), run_name="__main__")
    finally:
        sys.argv = arguments
        torch.set_num_threads(threads)
    found: dict[str, Any] = json.loads(printed.getvalue().splitlines()[-1])
    return found


def compared(script: Path | None, data: Path | None) -> dict[str, Any]:
    result: dict[str, Any] = {"machine": machine.describe(), "seconds": split()}
    if script is not None and data is not None:
        plain = against(script, data)
        again = split()  # behind it too: a machine that was busy for a while then shows
        result["seconds"] = {name: min(value, again[name]) for name, value in result["seconds"].items()}
        result["plain"] = plain
        result["ratio_training"] = plain["seconds_per_round"] / result["seconds"]["training"]
    return result


def scale(name: str, clients: int, items: int, interactions: int, settings: list[str]) -> dict[str, Any]:
    """Two rounds, then the scores of all users, on a synthetic world."""
    found, parts = synthetic(clients, items, interactions).interactions, one_user_per_client(clients)
    world = World(items=items, clients=clients)
    data = ClientData.build(world, found.user, found.item, users=parts.users, client_ptr=parts.offsets)
    simulator = Simulator(build_method(name, params=parse_settings(settings)), data)
    seconds = [simulator.round(number).seconds for number in range(2)]
    after_rounds = peak_gib()
    started, scored = time.perf_counter(), 0
    for users, _ in simulator.scores(2):
        scored += len(users)
        if time.perf_counter() - started > 60:  # enough to know the rate
            break
    return {
        "method": name, "clients": clients, "items": items, "interactions": len(data.items), "settings": settings,
        "seconds_round": min(seconds), "seconds_all": seconds, "peak_gib_rounds": after_rounds,
        "users_scored": scored, "seconds_scores": time.perf_counter() - started, "peak_gib": peak_gib(),
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.fedca", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)  # fmt: skip
    parser.add_argument("kind", choices=["round", "scale"])
    parser.add_argument("sizes", nargs="*", help="scale: METHOD CLIENTS ITEMS INTERACTIONS [key=value ...]")
    parser.add_argument("--against", type=Path)
    parser.add_argument("--data", type=Path)
    options = parser.parse_args()
    if (options.against is None) != (options.data is None):
        parser.error("give --against and --data together: the script is run on that file")
    if options.kind == "round":
        result = compared(options.against, options.data)
    else:
        name, clients, items, interactions, *settings = options.sizes
        result = scale(name, int(clients), int(items), int(interactions), settings)
    print(json.dumps(result, indent=2))


if __name__ == "__main__":
    main()
