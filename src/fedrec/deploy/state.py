"""What a node keeps on its disk: whole or not at all, one version for every turn, for one process at a time.

A turn is one message of the server: that of a round, or one of those that end a run. The state after a turn is a file
of its own, and the one before it stays: a turn that was broken off starts where it started the first time. One that was
answered is not done again (`answers`).
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from fedrec.data.atomic import atomic_file, make_private_folder
from fedrec.errors import FedrecError
from fedrec.experiment import checkpoint
from fedrec.experiment.folder import RunFolder
from fedrec.federation.contract import Tensors
from fedrec.federation.secret import KEY_BYTES

FORMAT = 1
KEPT = 3  # versions of the state: a server that comes back may be two turns behind, at the end of a run
TURN, SCORED = "turn", "scored"


class StateFolder:
    """`turn-N` is the state after turn N, `scored-R` what was scored after round R, with what was offered for it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.terms = path / "terms.json"
        self.peers = path / "peers.json"
        self.shard = RunFolder(path / "shard")

    def create(self) -> None:
        try:
            make_private_folder(self.path)
        except OSError as error:
            raise FedrecError(f"cannot use {self.path} for the state: {error.strerror}; choose another") from None

    @contextmanager
    def lock(self, name: str = "lock") -> Iterator[None]:
        """Refuse a second process: two that train the same clients would destroy each other's state."""
        import fcntl

        self.create()
        with (self.path / f".{name}").open("w") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise FedrecError(
                    f"{self.path} is in use by another process; give every node a folder of its own"
                ) from None
            yield

    # -- secrets --

    def secret(self) -> bytes:
        """The key of all draws of these clients, from the operating system; it never leaves the folder."""
        return self._load_or_create("secret")

    def token(self) -> str:
        """Return the token by which the server recognises this node, whatever its address."""
        return self._load_or_create("token").hex()

    def _load_or_create(self, name: str) -> bytes:
        path = self.path / name
        if not path.exists():
            with atomic_file(path, private=True) as temporary:
                temporary.write_bytes(secrets.token_bytes(KEY_BYTES))
        found = path.read_bytes()
        if len(found) != KEY_BYTES:
            raise FedrecError(f"{path} is damaged; restore it from a copy, or start over with another --state-dir")
        return found

    # -- versions --

    def numbers(self, kind: str) -> list[int]:
        """List the numbers of all files of a kind, ascending."""
        found = (re.fullmatch(rf"{kind}-(\d+)\.safetensors", path.name) for path in self.path.iterdir())
        return sorted(int(match[1]) for match in found if match)

    def file(self, kind: str, number: int) -> Path:
        return self.path / f"{kind}-{number:06d}.safetensors"

    def load_before(self, turn: int) -> tuple[Tensors, dict[str, Any], list[str]]:
        """Load the newest undamaged state before a turn (empty if there is none), and the faults of newer ones."""
        problems = list[str]()
        for number in reversed([one for one in self.numbers(TURN) if one < turn]):
            try:
                tensors, about = checkpoint.load(self.file(TURN, number))
                if about.get("state_format") != FORMAT:
                    raise FedrecError(
                        f"{self.file(TURN, number)} has the format of another fedrec version; use that version"
                    )
                return tensors, about, problems
            except FedrecError as error:
                problems.append(str(error))
        if problems:
            raise FedrecError(f"{problems[0]}; no older state is left: start this node over with another --state-dir")
        return {}, {}, problems  # what clients start with

    def save(self, turn: int, tensors: Tensors, about: dict[str, Any]) -> None:
        checkpoint.save(self.file(TURN, turn), tensors, {"state_format": FORMAT, "turn": turn, **about})
        old = [number for number in self.numbers(TURN) if number > turn] + self.numbers(TURN)[:-KEPT]
        for number in set(old) - {turn}:
            self.file(TURN, number).unlink(missing_ok=True)

    def save_scored(self, round: int, tensors: Tensors, about: dict[str, Any]) -> None:
        checkpoint.save(self.file(SCORED, round), tensors, {"state_format": FORMAT, "round": round, **about})

    def load_scored(self, round: int) -> tuple[Tensors, dict[str, Any]]:
        return checkpoint.load(self.file(SCORED, round))

    def forget_scored(self, but: set[int]) -> None:
        for number in set(self.numbers(SCORED)) - but:
            self.file(SCORED, number).unlink(missing_ok=True)
