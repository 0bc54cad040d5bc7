"""The kernels of an accelerator: equal to torch on the same device, equal to themselves, and how long they take.

PYTHONPATH=src python -m benchmarks.gpu_kernels [--quick] [--rounds 20]

Needs a CUDA device, torch, Triton, numpy and scipy, and nothing else. First every kernel is compared with the torch
program; then rounds of several methods are timed on data of the size of MovieLens-1M, with launches and waits of a
round as torch's profiler counts them; then the parts of a FedMF round, and training by the shape of its programs.
Ends with 1 where a kernel fails, or differs from torch or from itself.
"""

from __future__ import annotations

import argparse
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property, partial
from types import ModuleType
from typing import Any

import numpy as np
import torch
import triton
from torch import Tensor
from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity, profile

from fedrec.federation.clients import Chunk, ClientData
from fedrec.federation.contract import Method, PartialSum, Rows, Tensors, World
from fedrec.federation.simulator import Simulator
from fedrec.kernels import ncf_triton, rows_triton
from fedrec.kernels.arguments import Data, Keys
from fedrec.kernels.draws_triton import draw
from fedrec.methods.average.fedavg import FedAvg
from fedrec.methods.average.fedmf import FedMF
from fedrec.methods.personal.pfedrec import PFedRec
from fedrec.methods.reference.local import Local
from fedrec.random import Purpose, stream
from fedrec.training.descent import Fitted
from fedrec.training.local_training import IN_TURN, LocalMethod, LocalTrainer

CUDA = torch.device("cuda")
LARGE = {"clients": 6_040, "items": 3_706, "interactions": 1_000_000}
SMALL = {"clients": 150, "items": 500, "interactions": 6_000}
MEMORY = 64 << 30
CLOSE = {torch.float64: 1e-10, torch.float32: 2e-4}  # of the largest entry
LAUNCHES = ("cudaLaunchKernel", "cudaLaunchKernelExC", "cuLaunchKernel", "cuLaunchKernelEx")
WAITS = ("cudaStreamSynchronize", "cudaEventSynchronize", "cudaDeviceSynchronize")
COPIES = ("cudaMemcpyAsync", "cudaMemcpy", "cudaMemsetAsync")
SHAPES = [(32, 1), (32, 2), (32, 4), (64, 2), (64, 4), (64, 8), (128, 4), (128, 8)]  # lanes, warps


def clients_of(clients: int, items: int, interactions: int, dtype: torch.dtype = torch.float32) -> ClientData:
    """Users of very different activity, items of very different popularity, nobody twice at one item."""
    rng = np.random.default_rng(0)
    activity = rng.lognormal(0.0, 1.0, clients)
    counts = np.clip(activity / activity.sum() * interactions, 2, items * 0.6).astype(np.int64)
    appeal = np.log(1.0 / (10.0 + np.arange(items)))
    item = np.concatenate([np.argpartition(-(appeal + rng.gumbel(size=items)), count)[:count] for count in counts])
    world = World(items=items, clients=clients, dtype=dtype, device=CUDA)
    return ClientData.build(world, np.repeat(np.arange(clients), counts), item, users=np.arange(clients),
                            client_ptr=np.arange(clients + 1))  # fmt: skip


# -- equality --


@dataclass(frozen=True)
class InTurn(LocalMethod):
    @cached_property
    def trainer(self) -> LocalTrainer:
        return LocalTrainer(self, phases=IN_TURN)


@dataclass(frozen=True)
class Pulled(LocalMethod):
    @cached_property
    def trainer(self) -> LocalTrainer:
        return LocalTrainer(self, pull=0.1)


BASE: dict[str, Any] = {"dim": 20, "init_std": 0.3, "batch": 64, "epochs": 2, "lr": 0.05}
HEAD: dict[str, Any] = {**BASE, "backbone": "linear", "weight_decay_dense": 0.01}
NETWORK: dict[str, Any] = {**BASE, "backbone": "ncf", "lr_item": 1.0, "weight_decay_dense": 0.01}
CASES: dict[str, tuple[LocalMethod, bool]] = {  # and whether every client has its own table
    "mf sgd": (LocalMethod(**BASE), False),
    "mf sgd, one batch": (LocalMethod(**BASE | {"batch": 100_000}), False),
    "mf sgd, dim 32, batch 256": (LocalMethod(**BASE | {"dim": 32, "batch": 256}), False),
    "mf sgd, dim 300": (LocalMethod(**BASE | {"dim": 300, "init_std": 0.1}), False),  # a row in several warps
    "mf adam, dim 300": (LocalMethod(**BASE | {"dim": 300, "init_std": 0.1}, optimiser="adam"), False),
    "mf sgd, own tables": (LocalMethod(**BASE), True),
    "mf sgd, sum, early exit": (LocalMethod(**BASE | {"reduction": "sum", "epochs": 6, "early_exit": 0.02}), False),
    "mf sgd in turn": (InTurn(**BASE), False),
    "mf bpr": (LocalMethod(**BASE, loss="bpr"), False),
    "mf adam": (LocalMethod(**BASE, optimiser="adam"), False),
    "mf adam, bpr, own tables": (LocalMethod(**BASE, optimiser="adam", loss="bpr"), True),
    "mf adam, pulled back": (Pulled(**BASE, optimiser="adam"), False),
    "linear": (LocalMethod(**HEAD), False),
    "linear in turn, own tables": (InTurn(**HEAD), True),
    "ncf sgd": (LocalMethod(**NETWORK), False),
    "ncf sgd, dim 32, batch 256": (LocalMethod(**NETWORK | {"dim": 32, "batch": 256}), False),
    "ncf adam, bpr, own tables": (LocalMethod(**NETWORK, optimiser="adam", loss="bpr"), True),
    "ncf adam in turn": (InTurn(**NETWORK, optimiser="adam"), False),
}


def same(name: str, data: ClientData) -> bool:
    """Whether a kernel agrees with torch and, bit by bit, with itself."""
    method, own = CASES[name]
    first, again, plain = (found(method, data, own, compiled) for compiled in (True, True, False))
    apart = {key: float((first[key] - plain[key]).abs().max() / plain[key].abs().max()) for key in plain}
    repeats = all(torch.equal(first[key], again[key]) for key in first)
    good = repeats and max(apart.values()) <= CLOSE[data.world.dtype]
    told = "  ".join(f"{key} {value:.1e}" for key, value in apart.items())
    print(f"{'ok  ' if good else 'FAIL'} {name:30} {str(data.world.dtype)[6:]}  "
          f"{'repeats' if repeats else 'DOES NOT REPEAT'}  {told}", flush=True)  # fmt: skip
    return good


def attempt(name: str, work: Callable[[], bool | None]) -> bool:
    """What fails is told, and the rest goes on: time on a device is dear."""
    try:
        return work() is not False
    except Exception:
        print(f"FAIL {name}\n{traceback.format_exc()}", flush=True)
        return False


def found(method: LocalMethod, data: ClientData, own: bool, compiled: bool) -> Tensors:
    """What one round of all clients ends with."""
    data = replace(data, world=replace(data.world, compiled=compiled))
    chunk = data.chunk(np.arange(data.world.clients), foldable=True)
    fitted = fit(method, chunk, own)
    if compiled and not own:
        assert isinstance(fitted.table, PartialSum), "the kernel was not used"
    total, count = chunk.observed["loss"]
    loss = torch.tensor([total / count], dtype=torch.float64)
    ends = {"loss": loss, "table": table_of(fitted, data)} | {
        name: value.double() for name, value in fitted.dense.items()
    }
    return ends | ({"user": fitted.user.double()} if fitted.user.numel() else {})


def fit(method: LocalMethod, chunk: Chunk, own: bool, round: int = 0) -> Fitted:
    world, count = chunk.world, len(chunk.clients)
    table = method.trainer.init_items(world)
    if own:
        table = table + torch.arange(count, device=CUDA, dtype=world.dtype)[:, None, None] / count
    dense = {name: value.repeat(count, *[1] * value.dim()) for name, value in method.trainer.init_dense(world).items()}
    return method.trainer.fit(chunk, round, method.trainer.init_users(world, chunk.users), table, dense)


def table_of(fitted: Fitted, data: ClientData) -> Tensor:
    """Own tables, or the sum of the changes of a common one."""
    table = fitted.table
    if isinstance(table, PartialSum):
        return table.total
    if isinstance(table, Rows):
        change = torch.zeros(table.base.shape, dtype=torch.float64, device=CUDA)
        return change.index_add_(0, table.item, (table.value - table.base[table.item]).double())
    return table.double()


# -- time --

METHODS: dict[str, Callable[[], Method]] = {
    "fedmf": lambda: FedMF(dim=32, lr=10.0, batch=256),
    "fedmf, 5 epochs": lambda: FedMF(dim=32, lr=10.0, batch=256, epochs=5),
    "fedmf, adam": lambda: FedMF(dim=32, lr=0.01, batch=256, optimiser="adam"),
    "pfedrec": lambda: PFedRec(dim=32),
    "fedncf": lambda: FedAvg(backbone="ncf", dim=32, optimiser="adam", lr=0.01, init_std=0.1, batch=256),
    "local": lambda: Local(dim=32, batch=256),
}


def time_torch(data: ClientData) -> None:
    """The same without kernels, which is what they replace."""
    simulator = Simulator(METHODS["fedmf"](), replace(data, world=replace(data.world, compiled=False)), memory=MEMORY)
    simulator.round(0)
    seconds = [simulator.round(number).seconds for number in (1, 2)]
    print(f"fedmf, torch alone {1e3 * min(seconds):.2f} ms a round", flush=True)


def time_rounds(name: str, data: ClientData, rounds: int) -> None:
    """Wall time of whole rounds of the simulator, and what the profiler counts in three of them."""
    started = time.perf_counter()
    simulator = Simulator(METHODS[name](), data, memory=MEMORY)
    simulator.round(0)
    torch.cuda.synchronize()
    first = time.perf_counter() - started
    for number in range(1, 4):
        simulator.round(number)
    torch.cuda.synchronize()
    started = time.perf_counter()
    for number in range(4, 4 + rounds):
        simulator.round(number)
    torch.cuda.synchronize()
    each = (time.perf_counter() - started) / rounds
    print(f"{name:18} first round with set-up {first:.2f} s, then {1e3 * each:.2f} ms a round", flush=True)
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as traced:
        for number in range(100, 103):
            simulator.round(number)
    show_trace(traced, 3, each)


def show_trace(traced: profile, rounds: int, each: float) -> None:
    events = traced.key_averages()
    for kind, names in (("launches", LAUNCHES), ("waits", WAITS), ("copies", COPIES)):
        told = {event.key: event.count / rounds for event in events if event.key in names}
        print(f"    {kind:9} {sum(told.values()):7.1f} a round  {told}")
    kernels = [event for event in events if event.device_type == DeviceType.CUDA]
    busy = sum(event.self_device_time_total for event in kernels) / rounds / 1e3
    print(f"    on the device {busy:.2f} ms a round, {100 * busy / (1e3 * each):.0f} % of the wall time; longest:")
    for event in sorted(kernels, key=lambda event: -event.self_device_time_total)[:8]:
        took, times = event.self_device_time_total / rounds / 1e3, event.count / rounds
        print(f"      {took:8.3f} ms {times:6.1f} x {event.key[:90]}")


def milliseconds(work: Callable[[], Any], times: int = 20) -> float:
    for _ in range(3):
        work()
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    for _ in range(times):
        work()
    end.record()
    torch.cuda.synchronize()
    return begin.elapsed_time(end) / times


def parts_of_a_round(data: ClientData, shapes: list[tuple[int, int]]) -> None:
    """FedMF's draws, training and sum by themselves, and training by lanes and warps of a program."""
    world, slots = data.world, data.negatives
    keys = Keys(*(np.uint64(stream(world.seed, kind, 0)) for kind in (Purpose.NEGATIVES, Purpose.ORDER)))
    everyone = np.arange(world.clients)
    of = Data(everyone, everyone, data.users, data.user_ptr, data.items, data.pool.indptr, data.pool.gap, False)
    method = FedMF(dim=32)
    table, user = method.trainer.init_items(world)[None], method.trainer.init_users(world, data.users)
    drawn = draw(of, world.items, slots, keys, CUDA)
    loss, seen = (torch.zeros(world.clients, dtype=kind, device=CUDA) for kind in (torch.float64, torch.int64))
    weight, total = torch.ones_like(loss), torch.empty(table.shape[1:], dtype=torch.float64, device=CUDA)
    by = rows_triton.Training(rate_vector=10.0, rate_row=10.0, batch=256, epochs=1, mean=True, early_exit=0.0, phases=1)

    def train() -> Tensor:
        return rows_triton.train(drawn, slots, keys, by, user.clone(), None, table, True, table[:0], loss, seen)

    rows = train()
    print(f"a round of fedmf: {int(drawn.row_ptr[-1]):,} rows for {len(drawn.row):,} samples")
    for name, work in {
        "draw and number": lambda: draw(of, world.items, slots, keys, CUDA),
        "order by item": drawn.by_item,
        "order and sum": lambda: rows_triton.add_changes(drawn, rows, table, weight, total),
    }.items():
        print(f"    {name:16} {milliseconds(work):7.3f} ms")
    for shape in with_shapes(rows_triton, shapes):
        print(f"    train            {milliseconds(train):7.3f} ms with {shape}", flush=True)


def network_by_shape(data: ClientData, shapes: list[tuple[int, int]]) -> None:
    """FedNCF's training, with draws and sum, by lanes and warps of a program."""
    method, chunk = METHODS["fedncf"](), data.chunk(np.arange(data.world.clients), foldable=True)
    assert isinstance(method, LocalMethod)
    for shape in with_shapes(ncf_triton, shapes):
        print(
            f"    fedncf           {milliseconds(partial(fit, method, chunk, False), 5):7.3f} ms with {shape}",
            flush=True,
        )


def with_shapes(module: ModuleType, shapes: list[tuple[int, int]]) -> Iterator[str]:
    """In words, while programs have so many lanes and warps: first as they usually have, then by `shapes`."""
    usual = rows_triton.LANES, module.WARPS
    for lanes, warps in [usual, *shapes, usual]:
        rows_triton.LANES, module.WARPS = lanes, warps
        yield f"{lanes} lanes and {warps} warps"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu_kernels", description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="equality of a few cases and FedMF's rounds alone")
    parser.add_argument("--rounds", type=int, default=20, help="that are timed (default: %(default)s)")
    options = parser.parse_args()
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, triton {triton.__version__}", flush=True)
    good = True
    for dtype in CLOSE:
        small = clients_of(**SMALL, dtype=dtype)
        for name in list(CASES)[: 3 if options.quick else None]:
            good &= attempt(name, partial(same, name, small))
    large = clients_of(**LARGE)
    print(f"{large.world.clients:,} clients, {large.world.items:,} items, {len(large.items):,} interactions, "
          f"at most {int(large.positives.max()):,} of one client", flush=True)  # fmt: skip
    for name in list(METHODS)[: 1 if options.quick else None]:
        good &= attempt(name, partial(time_rounds, name, large, options.rounds))
    good &= attempt("parts", partial(parts_of_a_round, large, [] if options.quick else SHAPES))
    if not options.quick:
        good &= attempt("shapes", partial(network_by_shape, large, SHAPES[2:6]))
        good &= attempt("torch", partial(time_torch, large))
    return 0 if good else 1


if __name__ == "__main__":
    raise SystemExit(main())
