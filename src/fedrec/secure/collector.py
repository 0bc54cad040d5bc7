"""The server's end of a secure sum: it relays keys and sealed shares, adds up masked uploads, and takes the masks off.

Masked uploads are folded in as they arrive, so memory does not grow with their number. What does not fit is refused by
name and never added; where too few are left the sum is given up whole.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch

from fedrec.federation.codec import BadMessage
from fedrec.federation.update import Update, distinct
from fedrec.secure import shamir
from fedrec.secure.fixed_point import ForgedWeight
from fedrec.secure.member import PHASES, binary, commitment, own_key, pair_key
from fedrec.secure.primitives import KEY_BYTES, PrivateKey, add_mask
from fedrec.secure.terms import Aborted, Circle, Terms, close_message, hash_digests, key_digest, numbers, open_message

HEADER = 1 << 13  # bytes of a message beside what grows with members or numbers
SIGNATURE, SIGNED = ("identity", "signature"), 1024  # what is relayed of it, and letters of each at most
# With a fifth of forty wrong and half of them needed, all honest ones are met once in some 600 draws.
TRIES = 2000
PER_MEMBER = 512  # bytes of shares for one neighbour, with room to spare


def _choices(holders: Sequence[int], needed: int) -> Iterator[Sequence[int]]:
    """Choose holders to trust: the first ones, then others at random, as often as is likely to meet honest ones."""
    # Nearly always everybody is honest, and then nothing needs to be drawn.
    yield holders[:needed]
    # Nothing secret hangs on these draws: they change how long it takes, never the sum, and repeat for debugging.
    draw = random.Random(0)
    for _ in range(TRIES):
        yield draw.sample(holders, needed)


class Collector:
    """`members`: those who are asked, each with the clients whose uploads it may send.

    Each phase takes one message of each, until it is closed.
    `close_keys`, `close_shares` and `close_masked` return what those who are left are sent next.
    """

    def __init__(
        self, terms: Terms, members: Mapping[int, np.ndarray], cohorts: Mapping[str, np.ndarray] | None = None
    ) -> None:
        """`cohorts`: the clients of each, where parts of the sum are over one cohort alone."""
        self._cohorts = cohorts or {}
        self.terms, self.members, self.phase = terms, members, PHASES[0]
        self._roster: list[int] = []  # who sent keys: the circle is made of them
        self._left = set(members)  # who may send in this phase: all, then those who sent in the phase before
        self._heard: set[int] = set()
        self._keys: dict[int, dict[str, str]] = {}
        self._public: dict[int, bytes] = {}  # the keys that masks are agreed with
        self._sealed: dict[int, dict[int, str]] = {}
        self._commitments: dict[int, str] = {}
        self._clients: dict[int, np.ndarray] = {}
        # Unsigned integers wrap modulo 2^64, which is the arithmetic that masks cancel in.
        self._sum = np.zeros(terms.layout.entries, dtype=np.uint64)
        self._shares: dict[int, dict[int, bytes]] = {}  # by whose secret it is, then by who held it
        self._unopened: dict[int, set[int]] = {}  # by whose shares they are, who could not open them
        self._graph = ""  # a hash of all keys, where they are signed
        self.culprits: dict[int, str] = {}
        """Who has sent what no honest member sends, and what it was."""

    @property
    def waiting(self) -> list[int]:
        """Who has not sent yet in this phase."""
        return sorted(self._left - self._heard)

    # -- keys --

    def take_keys(self, member: int, message: bytes) -> None:
        # Every message has a bound in bytes, or one member could fill the server's memory.
        header, _ = self._open(member, message, "keys", HEADER)
        mask, seal = (str(header.get(kind)) for kind in ("mask", "seal"))
        self._public[member] = binary(mask, KEY_BYTES, f"the key of member {member}")
        binary(seal, KEY_BYTES, f"the key of member {member}")
        # Cut, because what is relayed goes to every neighbour: one overlong text would be multiplied.
        signed: dict[str, str] = {
            name: str(header[name])[:SIGNED] for name in ("identity", "signature") if name in header
        }
        self._keys[member] = {"mask": mask, "seal": seal, **signed}
        self._heard.add(member)

    def close_keys(self) -> dict[int, bytes]:
        roster = self._roster = self._close("keys", "shares")
        signed = any("signature" in self._keys[member] for member in roster)
        digests = [key_digest(member, self._keys[member]) for member in roster] if signed else []
        self._graph, told, found = hash_digests(digests), {"digests": digests} if signed else {}, {}
        for member in roster:
            keys = {str(other): self._keys[other] for other in self._circle.neighbours(member)}
            found[member] = close_message(self.terms, "shares", {"roster": roster, **told, "keys": keys})
        return found

    # -- shares --

    def take_shares(self, member: int, message: bytes) -> None:
        header, _ = self._open(member, message, "shares", HEADER + PER_MEMBER * len(self._roster))
        neighbours = self._circle.neighbours(member)
        sealed, seed = header.get("sealed"), header.get("commitment")
        if not isinstance(sealed, dict) or set(sealed) != set(map(str, neighbours)):
            raise BadMessage(f"member {member} has not sent a share for each of its neighbours")
        if not isinstance(seed, str) or len(seed) != 64:
            raise BadMessage(f"member {member} has not committed to a seed")
        self._sealed[member] = {int(other): str(share) for other, share in sealed.items()}
        self._commitments[member] = seed
        self._heard.add(member)

    def close_shares(self) -> dict[int, bytes]:
        sharing = self._close("shares", "masked")
        self._require_holders(set(sharing), "sent shares")
        found = {}
        for member in sharing:
            sealed = {str(other): self._sealed[other][member] for other in self._neighbours(member)}
            found[member] = close_message(self.terms, "masked", {"sealed": sealed})
        # Relayed and never needed again, and they grow with members times neighbours.
        self._sealed = {}
        return found

    # -- masked uploads --

    def take_masked(self, member: int, message: bytes) -> None:
        entries = self.terms.layout.entries
        room = HEADER + 8 * (entries + len(self.members.get(member, ())))
        header, tensors = self._open(member, message, "masked", room + PER_MEMBER * len(self._roster))
        unopened = set(numbers(header.get("unopened", []), "the list of shares that cannot be opened"))
        total, clients = tensors.get("sum"), tensors.get("clients")
        if total is None or total.dtype != torch.int64 or tuple(total.shape) != (entries,):
            found = None if total is None else (tuple(total.shape), total.dtype)
            raise BadMessage(f"the upload of member {member} is {found}; it must be {entries} integers")
        if clients is None or clients.dtype != torch.int64 or clients.dim() != 1:
            raise BadMessage(f"the upload of member {member} does not say whose it is")
        if len(strangers := np.setdiff1d(clients.numpy(), self.members[member])):
            raise BadMessage(f"an upload of client {int(strangers[0])}, which was not requested from member {member}")
        if not unopened <= set(self._neighbours(member)):
            raise BadMessage(f"member {member} cannot open shares that it was not sent")
        for other in unopened:
            self._unopened.setdefault(other, set()).add(member)
        # Last of all: an upload that was added is not stored and so could not be taken out again.
        self._sum += total.numpy().view(np.uint64)
        self._clients[member] = clients.numpy()
        self._heard.add(member)

    def close_masked(self) -> dict[int, bytes]:
        arrived = self._close("masked", "unmask")
        self._require_holders(set(arrived), "sent their uploads")
        self._require_hidden()
        message = close_message(self.terms, "unmask", {"arrived": arrived})
        return dict.fromkeys(arrived, message)

    # -- the sum --

    def take_unmasked(self, member: int, message: bytes) -> None:
        header, _ = self._open(member, message, "unmask", HEADER + PER_MEMBER * len(self._roster))
        others = [other for other in self._neighbours(member) if member not in self._unopened.get(other, ())]
        given = header.get("shares")
        if not isinstance(given, dict) or set(given) != set(map(str, others)):
            raise BadMessage(f"member {member} has not sent a share for each of its neighbours")
        given = {**given, str(member): header.get("own")}
        # All are read before the first is stored, so that a refused message leaves nothing behind.
        shares = {
            int(name): binary(share, shamir.SHARE_BYTES, f"a share from member {member}")
            for name, share in given.items()
        }
        for owner, share in shares.items():
            self._shares.setdefault(owner, {})[member] = share
        self._heard.add(member)

    def result(self) -> Update:
        """The sum over all members whose uploads arrived, exact to fixed point."""
        # How many holders must have answered is decided secret by secret, when it is put together.
        self._close("unmask", "done", least=1)
        for member in sorted(self._clients):
            wanted = self._commitments[member]
            seed = self._recover(member, "seed", lambda found, wanted=wanted: commitment(found) == wanted)  # type: ignore[misc]
            add_mask(self._sum, own_key(seed, self.terms.session, member), -1)
        for member in sorted(self._commitments.keys() - self._clients.keys()):
            self._take_off_pairs(member)
        try:
            return self.terms.layout.decode(self._sum, distinct(list(self._clients.values())))
        except ForgedWeight as error:
            raise Aborted(str(error)) from None

    def _take_off_pairs(self, gone: int) -> None:
        """The masks that those who stayed have put on for one who left."""
        key = PrivateKey(self._recover(gone, "key", lambda found: PrivateKey(found).public == self._public[gone]))
        for other in self._neighbours(gone):
            if other in self._clients:
                pair = pair_key(key.agree(self._public[other]), self.terms.session, gone, other)
                # The opposite of the sign that the one who stayed has put it on with.
                add_mask(self._sum, pair, -1 if other < gone else 1)

    def _recover(self, member: int, what: str, fits: Callable[[bytes], bool]) -> bytes:
        """Put a secret together from shares, some of which may be wrong; it is known by what its owner published."""
        held, needed = self._shares.get(member, {}), self._circle.threshold
        if len(held) < needed:
            raise Aborted(f"{len(held)} shares of member {member} are left; the secure sum needs {needed}")
        # Sorted, so that the outcome does not depend on who answered first.
        for some in _choices(sorted(held), needed):
            good = {holder: held[holder] for holder in some}
            secret = shamir.combine(good, needed)
            if secret is not None and fits(secret):
                wrong = [holder for holder in held if shamir.share_of(good, holder, needed) != held[holder]]
                self.culprits |= dict.fromkeys(wrong, f"a wrong share of member {member}'s {what}")
                return secret
        self.culprits[member] = "shares of its own secrets that do not match"
        raise Aborted(f"the shares of member {member}'s {what} do not match: too many of them are wrong")

    # -- phases --

    @property
    def _circle(self) -> Circle:
        return self.terms.circle(self._roster, self._graph)

    def _neighbours(self, member: int) -> list[int]:
        """Of a member, those who sent shares."""
        return [other for other in self._circle.neighbours(member) if other in self._commitments]

    def _open(self, member: int, message: bytes, phase: str, limit: int) -> tuple[dict[str, Any], Any]:
        header, tensors = open_message(message, self.terms, phase, limit)
        if self.phase != phase:
            raise BadMessage(f"member {member} sent '{phase}' too late; the secure sum is at '{self.phase}'")
        if member not in self._left:
            raise BadMessage(f"member {member} is not, or no longer, part of this secure sum")
        if header.get("from") != member:
            raise BadMessage(f"member {member} sent a message of member {header.get('from')!s:.20}")
        if member in self._heard:
            raise BadMessage(f"member {member} sent '{phase}' twice")
        return header, tensors

    def _close(self, phase: str, then: str, least: int | None = None) -> list[int]:
        """End a phase; those who sent in it go on."""
        if self.phase != phase:
            raise BadMessage(f"the secure sum is at '{self.phase}', not at '{phase}'")
        self._left, self._heard, self.phase = self._heard, set(), then
        needed = self.terms.minimum if least is None else least
        if len(self._left) < needed:
            # For good: a late message must not revive a sum that was given up.
            self.phase = "done"
            raise Aborted(f"{len(self._left)} members sent '{phase}'; a secure sum needs {needed}")
        return sorted(self._left)

    def _require_hidden(self) -> None:
        """A part over one cohort is a sum as well, of those of its members who arrived."""
        for name in sorted({part.cohort for part in self.terms.layout.parts} - {""}):
            inside = self._cohorts.get(name, np.zeros(0, dtype=np.int64))
            count = sum(bool(np.isin(clients, inside).any()) for clients in self._clients.values())
            # Nobody of a cohort is fine: there is no upload then that a small group would have to hide.
            if 0 < count < self.terms.minimum:
                self.phase = "done"
                raise Aborted(f"{count} members of the cohort {name} arrived; a secure sum needs {self.terms.minimum}")

    def _require_holders(self, left: set[int], did: str) -> None:
        """Every secret that will be asked for must have enough holders left."""
        needed = self._circle.threshold
        for member in self._commitments:
            unopened = self._unopened.get(member, set())
            count = len(left.intersection(self._circle.neighbours(member)) - unopened) + (member in left)
            if count < needed and unopened:
                self.culprits[member] = "shares that its neighbours cannot open"
            if count < needed:
                self.phase = "done"
                raise Aborted(f"of member {member} and its neighbours {count} {did}; the secure sum needs {needed}")
