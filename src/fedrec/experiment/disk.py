"""What a run takes on the disk, said before it begins and refused where it cannot fit."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from fedrec.errors import FedrecError
from fedrec.experiment.checkpoint import tensors_of
from fedrec.experiment.folder import RunFolder
from fedrec.experiment.machine import size_text

if TYPE_CHECKING:
    from fedrec.experiment.driver import Run

Keep = Literal["nothing", "model", "last"]
"""What stays once a run has ended: its results alone, the model of the chosen round too, or also the state of the last
round, from which more rounds follow without starting over."""

PER_ROW, PER_ID, PER_TESTED, PER_ROUND = 16, 64, 160, 600  # bytes in prepared.npz, the tables of ids, and the records
PER_LOGGED = 20  # bytes in log.npz
SMALL = 1 << 20  # config, summary and report


@dataclass(frozen=True)
class DiskUse:
    """Bytes of a run folder: at most while it is written, once the run has ended, and what its disk has left."""

    running: int
    ended: int
    free: int

    def __str__(self) -> str:
        return (
            f"takes about {size_text(self.ended)} on disk, at most {size_text(self.running)} while it runs; "
            f"{size_text(self.free)} are free"
        )


def disk_use(run: Run, place: Path, keep: Keep) -> DiskUse:
    """Of a run in the folder `place`, which need not exist yet."""
    source, state = run.prepared.source, _state(run)
    ids = source.n_users + source.n_items
    data = PER_ROW * run.prepared.n_interactions + PER_ID * ids + _log(run)
    records = PER_TESTED * source.n_users + PER_ROUND * run.rules.rounds + PER_ID * ids + SMALL
    # The best, the last, and the one that is taking the place of either while it is written.
    states = 3 if run.rules.selects else 2
    stays = {"nothing": 0, "model": data + state, "last": data + 2 * state}[keep]
    # The folder need not exist yet, so the nearest one above it says which disk it is.
    nearest = next(folder for folder in (place, *place.resolve().parents) if folder.is_dir())
    return DiskUse(data + records + states * state, records + stays, shutil.disk_usage(nearest).free)


def require_disk(run: Run, place: Path, keep: Keep) -> DiskUse:
    """Refuse a run that would fill the disk; what it has written there before counts as its own."""
    use = disk_use(run, place, keep)
    folder = RunFolder(place)
    # What the run wrote before will be overwritten, so it counts as free.
    there = sum(
        file.stat().st_size
        for file in (folder.best, folder.last, folder.prepared, folder.interactions)
        if file.is_file()
    )
    if use.running > use.free + there:
        raise FedrecError(
            f"{run.method.info.name} writes up to {size_text(use.running)} to {place} while it runs, and "
            f"{size_text(use.free)} are free there; free some space, choose an --out on another disk, or "
            "lower the size of the model"
        )
    return use


def _log(run: Run) -> int:
    """Bytes of the log that a fit keeps, with what filters leave out of it."""
    prepared = run.prepared
    rows = prepared.n_interactions + sum(record.rows for record in prepared.filters)
    return 0 if prepared.has_test else PER_LOGGED * rows + PER_ID * (prepared.source.n_users + prepared.source.n_items)


def _state(run: Run) -> int:
    """Bytes of the state of the server and of the clients of all processes."""
    sizes = {name: value.nbytes for name, value in tensors_of(run.simulator).items()}
    server = sum(size for name, size in sizes.items() if name.startswith("server."))
    return server + int(run.plan.group.sum_numbers([float(sum(sizes.values()) - server)])[0])
