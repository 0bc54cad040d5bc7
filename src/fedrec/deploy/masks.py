"""A node's part in secure sums. Each phase of a sum is answered once, and is on the disk before the reply leaves.

The same message gets the same reply again, another one is refused.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from fedrec.data.atomic import atomic_file
from fedrec.deploy.answers import RepeatedTurn, digest
from fedrec.deploy.framing import frame, unframe
from fedrec.deploy.keys import make_node_key
from fedrec.deploy.state import StateFolder
from fedrec.errors import FedrecError
from fedrec.federation.codec import BadMessage, unpack
from fedrec.federation.update import Update
from fedrec.secure import Member, Peers, SigningKey, Terms, read_public

PREFIX = "sum-"
KEPT = 2  # the sum of this round and that of the next


@dataclass
class _Part:
    """This node's part in one sum. Its secrets are gone (`member` is None) when the last phase is answered."""

    member: Member | None
    answers: dict[str, tuple[str, bytes]]
    """By phase, the hash of the message and the reply."""
    roster: list[int] = field(default_factory=list)

    def encode(self) -> bytes:
        header = {phase: asked for phase, (asked, _) in self.answers.items()}
        stored = b"" if self.member is None else self.member.save()
        return frame(
            {"answers": header, "roster": self.roster}, [stored, *(reply for _, reply in self.answers.values())]
        )

    @staticmethod
    def decode(stored: bytes) -> _Part:
        header, (member, *replies) = unframe(stored)
        answers = {
            phase: (asked, reply) for (phase, asked), reply in zip(header["answers"].items(), replies, strict=True)
        }
        return _Part(Member.load(member) if member else None, answers, header["roster"])


@dataclass(frozen=True)
class Masks:
    """`key`: the private key that signs for this node; by default one that it makes for itself.

    `peers`: a folder with the public keys of the other nodes, where they were agreed on.
    `least`: the smallest number of members that it takes part with. `changes`: files that are to be written, by name,
    with the reply to a turn or by `commit`.
    """

    state: StateFolder
    key: Path | None = None
    peers: Path | None = None
    changes: dict[str, bytes] = field(default_factory=dict)
    least: int = 2

    def keys(self, number: int, terms: bytes) -> bytes:
        """Enter a sum as a member of this number."""
        agreed = Terms.decode(terms)
        part = self._part(agreed.session) or _Part(Member(number, agreed, self.least), {})
        return self._answer(part, "keys", digest(terms, b"%d" % number), lambda one: one.keys(self._identity()))

    def phase(self, name: str, message: bytes) -> bytes:
        if name not in ("shares", "unmask"):
            raise BadMessage(f"a secure sum has no phase '{name:.20}' of its own")
        part = self._require_part(message)
        if name == "unmask":
            # Peers are not looked up to unmask: whose keys count was settled with the shares.
            return self._answer(part, name, digest(message), lambda member: member.unmask(message))
        peers = self._peers()
        reply = self._answer(part, name, digest(message), lambda member: member.shares(message, peers))
        # Remembered only after the shares were made, so that a refused message introduces nobody.
        self._remember(peers)
        return reply

    def mask(self, message: bytes, update: Update) -> bytes:
        """Put masks on an update. Its reply is part of a turn's, and kept with that."""
        part = self._require_part(message)
        # Two masked versions of an update under the same masks would reveal their difference.
        if "masked" in part.answers:
            raise RepeatedTurn("an update was masked for this secure sum already")
        return self._answer(part, "masked", digest(message), lambda member: member.mask(message, update), keep=False)

    def roster(self, message: bytes) -> tuple[int, ...]:
        """Return the members of the sum that a message belongs to."""
        return tuple(self._require_part(message).roster)

    def minimum(self, message: bytes) -> int:
        """Return how many members the sum that a message belongs to has at least, as this one makes sure."""
        member = self._require_part(message).member
        if member is None:
            raise RepeatedTurn("this secure sum is over")
        return member.terms.minimum

    def commit(self) -> None:
        """Write what has changed."""
        for name, content in self.changes.items():
            with atomic_file(self.state.path / name, private=True) as temporary:
                temporary.write_bytes(content)
        self.changes.clear()
        self.forget_old()

    def forget_old(self) -> None:
        # Only the two newest sums can still be asked about; older secrets are a risk without a use.
        for old in self._newest()[KEPT:]:
            old.unlink(missing_ok=True)

    def _answer(self, part: _Part, phase: str, asked: str, act: Callable[[Member], bytes], keep: bool = True) -> bytes:
        if phase in part.answers:
            first, reply = part.answers[phase]
            if first != asked:
                raise RepeatedTurn(f"'{phase}' of this secure sum was answered already, to another message")
            return reply
        if (member := part.member) is None:
            raise RepeatedTurn("this secure sum is over")
        reply = act(member)
        part.answers[phase] = asked, reply if keep else b""
        part.roster, session = sorted(member.roster), member.terms.session
        # Its secrets are of no use to anybody but a thief.
        if member.phase == "done":
            part.member = None
        self.changes[self._name(session)] = part.encode()
        return reply

    # -- on the disk --

    def _require_part(self, message: bytes) -> _Part:
        part = self._part(str(unpack(message)[0].get("session")))
        if part is None:
            raise FedrecError("this node is not in that secure sum")
        return part

    def _part(self, session: str) -> _Part | None:
        name = self._name(session)
        # What is not written yet goes before what lies on the disk: one message may touch a sum twice.
        if name in self.changes:
            return _Part.decode(self.changes[name])
        path = self.state.path / name
        return _Part.decode(path.read_bytes()) if path.exists() else None

    def _name(self, session: str) -> str:
        # Hashed, because the name of the session comes from the server and may not become a path.
        return PREFIX + hashlib.sha256(session.encode()).hexdigest()[:16]

    def _newest(self) -> Sequence[Path]:
        # By the time of writing: names are hashes and have no order.
        return sorted(self.state.path.glob(PREFIX + "*"), key=lambda path: path.stat().st_mtime_ns, reverse=True)

    # -- whose keys --

    def _identity(self) -> SigningKey:
        if self.key is not None:
            return SigningKey(self.key)
        own = self.state.path / "identity"
        if not own.exists():
            make_node_key(own)
        return SigningKey(own)

    def _peers(self) -> Peers:
        own = self._identity().public
        if self.peers is not None:
            return Peers(own, read_public(self.peers) - {own})
        met = self.state.peers
        known = json.loads(met.read_text(encoding="utf-8")) if met.exists() else {}
        # Without an agreed folder the first key that a member shows is trusted, and must be the same from then on.
        return Peers(own, None, {int(member): str(public) for member, public in known.items()})

    def _remember(self, peers: Peers) -> None:
        if peers.pinned is None:
            with atomic_file(self.state.peers, private=True) as temporary:
                temporary.write_text(json.dumps(peers.met, indent=1), encoding="utf-8")
