"""A node's part in secure sums. The member's new state is on the disk before its message leaves."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from fedrec.data.atomic import atomic_file
from fedrec.deploy.keys import make_node_key
from fedrec.deploy.state import StateFolder
from fedrec.errors import FedrecError
from fedrec.federation.codec import BadMessage, unpack
from fedrec.federation.update import Update
from fedrec.secure import Member, Peers, SigningKey, Terms, read_public

PREFIX = "sum-"
KEPT = 2  # the sum of this round and that of the next


@dataclass(frozen=True)
class Masks:
    """`key`: the private key that signs for this node; by default one that it makes for itself.

    `peers`: a folder with the public keys of the other nodes, where they were agreed on.
    """

    state: StateFolder
    key: Path | None = None
    peers: Path | None = None

    def keys(self, number: int, terms: bytes) -> bytes:
        """Enter a sum as a member of this number."""
        member = Member(number, Terms.decode(terms))
        message = member.keys(self._identity())
        self._keep(member)
        return message

    def phase(self, name: str, message: bytes) -> bytes:
        member = self._member(message)
        if name == "shares":
            peers = self._peers()
            sent = member.shares(message, peers)
            self._remember(peers)
        elif name == "unmask":
            sent = member.unmask(message)
        else:
            raise BadMessage(f"a secure sum has no phase '{name:.20}' of its own")
        self._keep(member)
        return sent

    def mask(self, message: bytes, update: Update) -> bytes:
        member = self._member(message)
        sent = member.masked(message, update)
        self._keep(member)
        return sent

    # -- on the disk --

    def _member(self, message: bytes) -> Member:
        path = self._file(str(unpack(message)[0].get("session")))
        if not path.exists():
            raise FedrecError("this node is not in that secure sum")
        return Member.load(path.read_bytes())

    def _keep(self, member: Member) -> None:
        path = self._file(member.terms.session)
        if member.phase == "done":  # its secrets are of no use to anybody but a thief
            path.unlink()
            return
        with atomic_file(path, private=True) as temporary:
            temporary.write_bytes(member.save())
        for old in self._newest()[KEPT:]:
            old.unlink(missing_ok=True)

    def _file(self, session: str) -> Path:
        return self.state.path / (PREFIX + hashlib.sha256(session.encode()).hexdigest()[:16])

    def _newest(self) -> Sequence[Path]:
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
        return Peers(own, None, {int(member): str(public) for member, public in known.items()})

    def _remember(self, peers: Peers) -> None:
        if peers.pinned is None:
            with atomic_file(self.state.peers, private=True) as temporary:
                temporary.write_text(json.dumps(peers.met, indent=1), encoding="utf-8")
