"""One config with one seed or several: where its runs are written, how they are resumed, and their mean."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from fedrec.commands import console, progress
from fedrec.commands.interrupted import says_how_to_go_on
from fedrec.commands.own_report import run_and_report
from fedrec.commands.summary import show_summary
from fedrec.data.atomic import require_unlinked
from fedrec.data.companies import BY_COLUMN, BY_FILES
from fedrec.errors import FedrecError
from fedrec.experiment.command_line import again, command_line
from fedrec.experiment.config import RunConfig, with_columns
from fedrec.experiment.disk import Keep
from fedrec.experiment.driver import Listener
from fedrec.experiment.finished_run import read_run
from fedrec.experiment.folder import RunFolder, folder_name
from fedrec.experiment.listeners import Several
from fedrec.experiment.machine import device_named
from fedrec.experiment.trackers import make_listener
from fedrec.federation.distributed import join_processes


def require_place(out: Path, seeds: Sequence[int] | None, resume: bool) -> None:
    """Refuse what would mix a run with the runs of several seeds, or would litter the current folder."""
    for folder in _folders(out, seeds):
        # A link could lead the run into another folder than the one that was checked.
        require_unlinked(folder, out)
        RunFolder(folder).require_own_files()
    single, several = (out / "config.toml").is_file(), any(out.glob("seed*/config.toml"))
    # An empty shell variable gives the current folder too, which a run would litter.
    if out == Path() and not (resume and (single or several)):
        raise FedrecError("--out is empty or the current folder; choose a folder for the run, e.g. --out runs/mine")
    if single and seeds is not None:
        raise FedrecError(
            f"{out} holds a single run; resume it without --seeds, or choose another --out for several seeds"
        )
    if several and seeds is None and not single:
        raise FedrecError(
            f"{out} holds runs of several seeds; add --seeds 0,1,... and --resume to continue them, or "
            "choose another --out"
        )


def config_to_resume(out: Path, seeds: Sequence[int] | None) -> Path | None:
    """The settings of the run in `out`, or of the first of its seeds that was begun; None where there is nothing."""
    paths = (folder / "config.toml" for folder in _folders(out, seeds))
    return next((path for path in paths if path.is_file()), None)


def run_seeds(
    config: RunConfig,
    seeds: list[int] | None,
    out: Path | None,
    resume: bool,
    quiet: bool,
    as_json: bool,
    keep: Keep = "model",
    trackers: Sequence[str] = (),
) -> None:
    """Run every seed and print what came out. Without `out` a free folder below runs/ is taken.

    Of several processes that share the work, the first one writes and prints.
    """
    with join_processes(device_named(config.device)) as group:
        # One process chooses the folder and tells the others, which might find another one free.
        place = Path(group.share_text(str(out if out is not None else _free_folder(config, seeds))))
        folders = _folders(place, seeds)
        configs = [dataclasses.replace(config, seed=seed) for seed in seeds or [config.seed]]
        # All folders are checked before the first run starts, not when its turn comes.
        if not resume and group.first:
            for folder in folders:
                RunFolder(folder).require_free()
        listeners = [Listener() for _ in configs]
        if group.first:
            listeners = [progress.listener(f"{one.method} seed {one.seed}", quiet, as_json) for one in configs]
            # Before any work: a missing package is said at once.
            for name in trackers:
                listeners = [
                    Several([one, make_listener(name, folder)]) for one, folder in zip(listeners, folders, strict=True)
                ]
            if resume and config_to_resume(place, seeds) is None:
                note = f"nothing to resume in {place}; starting from the first round"
                listeners[0] = progress.Noted(listeners[0], note)
        with says_how_to_go_on(again(place) if group.first else ""):
            summaries, data = list[Mapping[str, Any]](), None
            for one, folder, listener in zip(configs, folders, listeners, strict=True):
                summary = _ended_without_model(folder, one) if resume else None
                if summary is None:
                    result, data = run_and_report(one, folder, resume, listener, _note, data, group, keep)
                    summary = result.summary
                summaries.append(summary)
                if group.first:
                    _show(summary, folder, as_json, one.silos in (BY_FILES, BY_COLUMN))
    if len(summaries) > 1 and group.first and not as_json:
        _show_spread(summaries)


def _folders(place: Path, seeds: Sequence[int] | None) -> list[Path]:
    return [place] if seeds is None else [place / f"seed{seed}" for seed in seeds]


def _ended_without_model(folder: Path, config: RunConfig) -> dict[str, Any] | None:
    """The result of the same run where it has ended and kept nothing else: it could only be trained again."""
    there = RunFolder(folder)
    if there.best.exists() or not there.summary.is_file():
        return None
    begun = there.settings()
    # The same settings, and not only the same folder: another run must not be taken for this one.
    if begun != with_columns(config, begun).to_dict():
        return None
    return read_run(folder).summary


def _show(summary: Mapping[str, Any], folder: Path, as_json: bool, has_companies: bool) -> None:
    if as_json:
        print(json.dumps({**summary, "folder": str(folder)}), flush=True)
    else:
        more = command_line("run", "--resume", "--out", folder, "--rounds", 2 * summary["rounds_run"])
        show_summary(summary, more)
        console.out.print(f"run folder: {folder}")
        if has_companies:
            again = command_line("compare", folder, "--references", "--groups", "silo")
            console.out.print(f"each company, against training alone: {again}")


def _note(text: str) -> None:
    console.err.print(f"note: {text}", markup=False)


def _free_folder(config: RunConfig, seeds: Sequence[int] | None) -> Path:
    """runs/METHOD-DATA-PROTOCOL-seedN, or without the seed for several; with a number appended if that is taken."""
    data = Path(config.train).stem if config.train else Path(config.data).name
    seed = f"seed{config.seed}" if seeds is None else ""
    parts = [config.method, config.backbone or "", data, config.protocol, seed]
    text = "-".join(part for part in parts if part)
    base = folder_name(text)
    for number in range(1, 10_000):
        path = Path("runs") / (base if number == 1 else f"{base}.{number}")
        if not path.exists():
            return path
    raise FedrecError(f"runs/{base} and 9,999 others exist; choose a folder with --out")


def _show_spread(summaries: Sequence[Mapping[str, Any]]) -> None:
    names = [name for name in summaries[0]["test"] if not name.startswith("hr@")]
    values = {name: [summary["test"][name] for summary in summaries] for name in names}
    rows = [[name, mean(values[name]), stdev(values[name])] for name in names]
    console.table(["metric", "mean", "std"], rows, title=f"\n{len(summaries)} seeds, test")
