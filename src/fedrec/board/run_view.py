"""The page of one run: where it stands, what it came to, the command that made it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from fedrec.board.federation_view import view_federation
from fedrec.board.folders import Entry, FolderIndex
from fedrec.board.live_view import Follower, view_live
from fedrec.errors import FedrecError
from fedrec.experiment.command_line import command_line
from fedrec.experiment.config import RunConfig, make_config
from fedrec.experiment.finished_run import read_run
from fedrec.experiment.folder import RunFolder
from fedrec.methods import is_installed

ONE_GROUP = 1  # a single silo gains nothing from itself


def view_run(index: FolderIndex, entry: Entry, follower: Follower) -> dict[str, Any]:
    """Make the page of a run in any state."""
    folder = index.path(entry.name)
    content: dict[str, Any] = {
        "title": entry.label or entry.name,
        "entry": entry,
        "has_report": (folder / "report.html").is_file(),
        "has_model": RunFolder(folder).best.exists(),
        "metrics": [],
        "settings": [],
        "notes": [],
        "command_text": "",
        "resume": "",
        "live": None,
        "federation": None,
        "silos": None,
    }
    if entry.state in ("damaged", "foreign"):
        return content
    config = make_config(RunFolder(folder).settings())
    content |= {
        "command_text": command_of(config, entry.deployed),
        "settings": settings_of(config),
        "live": view_live(index, entry, follower),
        "federation": view_federation(folder, entry.state == "running"),
        "silos": config.silos,
    }
    if entry.state == "stopped" and not entry.deployed:
        content["resume"] = command_line("run", "--resume", "--out", folder)
    if entry.state == "finished":
        content |= _results(index, entry)
    return content


def _results(index: FolderIndex, entry: Entry) -> dict[str, Any]:
    try:
        summary = read_run(index.path(entry.name)).summary
    except FedrecError as error:
        return {"notes": [str(error)]}
    names = [name for name in summary["test"] if not name.startswith("hr@")]
    rows = [(name, *(_figure(summary[part].get(name)) for part in ("test", "valid", "chance"))) for name in names]
    return {"metrics": rows, "notes": summary["notes"]}


def _figure(value: float | None) -> str:
    return "–" if value is None else f"{value:.4f}"


def command_of(config: RunConfig, deployed: bool) -> str:
    """The command that makes a run again; of a federation, that of its rehearsal on one machine."""
    own = not is_installed(config.method)
    seed = ["--seed", config.seed]
    flags = replace(config, seed=RunConfig.seed).flags()
    return command_line("run", config.method, *flags, *seed, own=own) if not deployed else ""


def settings_of(config: RunConfig) -> list[tuple[str, str]]:
    """Every setting that was written down."""
    values = config.to_dict()
    params = values.pop("params", {})
    pairs = [(name.replace("_", " "), str(value)) for name, value in values.items() if value != ""]
    return [*pairs, *((f"set {name}", str(value)) for name, value in params.items())]
