"""One client at a time: what a method's round takes the plain way, for the ratio.

In this order: a plain program for the methods that it knows; the naive reference that the method is tested against, by
a program of the checkout; the library's own engine with every client alone and nothing compiled. The last two work on a
few clients, which stand for all by their number of interactions, unless more of them take more than their share, as
where users are compared with each other: then a naive reference runs on all, if that does not take too long.
"""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np
import torch

from fedrec.errors import FedrecError
from fedrec.experiment import Prepared, Run
from fedrec.federation import ClientData, Simulator, concatenate_ranges
from fedrec_studies.bench.machine import in_a_process
from fedrec_studies.bench.phases import TRAINING
from fedrec_studies.bench.task import Task

PLAIN, NAIVE = "plain", "naive"
PROGRAMS = {PLAIN: Path("../shared/bench/naive.py"), NAIVE: Path("benchmarks/naive.py")}
"""Where they are looked for. The first: `--data u.data --work METHOD --rounds N` prints {"seconds_per_round": ...};
the second: a task as JSON and a number of users print {"seconds": ..., "users": ..., "share": ...}: of a round of so
many users, and their share of all interactions; seconds are null where it knows no reference."""
KNOWN = {"fedmf": "round", "pfedrec": "round", "fedca": TRAINING}
"""The methods of the first, and what of ours it is to be compared with."""
FEW, MORE = 12, 96  # clients
LONGEST, WHOLE = 30.0, 600.0  # seconds that a naive reference may take on a few clients, and a round of it on all
LINEAR = 1.2  # times their share of the time that more users may take, by noise and what caches hold
ALONE = 2  # bytes: a budget under which every client is alone in its chunk


@dataclass(frozen=True)
class Reference:
    """Seconds of a round the plain way, None where that took too long. `of`: the part of ours that does the same."""

    what: str
    seconds: float | None
    of: str = "round"


def reference_of(
    run: Run, task: Task, programs: Mapping[str, Path], clock: Callable[[], float] = time.perf_counter
) -> Reference | None:
    """The first that works; None where a client is the whole world."""
    return _plain(run, programs.get(PLAIN)) or _naive(run, task, programs.get(NAIVE)) or _alone(run, clock)


def units_of(run: Run) -> int:
    """A run's clients, or its users where all are with one."""
    return len(run.simulator.data.users) if run.method.info.centralised else run.world.clients


def select_few(units: int) -> int:
    return max(1, min(FEW, units // 5))


def select_clients(data: ClientData, count: int) -> tuple[ClientData, float]:
    """A world of its own of clients (or of users, where there is one client) from the least to the most active.

    Also their share of all interactions.
    """
    central = len(data.clients) == 1
    sizes = np.diff(data.user_ptr) if central else data.positives
    spread = ((np.arange(count) + 0.5) / count * len(sizes)).astype(int)
    chosen = np.sort(np.unique(np.argsort(sizes, kind="stable")[spread]))
    places = chosen if central else concatenate_ranges(data.client_ptr[chosen], data.client_ptr[chosen + 1])
    mine = data.training_histories.take(places)
    client_ptr = np.array([0, len(places)]) if central else np.cumsum([0, *np.diff(data.client_ptr)[chosen]])
    world = replace(data.world, clients=len(client_ptr) - 1, dtype=torch.float64, device=torch.device("cpu"))
    made = ClientData.build(
        world,
        np.repeat(np.arange(len(places)), np.diff(mine.ptr)),
        mine.items,
        users=np.arange(len(places)),
        client_ptr=client_ptr,
        negatives=data.negatives,
        unique=data.unique,
    )
    return made, len(mine.items) / len(data.items)


def seconds_of_a_round(
    work: Callable[[int], object], first: int = 1, clock: Callable[[], float] = time.perf_counter
) -> float | None:
    """Of rounds, without what comes before the first and after the last; None where it cannot be told.

    Once with `first` rounds and once with one more.
    """
    took = []
    for rounds in (first, first + 1):
        started = clock()
        work(rounds)
        took.append(clock() - started)
    return took[1] - took[0] if took[1] > took[0] else None


def _plain(run: Run, program: Path | None) -> Reference | None:
    name = run.method.info.name
    if program is None or name not in KNOWN:
        return None
    with tempfile.TemporaryDirectory(prefix="fedrec-bench-") as folder:
        path = _movielens(run.prepared, Path(folder))
        found = in_a_process([str(program), "--data", str(path), "--work", name, "--rounds", "2"])
    return Reference("a plain program, one client at a time", found["seconds_per_round"], KNOWN[name])


@dataclass(frozen=True)
class Part:
    """Seconds of a naive reference's round on some users, and their share of all interactions."""

    seconds: float
    users: int
    share: float

    @property
    def seconds_of_all(self) -> float:
        return self.seconds / self.share


def _naive(run: Run, task: Task, program: Path | None) -> Reference | None:
    if program is None:
        return None
    words, units = [str(program), json.dumps(asdict(replace(task, device="cpu")))], units_of(run)

    def measure_part(users: int, within: float) -> Part | None:
        found = in_a_process([*words, str(users)], within)
        return None if found["seconds"] is None else Part(**found)

    try:
        few = measure_part(select_few(units), LONGEST)
    except FedrecError as error:
        return Reference(f"the naive reference of its tests: {error}", None)
    if few is None:
        return None
    seconds, how = estimate_round(few, units, measure_part)
    return Reference(f"the naive reference of its tests (double precision), {how}", seconds)


def estimate_round(few: Part, units: int, measure_part: Callable[[int, float], Part | None]) -> tuple[float, str]:
    """Estimate the seconds of a round of all users from one of a few, and say how; `measure_part` as in `_naive`."""

    def on(users: int, within: float) -> Part | None:
        with suppress(FedrecError):  # it took too long after all
            return measure_part(users, within)
        return None

    first, second = select_few(units), min(MORE, units // 2)
    bearable = second > first and few.seconds * second / first < LONGEST
    more = on(second, 4 * LONGEST) if bearable else None
    if more is None or more.seconds_of_all < LINEAR * few.seconds_of_all:
        known = few if more is None else more
        return known.seconds_of_all, f"{known.users} users, scaled"
    whole = on(units, 2 * WHOLE) if with_pairs(few, more) < WHOLE else None
    if whole is None:
        return (
            more.seconds_of_all,
            f"{more.users} users, scaled: at least, because more of them take more than their share",
        )
    return whole.seconds, "all users, because more of them take more than their share"


def with_pairs(few: Part, more: Part) -> float:
    """Expected for all, of a part that grows with the users and one that grows with their pairs."""
    known = np.array([[part.share, part.share**2] for part in (few, more)])
    return float(np.linalg.solve(known, [few.seconds, more.seconds]).sum())


def _alone(run: Run, clock: Callable[[], float]) -> Reference | None:
    if run.method.info.centralised:
        return None
    data, share = select_clients(run.simulator.data, select_few(units_of(run)))
    took = seconds_of_a_round(lambda rounds: _one_by_one(run, data, rounds), clock=clock)
    what = f"this engine without kernels, one client at a time, {len(data.clients)} clients, scaled"
    return None if took is None else Reference(what, took / share)


def _one_by_one(run: Run, data: ClientData, rounds: int) -> None:
    data = replace(data, world=replace(data.world, compiled=False))
    attributes = run.plan.attributes
    attributes = None if attributes is None else attributes.to(data.world.device, data.world.dtype)
    simulator = Simulator(run.method, data, memory=ALONE, attributes=attributes)
    for number in range(rounds):
        simulator.round(number)


def _movielens(prepared: Prepared, folder: Path) -> Path:
    """All rows as a file in the form of MovieLens, each user's held-out items last."""
    parts = [prepared.split.train, prepared.split.valid, prepared.split.test]
    rows = np.concatenate(
        [
            np.stack([part.user + 1, part.item + 1, np.full(len(part), 5), np.full(len(part), time)])
            for time, part in enumerate(parts)
        ],
        axis=1,
    ).T
    path = folder / "u.data"
    np.savetxt(path, rows, fmt="%d", delimiter="\t")
    return path


def find_programs(plain: Path | None) -> dict[str, Path]:
    """Find the programs that are on this machine; `plain` takes the place of the usual one."""
    if plain is not None and not plain.is_file():
        raise FedrecError(f"--yardstick {plain}: there is no such file")
    wanted = PROGRAMS if plain is None else PROGRAMS | {PLAIN: plain}
    return {name: path for name, path in wanted.items() if path.is_file()}
