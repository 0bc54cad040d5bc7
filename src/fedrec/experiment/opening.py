"""A finished run with its model in place, from its folder; the data is read only where the run has not kept it."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from fedrec.experiment.config import make_config
from fedrec.experiment.driver import Run
from fedrec.experiment.folder import RunFolder
from fedrec.experiment.kept import read_kept, require_same_rows
from fedrec.experiment.limits import require_room_to_open
from fedrec.experiment.machine import device_named
from fedrec.experiment.run_plan import plan_run


class Chosen(NamedTuple):
    """A run whose present state is that of its chosen round, and the number of that round."""

    run: Run
    round: int


def open_finished(path: Path) -> Chosen:
    """The run of a folder, for whoever looks at its figures: the data must be what it was."""
    folder = RunFolder.open(path)
    folder.require_finished()
    folder.require_state()
    config = make_config(folder.settings())
    kept = read_kept(folder, config)
    unchanged = kept is not None and kept.is_of(config)
    require_room_to_open(folder.best, device_named(config.device))
    run = Run(plan_run(config, kept.prepared if kept is not None and unchanged else None, is_trained=True))
    chosen = run.states.load_best(folder)
    if kept is not None and not unchanged:
        require_same_rows(kept.prepared, run.prepared, path)
    return Chosen(run, chosen)


def open_model(path: Path) -> Chosen:
    """The model of a run folder, to serve from: it outlives its data, which may have grown, moved or gone.

    The data is read only where the folder holds nothing of it, as those of older versions.
    """
    folder = RunFolder.open(path)
    folder.require_model()
    config = make_config(folder.settings())
    kept = read_kept(folder, config, ranked=False)
    require_room_to_open(folder.best, device_named(config.device))
    run = Run(plan_run(config, None if kept is None else kept.prepared, is_trained=True))
    return Chosen(run, run.states.load_best(folder))
