"""A measurement as a file: written after every piece, so that one that was interrupted goes on where it stopped."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import date
from pathlib import Path
from typing import Any

from fedrec.data import atomic_file
from fedrec.errors import FedrecError
from fedrec.experiment import require_harmless

PARTS = ("methods", "points", "goals")
# rows of one file are compared with each other, which only makes sense on one kind of machine
SAME = ("device", "cores")
Row = dict[str, Any]


class RowFile:
    """The rows of one part of a measurement, by task, in a file that is written after every row."""

    def __init__(self, path: Path, part: str, resume: bool) -> None:
        require_harmless(path)
        self.path, self.part = path, part
        self.found: Row = {"command": "", "complete": False, "machine": {}, part: []}
        if not path.exists():
            return
        old = read(path) if resume or path.stat().st_size else {}
        if resume:
            if part not in old:
                raise FedrecError(f"{path} contains another kind of measurement; choose another --out")
            self.found = old
        elif old.get("complete") is False:
            raise FedrecError(
                f"{path} contains {len(rows_of(old))} results of an interrupted measurement: "
                "continue with --resume, or choose another --out"
            )

    def begin(self, machine: Row, command: str) -> None:
        """Refuse to continue what another machine has measured."""
        old = self.found["machine"]
        if old and any(old.get(name) != machine[name] for name in SAME):
            raise FedrecError(
                f"{self.path} was measured on {old.get('device')}, {old.get('cores')} cores; this is "
                f"{machine['device']}, {machine['cores']} cores: choose another --out"
            )
        self.found |= {"machine": old or machine, "command": command, "complete": False}

    def row(self, asked: Row, measure: Callable[[], Row], say: Callable[[], None]) -> Row:
        """Return the row of a task, measured now or before; one that failed is tried again."""
        for known in self.found[self.part]:
            if known.get("task") == asked and "error" not in known:
                return dict(known)
        say()
        try:
            row = measure()
        except FedrecError as error:
            row = {**asked, "ratio": None, "error": str(error)}
        rows = [known for known in self.found[self.part] if known.get("task") != asked]
        self.found[self.part] = [*rows, row | {"task": asked, "day": date.today().isoformat()}]
        self._write()
        return row

    def forget(self, asked: Row, unlike: str) -> None:
        """Remove rows that differ from a task in the entry `unlike` alone: nobody asks for their settings any more."""

        def but_for(task: Row) -> Row:
            return {name: value for name, value in task.items() if name != unlike}

        self.found[self.part] = [
            known
            for known in self.found[self.part]
            if (task := known.get("task", {})) == asked or but_for(task) != but_for(asked)
        ]

    def complete(self, **more: Any) -> Row:
        """Mark the file as complete and write it."""
        self.found |= {"complete": True} | more
        self._write()
        return self.found

    def _write(self) -> None:
        write(self.path, json.dumps(self.found, indent=1) + "\n")


def read(path: Path) -> Row:
    """Read an earlier measurement."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        good = isinstance(found["machine"], dict) and all(isinstance(row, dict) for row in rows_of(found))
    except (OSError, ValueError, KeyError, TypeError):
        good = False
    if not good:
        raise FedrecError(f"{path} is not a file of `fedrec bench`; make one with --out")
    return dict(found)


def rows_of(found: Row) -> list[Row]:
    return next(found[part] for part in PARTS if part in found)


def write(path: Path, text: str) -> None:
    require_harmless(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    with atomic_file(path) as place:
        place.write_text(text, encoding="utf-8")
