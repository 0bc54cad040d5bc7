"""All run folders below a folder, each read once and again when its files change; whatever lies there is shown."""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

from fedrec.board.locks import is_at_work, list_locked_inodes
from fedrec.errors import FedrecError
from fedrec.experiment.config import make_config
from fedrec.experiment.finished_run import FinishedRun, read_run
from fedrec.experiment.folder import ROUND, RunFolder
from fedrec.experiment.plan_record import PLAN
from fedrec.schema import json_line, read_json

State = Literal["running", "finished", "stopped", "fitted", "damaged", "foreign"]
Kind = Literal["run", "study"]
DEEPEST = 6  # folders below the root that are looked into: runs of seeds of a table of a study lie four deep
MOST = 20_000  # folders; beyond it somebody has named the wrong one
TAIL = 1 << 16  # bytes of a log in which its last line lies
MARKS = ("config.toml", "summary.json", "fit.json", "metrics.jsonl", "plan.json", "nodes.json", "events.jsonl")
STUDY_MARKS = ("study.json", "trials.jsonl")


@dataclass(frozen=True)
class Entry:
    """A folder as the list shows it. `name` is its path below the root, and what its address is made of."""

    name: str
    kind: Kind
    state: State
    changed: float
    """When its newest file was written, in seconds since 1970."""
    why: str = ""
    """What is wrong with a damaged or foreign folder."""
    method: str = ""
    label: str = ""
    data: str = ""
    protocol: str = ""
    seed: int | None = None
    rounds: int = 0
    planned: int | None = None
    """Rounds in all; None where nobody has written it down."""
    test: Mapping[str, float] = field(default_factory=dict)
    valid: Mapping[str, float] = field(default_factory=dict)
    deployed: bool = False
    leaks: tuple[str, ...] = ()


Marks = tuple[tuple[str, int, int], ...]
"""Files of a folder with the time of their last change, in nanoseconds, and their size."""


@dataclass(frozen=True)
class _Seen:
    """What a folder looked like when it was read."""

    marks: Marks
    at_work: bool
    entry: Entry


class FolderIndex:
    """The entries of a folder. `refresh` costs a look at each folder, and reads only what has changed."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.version = 0
        """Grows with every change, so that who watches knows whether there is anything new."""
        self.truncated = False
        self._seen: dict[str, _Seen] = {}
        self._one = threading.Lock()
        self._looked = float("-inf")
        if not root.is_dir():
            # At once, because a typing error in the path would otherwise show an empty list that looks right.
            raise FedrecError(f"{root} is not a folder; give one that holds run folders")

    @property
    def entries(self) -> list[Entry]:
        """Return everything, by name."""
        # By name, since the order of a dictionary is that in which folders were found on the disk.
        return [seen.entry for _, seen in sorted(self._seen.items())]

    def entry(self, name: str) -> Entry | None:
        """Return what is known under a name: no other folder can be asked for."""
        seen = self._seen.get(name)
        return None if seen is None else seen.entry

    def path(self, name: str) -> Path:
        """Return the folder of a name that is known; FedrecError for every other one."""
        # Only names that were found are paths: an address such as ../../etc leads nowhere.
        if name not in self._seen:
            raise FedrecError(f"there is no run folder '{name}' below {self.root}")
        return self.root / name

    def look_at(self, name: str) -> Entry | None:
        """Return what stands under a name at this moment; None where there is nothing of ours."""
        if name not in self._seen:
            self.refresh()
        with self._one:
            if (before := self._seen.get(name)) is None:
                return None
            marks, below, others = _look_into(self.root / name)
            # Removed, or its place taken by something else.
            if not marks and (below or not others):
                del self._seen[name]
                self.version += 1
                return None
            found = self._read(name, marks or others, not marks, list_locked_inodes())
            self._seen[name] = found
            # Only a change counts, so that pages which watch are not told of nothing.
            self.version += found != before
            return found.entry

    def refresh_after(self, seconds: float) -> None:
        """Look at all folders again, unless the last look was less than this ago."""
        # On a monotonic clock: setting the time must not stop the list from being refreshed.
        if time.monotonic() - self._looked > seconds:
            self.refresh()

    def refresh(self) -> bool:
        """Look at all folders again; whether anything has changed."""
        with self._one:
            self._looked = time.monotonic()
            # Once for all folders: the table of locks is the same for the whole look.
            locked, found = list_locked_inodes(), dict[str, _Seen]()
            for name, marks, foreign in self._walk():
                found[name] = self._read(name, marks, foreign, locked)
            changed = found != self._seen
            self._seen = found
            self.version += changed
            return changed

    def _read(self, name: str, marks: Marks, foreign: bool, locked: frozenset[int] | None) -> _Seen:
        folder, changed = self.root / name, max(when for _, when, _ in marks) / 1e9
        at_work, before = is_at_work(folder, locked, changed), self._seen.get(name)
        # A process that starts or ends changes the state of a folder without changing a file.
        if before is not None and (before.marks, before.at_work) == (marks, at_work):
            return before
        if foreign:
            entry = Entry(name, "run", "foreign", changed, "none of its files is of fedrec")
        else:
            entry = read_entry(folder, name, {mark for mark, _, _ in marks}, changed, at_work)
        return _Seen(marks, at_work, entry)

    def _walk(self) -> Iterator[tuple[str, Marks, bool]]:
        """List folders of ours with their marks, and those without folders that hold something else.

        Left out is `NAME-nodes` beside `NAME`: a federation on one machine keeps its nodes' own files there.
        """
        waiting, count = [(self.root, "", 0)], 0
        self.truncated = False
        # A stack instead of recursion, which very deep trees would exhaust.
        while waiting:
            place, name, depth = waiting.pop()
            marks, below, others = _look_into(place)
            if marks or (others and not below and name):
                count += 1
                # A limit, since somebody may name the root of a disk; what was found so far is still shown.
                if count > MOST:
                    self.truncated = True
                    return
                yield name or ".", marks or others, not marks
            # Folders of ours are not looked into: what lies there are their own parts.
            if not marks and depth < DEEPEST:
                inside = [child for child in below if child.removesuffix("-nodes") not in {*below} - {child}]
                waiting += [(place / child, f"{name}/{child}" if name else child, depth + 1) for child in inside]


def _look_into(
    place: Path,
) -> tuple[Marks, list[str], Marks]:
    """Return the marks of a folder with time and size, the folders in it, and one file that is no mark."""
    marks: list[tuple[str, int, int]] = []
    others: list[tuple[str, int, int]] = []
    below: list[str] = []
    try:
        with os.scandir(place) as found:
            for one in found:
                if one.name in MARKS or one.name in STUDY_MARKS:
                    # Links are not followed: they may lead out of the folder, or in a circle.
                    told = one.stat(follow_symlinks=False)
                    marks.append((one.name, told.st_mtime_ns, told.st_size))
                elif one.is_dir(follow_symlinks=False):
                    # Hidden folders belong to other programs.
                    if not one.name.startswith("."):
                        below.append(one.name)
                elif not others:
                    told = one.stat(follow_symlinks=False)
                    others.append((one.name, told.st_mtime_ns, told.st_size))
    # Removed meanwhile, or not ours to read.
    except OSError:
        return (), [], ()
    names = {name for name, _, _ in marks}
    ours = names & {"config.toml", "study.json"}
    return (tuple(sorted(marks)) if ours else ()), below, (tuple(others) or (() if ours else tuple(marks)))


def read_entry(folder: Path, name: str, marks: set[str], changed: float, at_work: bool) -> Entry:
    """Read one folder of ours, whatever state it is in."""
    blank = Entry(name, "study" if "study.json" in marks else "run", "damaged", changed)
    try:
        if blank.kind == "study":
            return _read_study(folder, blank, at_work)
        # While a process works there, an old summary is that of the run before it was resumed.
        if "summary.json" in marks and not at_work:
            return _read_finished(folder, blank)
        return _read_unfinished(folder, blank, marks, at_work)
    # Whatever is wrong with one folder must not take the whole list away.
    except (FedrecError, ValueError, OSError, KeyError, TypeError) as error:
        text = " ".join(str(error).split())
        # Many projects have a config.toml; without any file that only we write it is somebody else's.
        unknown = "config.toml" in marks and not marks & {"metrics.jsonl", "summary.json", "fit.json", "plan.json"}
        if unknown:
            return replace(blank, state="foreign", why="its config.toml is not of fedrec")
        # Cut, because the reason stands in one cell of a table.
        return replace(blank, why=text[:300])


def _read_finished(folder: Path, blank: Entry) -> Entry:
    run = read_run(folder)
    summary = run.summary
    return replace(
        blank,
        state="finished",
        method=summary["method"],
        label=label_of(run),
        data=summary["dataset"]["name"],
        protocol=run.protocol,
        seed=summary["seed"],
        rounds=summary["rounds_run"],
        planned=summary["rounds_run"],
        test=summary["test"],
        valid=summary["valid"],
        deployed="deployment" in summary,
        leaks=tuple(summary["leaks"]),
    )


def _read_unfinished(folder: Path, blank: Entry, marks: set[str], at_work: bool) -> Entry:
    files = RunFolder(folder)
    files.require_own_files()
    config = make_config(files.settings())
    last = last_record(files.metrics)
    plan = read_plan(files)
    return replace(
        blank,
        state="fitted" if "fit.json" in marks else "running" if at_work else "stopped",
        method=config.method,
        label=config.method,
        data=plan["data"] if plan else config.data,
        protocol=config.protocol,
        seed=config.seed,
        rounds=0 if last is None else last["round"] + 1,
        planned=plan["rounds"] if plan else config.rounds,
        valid=last.get("valid", {}) if last else {},
        deployed=bool(marks & {"nodes.json", "events.jsonl"}),
    )


def _read_study(folder: Path, blank: Entry, at_work: bool) -> Entry:
    about = json.loads((folder / "study.json").read_text(encoding="utf-8"))
    config = make_config(about["config"])
    log = folder / "trials.jsonl"
    trials = sum(1 for _ in log.open("rb")) if log.exists() else 0
    return replace(
        blank,
        state="running" if at_work else "finished",
        method=config.method,
        label=f"{config.method}: {', '.join(about['space'])}",
        data=config.data,
        protocol=config.protocol,
        seed=config.seed,
        rounds=trials,
    )


def read_plan(files: RunFolder) -> dict[str, Any] | None:
    """Return what a run wrote down when it began; None in folders of earlier versions, or half written."""
    try:
        return dict(read_json(files.plan, "plan", PLAN))
    except (OSError, ValueError):
        return None


def last_record(path: Path) -> dict[str, Any] | None:
    """Return the last whole line of a log, however long the log is."""
    try:
        with path.open("rb") as file:
            # Only the end of the log is read, so that a long run costs no more than a short one.
            file.seek(max(0, file.seek(0, os.SEEK_END) - TAIL))
            lines = file.read().decode(errors="replace").splitlines()
    except OSError:
        return None
    # From the last line back: the very last may still be being written.
    return next((record for line in reversed(lines) if (record := json_line(line, ROUND)) is not None), None)


def label_of(run: FinishedRun) -> str:
    """Name a configuration as `fedrec compare` does; that of another seed is the same."""
    config = {name: value for name, value in run.config.items() if name != "seed"}
    noted = {"method": run.summary["method"], "backbone": run.summary["backbone"]}
    noted |= {"defaults": run.summary.get("defaults", {})}
    return _label(json.dumps(config, sort_keys=True), json.dumps(noted, sort_keys=True))


@lru_cache(maxsize=10_000)
def _label(config: str, summary: str) -> str:
    return FinishedRun(Path(), json.loads(summary), json.loads(config)).label
