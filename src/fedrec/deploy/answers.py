"""What a node has answered: every turn once, and the same reply again to whoever asks the same again.

A server that could have a turn answered twice, by other members or after another broadcast, would only have to subtract
to see one member's update, or to be rid of its noise. So the reply is on the disk before it leaves, with what was asked
for, and another question with the same number is refused.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from fedrec.data.atomic import atomic_file
from fedrec.deploy.framing import frame, unframe
from fedrec.errors import FedrecError
from fedrec.federation.codec import BadMessage

KEPT = 3  # a server that comes back may be two turns behind, at the end of a run
REPLIES, CHANGES = "answer", "changes"


class RepeatedTurn(FedrecError):
    """A question that differs from the one which was answered under the same number."""


def digest(*parts: bytes) -> str:
    """Hash parts together, each by itself, so that no two sequences of parts share a hash."""
    each = b"".join(hashlib.sha256(part).digest() for part in parts)
    return hashlib.sha256(each).hexdigest()


@dataclass(frozen=True)
class Question:
    """What a turn asks for. `roster`: the members of its secure sum; none where there is no sum."""

    turn: int
    message: str
    """Hash of the whole message."""
    task: str
    """Hash of the tasks in it, broadcast included."""
    roster: tuple[int, ...]
    data: str
    """Hash of the data that it is answered from."""

    def difference(self, other: Question) -> str:
        """Name what differs from another question."""
        if self.data != other.data:
            return "from other data"
        if self.roster != other.roster:
            return f"for the members {_join(self.roster)}, not {_join(other.roster)}"
        return "for another task" if self.task != other.task else "for another message"


def _join(roster: Sequence[int]) -> str:
    return ", ".join(map(str, roster)) or "(none)"


class AnswerBook:
    """`answer-N` is the reply to turn N. `changes` are files that take effect with the newest of them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @property
    def counter(self) -> int:
        """Count the turns that were answered so far."""
        newest = self._newest()
        return 0 if newest is None else int(self._read(newest)[0]["counter"]) + 1

    def recall(self, asked: Question) -> bytes | None:
        """Return the stored reply; None where the turn is new. What differs from the first question is refused."""
        newest = self._newest()
        if newest is None or asked.turn > newest:
            return None
        if not self._file(asked.turn).exists():
            raise RepeatedTurn(
                f"turn {asked.turn} was answered long ago, or passed over (this node is at turn {newest}); the server "
                "has an old checkpoint"
            )
        header, reply = self._read(asked.turn)
        first = Question(**{**header["asked"], "roster": tuple(header["asked"]["roster"])})
        if first != asked:
            raise RepeatedTurn(
                f"turn {asked.turn} was answered already, {first.difference(asked)}; a node answers a turn once"
            )
        return reply

    def record(self, asked: Question, reply: bytes, changes: Mapping[str, bytes]) -> None:
        """Store a reply durably, together with the files that it changes: all of it or nothing."""
        counter = self.counter
        self._write(CHANGES, frame({"message": asked.message, "names": list(changes)}, list(changes.values())))
        self._write(self._file(asked.turn).name, frame({"asked": asdict(asked), "counter": counter}, [reply]))
        self.recover()
        for number in self._numbers()[:-KEPT]:
            self._file(number).unlink(missing_ok=True)

    def recover(self) -> None:
        """Let the files change that the newest reply changes, unless they have; without the reply, forget them."""
        pending = self.folder / CHANGES
        if not pending.exists():
            return
        header, parts = unframe(pending.read_bytes())
        newest = self._newest()
        if newest is not None and self._read(newest)[0]["asked"]["message"] == header["message"]:
            for name, content in zip(header["names"], parts, strict=True):
                self._write(name, content)
        pending.unlink()

    def _newest(self) -> int | None:
        return max(self._numbers(), default=None)

    def _numbers(self) -> list[int]:
        matches = (re.fullmatch(rf"{REPLIES}-(\d+)", path.name) for path in self.folder.iterdir())
        return sorted(int(match[1]) for match in matches if match)

    def _file(self, turn: int) -> Path:
        return self.folder / f"{REPLIES}-{turn:06d}"

    def _read(self, turn: int) -> tuple[dict[str, Any], bytes]:
        try:
            header, (reply,) = unframe(self._file(turn).read_bytes())
            return header, reply
        except (BadMessage, ValueError, OSError) as error:
            raise FedrecError(
                f"{self._file(turn)} is damaged ({error}); restore it from a copy, or start this node over with "
                "another --state-dir"
            ) from None

    def _write(self, name: str, content: bytes) -> None:
        with atomic_file(self.folder / name, private=True) as temporary:
            temporary.write_bytes(content)
