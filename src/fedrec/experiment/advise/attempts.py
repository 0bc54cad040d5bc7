"""What was tried and what came of it, written down after every piece of work."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from fedrec import __version__
from fedrec.data.atomic import atomic_file, require_unlinked
from fedrec.errors import FedrecError
from fedrec.experiment.advise.shortlist import Candidate, Wishes
from fedrec.experiment.config import RunConfig, plain
from fedrec.experiment.folder import RunFolder
from fedrec.experiment.search_space import settings_text
from fedrec.schema import BOOL, COUNT, NUMBER, TEXT, damage_error, json_line, optional, read_json, table_of

ATTEMPT = {
    "label": TEXT,
    "settings": {},
    "value": optional(NUMBER),
    "best_round": COUNT,
    "rounds_run": COUNT,
    "rounds": COUNT,
    "seconds": NUMBER,
    "upload": optional(NUMBER),
    "catalogue": optional(NUMBER),
    "curve": {},
    "valid": table_of(NUMBER, "metrics with numbers"),
    "note": TEXT,
}
ABOUT = {"config": {}, "data": TEXT, "blind": BOOL, "max_upload": optional(NUMBER), "version": TEXT}


@dataclass(frozen=True)
class Attempt:
    """A candidate with some settings, as far as it was trained. `value` is None where it could not be, see `note`."""

    label: str
    settings: dict[str, Any]
    value: float | None = None
    best_round: int = 0
    rounds_run: int = 0
    rounds: int = 0
    """How many it would have in all."""
    seconds: float = 0.0
    upload: float | None = None
    """Bytes that a client sends in all of its rounds, on average."""
    catalogue: float | None = None
    """Share of the items that are in anybody's list."""
    curve: dict[str, float] = field(default_factory=dict)
    """By seconds of work since its start, the best value so far."""
    valid: dict[str, float] = field(default_factory=dict)
    note: str = ""

    @property
    def is_unfinished(self) -> bool:
        return self.value is not None and not self.note and self.rounds_run < self.rounds

    def name_beside(self, candidate: Candidate) -> str:
        """The label, with the settings that differ from those that the candidate began with."""
        changed = {name: value for name, value in self.settings.items() if candidate.set.get(name) != value}
        return self.label + (f" ({settings_text(changed)})" if changed else "")

    def is_of(self, label: str, settings: Mapping[str, Any]) -> bool:
        return self.label == label and self.settings == {name: plain(value) for name, value in settings.items()}

    def forecast(self, seconds: float) -> float:
        """The value after that much more work, if it goes on rising as it did in the second half of its time."""
        if self.value is None:
            return float("-inf")
        if not self.is_unfinished or not self.curve:
            return self.value
        half = self.seconds / 2
        before = [value for at, value in self.curve.items() if float(at) <= half]
        rise = (self.value - (before[-1] if before else 0.0)) / max(self.seconds - half, 1e-9)
        whole = self.seconds / max(self.rounds_run, 1) * (self.rounds - self.rounds_run)
        return self.value + rise * min(seconds, whole)


class Logbook:
    """The folder of an advice: what is asked, every attempt, the settings that were chosen. None: nothing is kept."""

    def __init__(self, path: Path | None, config: RunConfig, data: str, wishes: Wishes) -> None:
        """`data`: which, and which version of it."""
        self.kept, self.config, self.data, self.wishes = path is not None, config, data, wishes
        self.path = path or Path()
        self.about, self.log = self.path / "advice.json", self.path / "attempts.jsonl"
        self.best, self.page = self.path / "best.toml", self.path / "advice.html"

    def begin(self) -> list[Attempt]:
        """The attempts that are there; an error where the folder holds something else."""
        if not self.kept:
            return []
        require_unlinked(self.path, self.path.parent)
        wanted = {
            "config": self.config.to_dict(),
            "data": self.data,
            "blind": self.wishes.blind,
            "max_upload": self.wishes.max_upload,
            "version": __version__,
        }
        if not self.about.exists():
            if self.path.exists() and any(self.path.iterdir()):
                raise FedrecError(f"{self.path} is not an advice; choose another --out")
            self._write(self.about, json.dumps(wanted, indent=1) + "\n")
            return []
        try:
            there = dict(read_json(self.about, "advice", ABOUT))
        except (ValueError, OSError) as error:
            raise damage_error(self.about, error) from None
        if changed := [name for name, value in wanted.items() if there.get(name) != value]:
            raise FedrecError(
                f"{self.path} was begun with another {' and '.join(changed)}; ask the same again, or use another --out"
            )
        lines = self.log.read_text(encoding="utf-8").splitlines() if self.log.exists() else []
        return [Attempt(**values) for line in lines if (values := json_line(line, ATTEMPT)) is not None]

    def record(self, attempts: Sequence[Attempt]) -> None:
        self._write(self.log, "".join(json.dumps(asdict(attempt)) + "\n" for attempt in attempts))

    def choose(self, config: RunConfig, about: str) -> None:
        """Write the chosen settings as a config for `fedrec run`."""
        import tomli_w

        self._write(self.best, f"# {about}\n{tomli_w.dumps(config.to_dict())}")

    def _write(self, path: Path, text: str) -> None:
        if self.kept:
            with atomic_file(path) as temporary:
                temporary.write_text(text, encoding="utf-8")

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Lock the folder: two that write to it would lose each other's attempts."""
        if not self.kept:
            yield
            return
        with RunFolder(self.path).lock():
            yield
