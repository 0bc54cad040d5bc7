"""A FedMF round on MovieLens-100K: compiled kernel, batched torch, and one client at a time, in turns."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from statistics import median

import torch

from benchmarks.one_by_one import OneByOne
from fedrec import data as rooms
from fedrec.evaluation import protocol
from fedrec.experiment.prepare import prepare
from fedrec.federation.contract import World
from fedrec.federation.simulator import Simulator
from fedrec.methods.average.fedmf import FedMF

METHOD = FedMF(dim=32, lr=10.0, batch=256, epochs=1, optimiser="sgd")


@dataclass(frozen=True)
class Timing:
    """Seconds per round."""

    rounds: int
    min: float
    median: float

    @staticmethod
    def of(seconds: list[float]) -> Timing:
        return Timing(len(seconds), min(seconds), median(seconds))


def measure(turns: int, say: Callable[[str], None]) -> dict[str, object]:
    """Every turn: one round of the plain loop, 2 of the torch path, 50 of the kernel. Noise then hits them alike."""
    prepared = prepare(rooms.load("ml-100k"), protocol("honest"))
    clients = prepared.clients(World(items=prepared.n_items, clients=len(prepared.partition.offsets) - 1))
    compiled = Simulator(METHOD, clients)
    batched = Simulator(METHOD, replace(clients, world=replace(clients.world, compiled=False)))
    plain = OneByOne(clients, METHOD.dim, METHOD.lr, METHOD.batch)
    threads = torch.get_num_threads()
    say("ml-100k: compiling (the first time on a machine)")
    compiled.round(0)
    batched.round(0)
    seconds: dict[str, list[float]] = {"sampling": [], "one by one": [], "torch": [], "compiled": []}
    for turn in range(turns):
        say(f"ml-100k: turn {turn + 1} of {turns}")
        torch.set_num_threads(1)  # the plain loop is fastest so: its tensors are small
        sampling, training = plain.round()
        torch.set_num_threads(threads)
        seconds["sampling"].append(sampling)
        seconds["one by one"].append(training)
        seconds["torch"] += [batched.round(1 + 2 * turn + r).seconds for r in range(2)]
        seconds["compiled"] += [compiled.round(1 + 50 * turn + r).seconds for r in range(50)]
    timing = {name: Timing.of(values) for name, values in seconds.items()}
    fast, slow, torch_path = timing["compiled"], timing["one by one"], timing["torch"]
    return {
        "what": "seconds per FedMF round on ml-100k: training and averaging; sampling is included for fedrec "
        "(compiled, torch) and left out of 'one by one'",
        "clients": clients.world.clients,
        "items": clients.world.items,
        "interactions": len(clients.items),
        "timing": {name: asdict(value) for name, value in timing.items()},
        "ratio_one_by_one": {"min": slow.min / fast.min, "median": slow.median / fast.median},
        "ratio_one_by_one_with_sampling": {
            "min": (slow.min + timing["sampling"].min) / fast.min,
            "median": (slow.median + timing["sampling"].median) / fast.median,
        },
        "ratio_torch": {"min": torch_path.min / fast.min, "median": torch_path.median / fast.median},
    }
