"""Rounds of whole methods on an accelerator: set-up, seconds, launches, waits, busy share; and equal to the processor.

PYTHONPATH=src python -m benchmarks.gpu_rounds [--only fedca fedrap] [--skip-equality] [--slowest 8]

Needs a CUDA device, torch, Triton, numpy and scipy, and nothing else. On data of the size of MovieLens-1M (CGFedRec:
MovieLens-100K) every method runs as long as its target says, with evaluation where the target has it. Before, two
rounds of each on a small world are compared with torch on the processor, in double precision. Ends with 1 where a
method fails or differs.
"""

from __future__ import annotations

import argparse
import time
import warnings
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity, profile

from benchmarks.gpu_kernels import COPIES, CUDA, LARGE, LAUNCHES, MEMORY, SMALL, WAITS, attempt, clients_of
from fedrec.evaluation.evaluator import Evaluator
from fedrec.evaluation.targets import Targets
from fedrec.federation.clients import ClientData
from fedrec.federation.contract import Method
from fedrec.federation.simulator import Simulator
from fedrec.federation.stages import parse_stages
from fedrec.methods.average.fedmf import FedMF
from fedrec.methods.average.fedopt import FedOpt
from fedrec.methods.closed_form.fedgram import FedGram
from fedrec.methods.cluster.cgfedrec import CGFedRec
from fedrec.methods.cluster.contrast import SupCon
from fedrec.methods.mixture.fedca import FedCA
from fedrec.methods.personal.fedrap import FedRAP
from fedrec.methods.personal.fedrkg import FedRKG
from fedrec.methods.reference.sasrec import CentralSASRec

HUNDRED = {"clients": 943, "items": 1_682, "interactions": 100_000}
WARM = 2  # rounds of set-up: kernels are compiled, memory is taken
CLOSE = 1e-8  # of the largest entry, in double precision


@dataclass(frozen=True)
class Case:
    """What is asked of a method: so many rounds within so many seconds."""

    make: Callable[[], Method]
    rounds: int
    target: float  # seconds of all rounds, with evaluation
    timed: int | None = None  # rounds that are run; None: all
    every: int | None = None  # rounds between two evaluations; None: one at the end, outside the target
    size: str = "large"
    central: bool = False
    small: Callable[[], Method] | None = None  # the same for a small world; None: as it is
    privacy: str = ""  # stages that uploads pass


CASES = {
    "fedmf": Case(lambda: FedMF(dim=32, lr=10.0, batch=256), 100, 3.0, every=1),
    "fedrkg": Case(lambda: FedRKG(dim=32), 1000, 30.0, every=50, small=lambda: FedRKG(dim=8, interval=2)),
    "fedca": Case(FedCA, 1, 1.0, timed=2),
    "fedrap": Case(lambda: FedRAP(dim=32), 1, 0.3, timed=3),
    "cgfedrec": Case(CGFedRec, 100, 30.0, size="hundred", small=lambda: CGFedRec(clusters=5)),
    "sasrec": Case(CentralSASRec, 100, 60.0, central=True, small=lambda: CentralSASRec(batch=8)),
    "sasrec ce": Case(
        lambda: CentralSASRec(loss="ce"),
        100,
        60.0,
        timed=4,
        central=True,
        small=lambda: CentralSASRec(loss="ce", batch=8),
    ),
    "fedopt": Case(
        lambda: FedOpt(
            **FedOpt.info.backbones["sasrec"]
            | {"backbone": "sasrec", "dim": 128, "length": 200, "clients_per_round": 256}
        ),
        2300,
        60.0,
        timed=100,
        small=lambda: FedOpt(backbone="sasrec", loss="ce", dim=8, length=20, clip=0.5, server_lr=0.01, init_std=0.1),
        privacy="quantise=8",
    ),
    "fedgram": Case(FedGram, 1, 4.0, timed=1),
    "fedgram order": Case(lambda: FedGram(order=True), 1, 4.0, timed=1),
}


# -- worlds --


def held_out(data: ClientData) -> Targets:
    """One item of every user that is not among its training items."""
    rng, counts = np.random.default_rng(1), np.diff(data.user_ptr)
    drawn = rng.integers(0, data.world.items - counts)
    gap, ends = data.pool.gap, data.pool.indptr
    item = [rank + np.searchsorted(gap[ends[k] : ends[k + 1]], rank, side="right") for k, rank in enumerate(drawn)]
    trained = np.repeat(data.users, counts), data.items
    return Targets.build((data.users, np.array(item)), [trained], data.world.items)


def in_one_place(data: ClientData) -> ClientData:
    """All users with one client."""
    users = np.repeat(np.arange(len(data.users)), np.diff(data.user_ptr))
    return ClientData.build(replace(data.world, clients=1), users, data.items, users=data.users,
                            client_ptr=np.array([0, len(data.users)]))  # fmt: skip


def evaluated(simulator: Simulator, targets: Targets, round: int) -> float:
    evaluator = Evaluator(targets, ks=(10,), metrics=("recall", "ndcg"))
    for users, scores in simulator.scores(round):
        evaluator.update(users, scores)
    return evaluator.result().mean()["ndcg@10"]


# -- equality --


def same(name: str, small: ClientData) -> bool:
    """Whether two rounds end with what torch on the processor ends with."""
    case = CASES[name]
    make = case.small or case.make
    data = in_one_place(small) if case.central else small
    near = replace(data, world=replace(data.world, device=torch.device("cpu"), compiled=False))
    ours, theirs = (run_small(make(), place) for place in (data, near))
    apart = {key: float((ours[key] - value).abs().max() / value.abs().max().clamp(min=1e-300))
             for key, value in theirs.items() if value.numel()}  # fmt: skip
    far, good = max(apart, key=lambda key: apart[key]), max(apart.values()) <= CLOSE
    print(f"{'ok  ' if good else 'FAIL'} {name:14} largest difference {apart[far]:.1e}, in {far}", flush=True)
    return good


def same_contrast() -> bool:
    """Whether the contrastive loss in single precision is that of torch in double precision, and repeats."""
    labels, tables = torch.arange(1_682, device=CUDA) % 50, torch.randn(40, 1_682, 32, device=CUDA)
    loss, slope = SupCon(labels, form="released")(tables)
    again = SupCon(labels, form="released")(tables)
    exact, expected = SupCon(labels, form="released", compiled=False)(tables.double())
    apart = float((loss - exact).abs().max() / exact.abs().max())
    slopes_apart = float((slope - expected).abs().max() / expected.abs().max())
    good = max(apart, slopes_apart) < 1e-4 and torch.equal(loss, again[0]) and torch.equal(slope, again[1])
    print(f"{'ok  ' if good else 'FAIL'} contrast       loss differs by {apart:.1e}, slope by {slopes_apart:.1e}")
    return good


def run_small(method: Method, data: ClientData) -> dict[str, Tensor]:
    """What the server and clients hold after two rounds, and what users' items score then."""
    simulator = Simulator(method, data)
    for number in range(2):
        simulator.round(number)
    held = simulator.server | simulator.client_side.tensors()
    found = {key: value.double().cpu() for key, value in held.items()}
    scores = torch.cat([scores for _, scores in simulator.scores(1)])
    return found | {"scores": scores.double().cpu()}


# -- time --


def timed(name: str, data: ClientData, targets: Targets, slowest: int) -> None:
    case = CASES[name]
    data = in_one_place(data) if case.central else data
    started = time.perf_counter()
    simulator = Simulator(case.make(), data, parse_stages(case.privacy), memory=MEMORY)
    for number in range(WARM):
        simulator.round(number)
    evaluated(simulator, targets, WARM - 1)
    torch.cuda.synchronize()
    ready = time.perf_counter() - started
    torch.cuda.reset_peak_memory_stats()
    rounds, number = case.timed or case.rounds, WARM
    training, evaluating, times = 0.0, 0.0, 0
    for number in range(WARM, WARM + rounds):
        training += clocked(partial(simulator.round, number))
        if case.every and (number - WARM + 1) % case.every == 0:
            evaluating, times = evaluating + clocked(partial(evaluated, simulator, targets, number)), times + 1
    each = training / rounds
    whole = (training + evaluating) * case.rounds / rounds
    once = evaluating / times if times else clocked(partial(evaluated, simulator, targets, number))
    print(f"{name:14} set-up {ready:.2f} s, a round {1e3 * each:.2f} ms, an evaluation {1e3 * once:.1f} ms; "
          f"{case.rounds} rounds {whole:.2f} s, target {case.target:g} s: "
          f"{'met' if whole <= case.target else 'MISSED'} ({rounds} run, "
          f"{torch.cuda.max_memory_allocated() / 2**30:.1f} GiB)", flush=True)  # fmt: skip
    ordinary = WARM + rounds
    traced_round("a round", partial(simulator.round, ordinary), slowest)
    if isinstance(simulator.method, FedRKG):
        traced_round("with guidance", partial(simulator.round, simulator.method.interval - 1), slowest)
    traced_round("an evaluation", partial(evaluated, simulator, targets, ordinary), slowest // 2)


def clocked(work: Callable[[], object]) -> float:
    started = time.perf_counter()
    work()
    torch.cuda.synchronize()
    return time.perf_counter() - started


def traced_round(what: str, work: Callable[[], object], slowest: int) -> None:
    """Launches, waits, copies and the longest kernels of one piece of work, and how much of its time they fill."""
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as traced:
        clocked(work)
    events = traced.key_averages()
    told = {kind: sum(event.count for event in events if event.key in names)
            for kind, names in (("launches", LAUNCHES), ("waits", WAITS), ("copies", COPIES))}  # fmt: skip
    kernels = [event for event in events if event.device_type == DeviceType.CUDA]
    busy, wall = sum(event.self_device_time_total for event in kernels) / 1e3, 1e3 * clocked(work)
    print(f"    {what}: {told['launches']} launches, {told['waits'] - 1} waits, {told['copies']} copies; on the device "
          f"{busy:.2f} ms, {100 * busy / wall:.0f} % of {wall:.2f} ms", flush=True)  # fmt: skip
    for event in sorted(kernels, key=lambda event: -event.self_device_time_total)[:slowest]:
        print(f"      {event.self_device_time_total / 1e3:8.3f} ms {event.count:6d} x {event.key[:100]}")
    for place, times in Counter(waiting(work)).most_common(slowest):
        print(f"               {times:6d} waits at {place}", flush=True)


def waiting(work: Callable[[], object]) -> list[str]:
    """Where in the code the host waits for the device, once for every time."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        torch.cuda.set_sync_debug_mode("warn")
        try:
            work()
        finally:
            torch.cuda.set_sync_debug_mode("default")
    told = [found for found in caught if str(found.message).startswith("called a synchroniz")]
    return [f"{Path(found.filename).name}:{found.lineno}" for found in told]


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu_rounds", description=__doc__.splitlines()[0])
    parser.add_argument("--only", nargs="+", choices=list(CASES), default=list(CASES), help="these methods")
    parser.add_argument("--skip-equality", action="store_true", help="time alone")
    parser.add_argument("--slowest", type=int, default=6, help="kernels that are named (default: %(default)s)")
    options = parser.parse_args()
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}", flush=True)
    good = True
    if not options.skip_equality:
        small = clients_of(**SMALL, dtype=torch.float64)
        good &= attempt("contrast", same_contrast)
        for name in options.only:
            good &= attempt(name, partial(same, name, small))
    worlds = {"large": LARGE, "hundred": HUNDRED}
    for size in {CASES[name].size for name in options.only}:
        data = clients_of(**worlds[size])
        targets = held_out(data)
        for name in options.only:
            if CASES[name].size == size:
                good &= attempt(name, partial(timed, name, data, targets, options.slowest))
                torch.cuda.empty_cache()
    return 0 if good else 1


if __name__ == "__main__":
    raise SystemExit(main())
