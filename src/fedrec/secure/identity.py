"""Who made the keys of a secure sum: each member signs its own with a key that others know it by.

The server relays keys. One that puts others in their place could read every upload; it cannot sign for a member.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from fedrec.errors import FedrecError
from fedrec.federation.codec import BadMessage
from fedrec.secure.primitives import is_signed, public_key


def statement(session: str, member: int, mask: str, seal: str) -> bytes:
    """What a member signs: its keys, for one sum and as this member of it."""
    return f"fedrec keys of member {member} in {session}: {mask} {seal}".encode()


@dataclass
class Peers:
    """Whose signatures a member trusts, by the other members' numbers.

    `pinned`: public keys that were agreed on; another one is refused. None: whoever signs as a member first is that
    member from then on, and `met` is to be kept.
    """

    own: str
    pinned: frozenset[str] | None = None
    met: dict[int, str] = field(default_factory=dict)

    def require(self, session: str, keys: Mapping[int, Mapping[str, object]]) -> None:
        """That the keys of all these members are signed, each by a key of its own, as it is known."""
        # With its own in it: a key that comes back as a neighbour's would stand for nobody else.
        seen = {self.own}
        for member, given in keys.items():
            public = given.get("identity")
            if not isinstance(public, str):
                raise BadMessage(f"the keys of member {member} are not signed")
            if self.pinned is not None and public not in self.pinned:
                raise BadMessage(f"the keys of member {member} are signed by a key that was not agreed on")
            if self.met.get(member, public) != public:
                raise BadMessage(f"the keys of member {member} are signed by another key than before")
            if public in seen:
                raise BadMessage(f"the keys of member {member} are signed by a key that stands for another member")
            if not _is_signed(public, session, member, given):
                raise BadMessage(f"the keys of member {member} are not those that it signed")
            seen.add(public)
        # After all checks: a message with one bad signature must not fix anybody's identity.
        self.met |= {member: str(given["identity"]) for member, given in keys.items()}


def _is_signed(public: str, session: str, member: int, given: Mapping[str, object]) -> bool:
    try:
        signature = bytes.fromhex(str(given.get("signature")))
    except ValueError:
        return False
    return is_signed(public, statement(session, member, str(given.get("mask")), str(given.get("seal"))), signature)


def read_public(folder: Path) -> frozenset[str]:
    """The public keys (*.pub) of a folder."""
    found = set()
    for path in sorted(folder.glob("*.pub")):
        try:
            found.add(public_key(path.read_text(encoding="utf-8")))
        except (OSError, ValueError) as error:
            raise FedrecError(f"cannot read the public key {path} ({error})") from None
    if not found:
        raise FedrecError(f"{folder} holds no public keys (*.pub); put those of the other nodes there")
    return frozenset(found)
