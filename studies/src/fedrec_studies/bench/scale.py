"""Growth: a round's time and memory against clients, items and interactions, every point in a process of its own.

`python -m fedrec_studies.bench.scale METHOD CLIENTS ITEMS INTERACTIONS` is one point; processes that torchrun starts
share it.
"""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, astuple, dataclass
from functools import partial
from typing import Any

import numpy as np
import torch

from fedrec.errors import explain, unknown
from fedrec.experiment import build_method, require_room, require_room_for_uploads
from fedrec.federation import ClientData, Pool, Simulator, World, join_processes, pointers
from fedrec_studies.bench.machine import Elsewhere, describe, in_a_process, peak_gib, print_result
from fedrec_studies.bench.phases import Phases, split_kernel
from fedrec_studies.bench.result_file import Row, RowFile

CPU = torch.device("cpu")
LITTLE = 1e-3  # GiB: a slope over logarithms needs growth above zero, also where the process had the memory already
CLASSES = {"fedmf": "sums", "fedca": "gathers every table", "pfedrec": "own tables", "fedgram": "closed form"}
PER_CLIENT = 20  # interactions, where clients grow
SIZES: dict[tuple[str, str], tuple[tuple[int, int], tuple[int, ...]]] = {
    ("fedmf", "clients"): ((0, 20_000), (1_000, 10_000, 100_000, 1_000_000)),
    ("fedmf", "items"): ((10_000, 0), (1_000, 10_000, 100_000, 1_000_000)),
    ("fedmf", "interactions"): ((10_000, 5_000), (100_000, 1_000_000, 10_000_000)),
    ("fedca", "clients"): ((0, 1_000), (300, 1_000, 3_000)),
    ("fedca", "items"): ((300, 0), (1_000, 10_000, 30_000)),
    ("fedca", "interactions"): ((300, 1_000), (6_000, 20_000, 60_000)),
    ("pfedrec", "clients"): ((0, 1_000), (1_000, 3_000, 10_000)),
    ("pfedrec", "items"): ((300, 0), (1_000, 10_000, 50_000)),
    ("pfedrec", "interactions"): ((1_000, 1_000), (20_000, 60_000, 200_000)),
    ("fedgram", "clients"): ((0, 1_000), (1_000, 10_000, 100_000)),
    ("fedgram", "items"): ((1_000, 0), (1_000, 3_000, 6_000, 100_000)),
    ("fedgram", "interactions"): ((1_000, 1_000), (20_000, 60_000, 200_000)),
}
"""By method and axis: clients and items where they stay, and the sizes along the axis. The last ones take minutes."""
MILLION = ("fedmf", 1_000_000, 20_000, 20_000_000)


@dataclass(frozen=True)
class Point:
    """A world to run rounds in. `processes` share its clients."""

    method: str
    clients: int
    items: int
    interactions: int
    processes: int = 1

    def command_words(self) -> list[str]:
        """Name the command that measures this point."""
        own = ["-m", "fedrec_studies.bench.scale", *map(str, astuple(self)[:4])]
        shared = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(self.processes)]
        return own if self.processes == 1 else [*shared, *own]


@dataclass(frozen=True)
class Series:
    """Points that differ in one axis."""

    method: str
    axis: str
    points: tuple[Point, ...]


def series(quick: bool) -> Iterator[Series]:
    """For every class of methods one method, along each axis."""
    for (method, axis), (fixed, sizes) in SIZES.items():
        chosen = sizes[: 2 if quick else None]
        yield Series(method, axis, tuple(Point(method, *_along(fixed, axis, size)) for size in chosen))


def _along(fixed: tuple[int, int], axis: str, size: int) -> tuple[int, int, int]:
    """More clients have as many interactions each; more items leave clients and interactions as they are."""
    clients, items = (size if axis == name else value for name, value in zip(("clients", "items"), fixed, strict=True))
    return clients, items, size if axis == "interactions" else PER_CLIENT * clients


def measure(quick: bool, methods: Sequence[str], kept: RowFile, command: str, say: Callable[[str], None]) -> Row:
    """`{"machine": ..., "points": [...], "series": [...]}`; also a million clients in one process and in two."""
    for name in methods:
        if name not in CLASSES:
            raise unknown("method of the scale study", name, CLASSES)
    kept.begin(describe(CPU), command)
    if not methods or MILLION[0] in methods:
        for point in largest(quick):
            _measure_point(point, kept, say)
    for one in series(quick):
        for point in one.points if not methods or one.method in methods else ():
            if "refused" in _measure_point(point, kept, say):
                break
    return kept.complete(series=[grown for one in series(quick) if (grown := _grow_series(one, kept.found["points"]))])


def largest(quick: bool) -> list[Point]:
    """The same round in one process and in two."""
    name, clients, items, interactions = ("fedmf", 1_000, 200, 20_000) if quick else MILLION
    return [Point(name, clients, items, interactions, processes) for processes in (1, 2)]


def _measure_point(point: Point, kept: RowFile, say: Callable[[str], None]) -> Row:
    text = (
        f"{point.method}: {point.clients:,} clients, {point.items:,} items, {point.interactions:,} interactions, "
        f"{point.processes} process(es)"
    )
    return kept.row(asdict(point), partial(in_a_process, point.command_words()), partial(say, text))


def _grow_series(one: Series, found: Sequence[Row]) -> Row | None:
    """A series with its exponents; None where too little of it was measured."""
    tasks = [asdict(point) for point in one.points]
    rows = [row for task in tasks for row in found if row["task"] == task and "error" not in row]
    done = [row for row in rows if "refused" not in row]
    if len(done) < 2:
        return None
    sizes = [row[one.axis] for row in done]
    exponents = {
        "seconds_round": slope(sizes, [row["seconds_round"] for row in done]),
        "memory": slope(sizes, [max(row["peak_gib"] - row["base_gib"], LITTLE) for row in done]),
    }
    return {
        "method": one.method,
        "class": CLASSES[one.method],
        "axis": one.axis,
        "points": rows,
        "exponents": exponents,
    }


def slope(x: Sequence[float], y: Sequence[float]) -> float:
    """Of the line through the logarithms, by least squares: 1 means in proportion."""
    return float(np.polyfit([math.log(value) for value in x], [math.log(value) for value in y], 1)[0])


def random_clients(clients: int, items: int, interactions: int) -> ClientData:
    """Random clients with about so many interactions, popular items more often; nobody has an item twice."""
    rng = np.random.default_rng(0)
    user = np.arange(interactions) * clients // interactions
    pair = user * items + (items * rng.random(len(user)) ** 2).astype(np.int64)
    pair = np.unique(pair)
    user, item = pair // items, pair % items
    ptr = pointers(np.bincount(user, minlength=clients))
    gap = item - (np.arange(len(item)) - np.repeat(ptr[:-1], np.diff(ptr)))
    numbers = np.arange(clients)
    return ClientData(
        World(items=items, clients=clients),
        numbers,
        numbers,
        np.arange(clients + 1),
        ptr,
        item,
        item,
        4,
        Pool(ptr, gap),
        longest=int(np.diff(ptr).max()),
    )


def measure_point(name: str, clients: int, items: int, interactions: int) -> dict[str, Any] | None:
    """Run three rounds, the last with its phases; of several processes only the first returns figures."""
    about = {"method": name, "clients": clients, "items": items, "base_gib": peak_gib()}
    with join_processes(CPU) as group:
        started = time.perf_counter()
        data = random_clients(clients, items, interactions)
        total = len(data.items)
        data = group.shard(data)
        made = time.perf_counter()
        method = build_method(name)
        try:
            require_room(method, data)
            simulator = Simulator(method, data, memory=2 << 30, group=group)
            require_room_for_uploads(simulator)
            ready = time.perf_counter()
            elsewhere = Elsewhere()
            rounds, split = _three_rounds(simulator)
        except Exception as error:
            if (message := explain(error)) is None:
                raise
            return about | {"interactions": total, "refused": message} if group.first else None
        peaks = np.zeros(group.size)
        peaks[group.offset(1)] = peak_gib()
        peaks = group.sum_arrays(peaks)
        if not group.first:
            return None
        return about | {
            "interactions": total,
            "processes": group.size,
            "seconds_data": made - started,
            "seconds_set_up": ready - made,
            "seconds_first_round": rounds[0],
            "seconds_round": min(rounds[1:]),
            "seconds_all": rounds,
            "others_cores": elsewhere.cores() if group.size == 1 else None,
            "phases": split,
            "peak_gib": float(peaks.max()),
            "peak_gib_each": peaks.tolist(),
        }


def _three_rounds(simulator: Simulator) -> tuple[list[float], dict[str, float]]:
    """Their seconds, and where those of the last went."""
    rounds = [simulator.round(number).seconds for number in range(2)]
    phases = Phases(CPU)
    with phases.watching(simulator):
        rounds.append(simulator.round(2).seconds)
    split = phases.seconds | {"other": rounds[-1] - sum(phases.seconds.values())}
    split_kernel(simulator, split)
    return rounds, split


if __name__ == "__main__":
    sys.exit(print_result(lambda: measure_point(sys.argv[1], *(int(size) for size in sys.argv[2:5]))))
