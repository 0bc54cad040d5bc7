"""The run folder: everything about a run, in plain files."""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self

import numpy as np

from fedrec.data.atomic import atomic_file, flush_to_disk
from fedrec.data.spreadsheet import write_rows
from fedrec.errors import FedrecError
from fedrec.evaluation import UNDIVIDED, Evaluation, protocol
from fedrec.experiment.command_line import command_line
from fedrec.experiment.config import FORMAT, read_config
from fedrec.experiment.prepare import Prepared
from fedrec.schema import COUNT, Shape, json_line

ROUND: Shape = {"round": COUNT}
"""What every line of metrics.jsonl has."""


def require_harmless(out: Path | None, *read: Path | None) -> None:
    """Refuse to write over what was given to be read, and over the files of a run."""
    if out is None:
        return
    # resolve() fails on circular links, and this check must not.
    target = Path(os.path.realpath(out))
    if any(path is not None and os.path.realpath(path) == str(target) for path in read):
        raise FedrecError(f"--out {out} would overwrite the input file; choose another name")
    near = RunFolder(target.parent)
    if near.config.exists() and target in near.files():
        raise FedrecError(f"--out {out} would overwrite a file of the run itself; choose another name")


def folder_name(text: str, also: str = "") -> str:
    """Turn words into the name of a file or folder on every system; `also`: more characters that may stay."""
    # a name may have 255 bytes, and something may still be added to it
    return "".join(c if c.isalnum() or c in "-_.@+" + also else "-" for c in text)[:150]


def per_user_columns(prepared: Prepared, evaluation: Evaluation) -> dict[str, np.ndarray]:
    """Every metric of every evaluated user, in original ids; with one held-out item each, also its rank."""
    columns = {"user": prepared.source.user_ids[evaluation.users], **evaluation.per_user}
    # Positions are those of single items, so they are columns only where each user has exactly one.
    if len(evaluation.positions[0]) == len(evaluation.users):
        above, equal = evaluation.positions
        columns |= {"item": prepared.source.item_ids[prepared.test.items], "above": above, "equal": equal}
    return columns


class RunFolder:
    """Files of a run: config.toml, plan.json, metrics.jsonl, summary.json, per_user.csv, items.csv, users.csv, states.

    A model that was fitted to serve has fit.json instead of summary.json and per_user.csv, as nothing was tested, and
    `log.npz`, the log that it was fitted to.
    `checkpoint.safetensors` is the model of the chosen round, `last.safetensors` where to resume, `prepared.npz` the
    data as it was split. Files about single users, such as their state, are readable by the owner only.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.config = path / "config.toml"
        self.plan = path / "plan.json"
        self.metrics = path / "metrics.jsonl"
        self.summary = path / "summary.json"
        self.fit = path / "fit.json"
        self.per_user = path / "per_user.csv"
        self.best = path / "checkpoint.safetensors"
        self.last = path / "last.safetensors"
        self.prepared = path / "prepared.npz"
        self.interactions = path / "log.npz"
        self.items = path / "items.csv"
        self.users = path / "users.csv"

    def files(self) -> list[Path]:
        return [file for name, file in vars(self).items() if name != "path"]

    def is_private(self, file: Path) -> bool:
        # State and history are about single users, and others on a shared machine must not read them.
        return file in (self.best, self.last, self.prepared, self.interactions, self.per_user, self.users)

    def require_own_files(self) -> None:
        """A link may have come with the folder: its target is neither read as a file of the run nor overwritten."""
        for file in self.files():
            if file.is_symlink():
                raise FedrecError(f"{file} is a link; replace it by the file itself")

    @staticmethod
    def create(path: Path, config: Mapping[str, Any]) -> RunFolder:
        folder = RunFolder(path)
        folder.require_free()
        folder.require_own_files()
        try:
            path.mkdir(parents=True, exist_ok=True)
            # A log may lie there without a config, from a run that was removed by hand.
            folder.forget_after(0)
            folder._write_config(config)
        except OSError as error:
            raise FedrecError(f"cannot write to {path}: {error.strerror}; choose another --out") from None
        return folder

    def require_free(self) -> None:
        if self.config.exists():
            raise FedrecError(f"{self.path} already holds a run; continue it with --resume or choose another --out")

    @classmethod
    def open(cls, path: Path) -> Self:
        folder = cls(path)
        folder.require_own_files()
        if not folder.config.exists():
            raise FedrecError(f"{path} is not a run folder: it has no config.toml")
        return folder

    @contextmanager
    def lock(self) -> Iterator[None]:
        """A lock: two runs that write to one folder would destroy each other's records."""
        try:
            import fcntl
        except ImportError:  # a system without such locks
            # Without such a lock work goes on: it guards against a mistake and nothing else depends on it.
            yield
            return
        # The folder itself is locked, which leaves no lock file behind when a process is killed.
        descriptor = os.open(self.path, os.O_RDONLY)
        try:
            # Not waited for, since the other run may take days.
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            raise FedrecError(
                f"another run is in progress in {self.path}; wait for it, or choose another --out"
            ) from None
        except OSError:  # a file system without locks
            # Some network file systems have no locks, and refusing them would shut their users out.
            pass
        try:
            yield
        finally:
            # Closing gives the lock back, also when the process is killed.
            os.close(descriptor)

    def settings(self) -> dict[str, Any]:
        """The values of config.toml, as they were meant when the run was made."""
        return read_config(self.config, of_run=True)

    def require_finished(self) -> None:
        """For whoever looks at its figures."""
        if self.fit.exists():
            raise FedrecError(
                f"{self.path} is a model fitted to all interactions: nothing was held out, so there are "
                "no figures; name the run that it was made from"
            )
        self._require_end()

    def require_model(self) -> None:
        """For whoever serves from it."""
        if not self.fit.exists():
            self._require_end()
        self.require_state()

    def require_state(self) -> None:
        """For whoever needs the chosen round itself."""
        if not self.best.exists():
            anew = command_line("run", "--config", self.config, "--out", "FOLDER")
            raise FedrecError(f"{self.path} kept no model (--no-model): train it again with {anew}")

    def _require_end(self) -> None:
        if not self.summary.exists():
            begun = ("fit", "RUN") if protocol(self.settings()["protocol"]).split == UNDIVIDED else ("run",)
            how = command_line(*begun, "--resume", "--out", self.path)
            raise FedrecError(f"{self.path} is not finished: continue it with {how}")

    def reopen(self, config: Mapping[str, Any]) -> None:
        """The run is resumed, perhaps for more rounds than planned: its result is no longer final."""
        self._write_config(config)
        # Removed at once: a summary beside a run under way would be taken for its result.
        self.summary.unlink(missing_ok=True)

    def forget_last(self) -> None:
        """Nothing can go on from the last state."""
        self.last.unlink(missing_ok=True)

    def drop_model(self) -> None:
        """Keep the results alone. What was kept of the data serves nobody without the model."""
        for file in (self.best, self.last, self.prepared):
            file.unlink(missing_ok=True)

    def discard_unused(self) -> None:
        """Remove everything of a run that ended before its first round was finished."""
        begun = {self.config, self.plan, self.prepared}
        # Only what the run itself has made may be there, or something of the user's would go with it.
        if self.path.is_dir() and set(self.path.iterdir()) <= begun:
            for file in begun:
                file.unlink(missing_ok=True)
            self.path.rmdir()

    def discard(self) -> None:
        """Remove all files of a run that is not to be resumed."""
        for file in self.files():
            file.unlink(missing_ok=True)
        # A folder with anything else in it belongs to somebody, so it stays.
        if self.path.is_dir() and not any(self.path.iterdir()):
            self.path.rmdir()

    def _write_config(self, config: Mapping[str, Any]) -> None:
        import tomli_w

        # Written aside and moved: a half-written config could not even be resumed.
        with atomic_file(self.config) as temporary:
            temporary.write_text(tomli_w.dumps({"format": FORMAT, **config}), encoding="utf-8")

    def sweep(self) -> None:
        """Remove what a process that was killed while writing left: half-written files of ours and of safetensors."""
        for path in self.path.glob(".*"):
            # Exactly the patterns of our own temporary files and of safetensors', so that no hidden file of the user's
            # is hit.
            if re.fullmatch(r"\..+\.[0-9a-f]{32}|\.tmp[0-9A-Za-z]{6}", path.name):
                path.unlink(missing_ok=True)

    def log(self, record: Mapping[str, Any]) -> None:
        self.require_there()
        # Opened anew for each round, so that no handle stays on a folder that somebody may remove.
        with open(self.metrics, "a", encoding="utf-8", opener=_without_links) as file:
            file.write(json.dumps(record) + "\n")

    def require_there(self) -> None:
        """Somebody may remove a folder while a run writes to it."""
        if not self.config.exists():
            raise FedrecError(
                f"{self.path} was removed or emptied while its run was under way; nothing of it can be "
                "saved: start it again"
            )

    def sync_log(self) -> None:
        """Flush the log before a checkpoint, which would make the folder anew, relies on it."""
        self.require_there()
        if self.metrics.exists():
            # The checkpoint must not be newer on disk than the log whose rounds it speaks of.
            flush_to_disk(self.metrics)

    def records(self) -> list[dict[str, Any]]:
        """The lines of metrics.jsonl; one that was cut short by a kill is passed over."""
        # A damaged byte must not hide all other lines, so it is replaced and its line dropped.
        try:
            text = self.metrics.read_text(encoding="utf-8", errors="replace")
        except OSError:
            return []
        return [record for line in text.splitlines() if (record := json_line(line, ROUND)) is not None]

    def forget_after(self, round: int) -> None:
        """Drop log lines of rounds that a resumed run repeats."""
        if not self.metrics.exists():
            return
        text = self.metrics.read_text(encoding="utf-8", errors="replace")
        lines = [line for line in text.splitlines() if _round_of(line) < round]
        with atomic_file(self.metrics) as temporary:
            temporary.write_text("".join(line + "\n" for line in lines), encoding="utf-8")

    def write_ids(self, prepared: Prepared) -> None:
        """The users and items of the rows of the checkpoint's tables, in order."""
        info = prepared.source.info
        titles = None if info is None else info.titles
        items = [prepared.source.item_ids] if titles is None else [prepared.source.item_ids, titles]
        _write_columns(self.items, ["item", "title"][: len(items)], items)
        users = prepared.partition.users
        columns = [prepared.source.user_ids[users], prepared.partition.client_of()[users]]
        # Which rows belong to whom is about users, while titles are not, so only this file is private.
        _write_columns(self.users, ["user", "client"], columns, private=True)

    def write_per_user(self, columns: Mapping[str, np.ndarray]) -> None:
        self.require_there()
        _write_columns(self.per_user, list(columns), list(columns.values()), private=True)

    def take_over(self, other: RunFolder) -> None:
        """The results of another run of the same work, in files of this folder's own."""
        found = (file for file in other.path.iterdir() if file.is_file() and not file.is_symlink())
        # The summary comes last, for it says that a run has ended.
        for file in sorted(found, key=lambda file: file == other.summary):
            if file != other.config:
                with atomic_file(self.path / file.name, other.is_private(file)) as temporary:
                    # Copied and not linked: either folder may be removed or trained on without the other.
                    shutil.copyfile(file, temporary)

    def write_summary(self, summary: Mapping[str, Any]) -> None:
        _write_json(self.summary, summary)

    def write_plan(self, plan: Mapping[str, Any]) -> None:
        _write_json(self.plan, plan)

    def write_fit(self, about: Mapping[str, Any]) -> None:
        _write_json(self.fit, about)


class ReadOnlyFolder(RunFolder):
    """The folder as those of several processes have it that do not write: the first does it for all."""

    # The first process holds the lock for all; a second one of the same run would be refused.
    @contextmanager
    def lock(self) -> Iterator[None]:
        yield

    def reopen(self, config: Mapping[str, Any]) -> None: ...

    def forget_last(self) -> None: ...

    def drop_model(self) -> None: ...

    def discard_unused(self) -> None: ...

    def sweep(self) -> None: ...

    def log(self, record: Mapping[str, Any]) -> None: ...

    def require_there(self) -> None: ...

    def sync_log(self) -> None: ...

    def forget_after(self, round: int) -> None: ...

    def write_ids(self, prepared: Prepared) -> None: ...

    def write_per_user(self, columns: Mapping[str, np.ndarray]) -> None: ...

    def write_plan(self, plan: Mapping[str, Any]) -> None: ...

    def write_summary(self, summary: Mapping[str, Any]) -> None: ...


def _write_json(path: Path, values: Mapping[str, Any]) -> None:
    with atomic_file(path) as temporary:
        temporary.write_text(json.dumps(values, indent=2) + "\n", encoding="utf-8")


def _round_of(line: str) -> int:
    record = json_line(line, ROUND)
    # Damaged lines count as later than every round, so that they are dropped with those.
    return 1 << 62 if record is None else int(record["round"])


def _without_links(path: str, flags: int) -> int:
    # A link in the place of the log could lead writes anywhere; where the system can, it is refused.
    return os.open(path, flags | getattr(os, "O_NOFOLLOW", 0), 0o666)


def _write_columns(path: Path, names: list[str], columns: list[np.ndarray], private: bool = False) -> None:
    with atomic_file(path, private) as temporary, temporary.open("w", newline="", encoding="utf-8") as file:
        write_rows(file, [names])
        write_rows(file, zip(*(column.tolist() for column in columns), strict=True))
