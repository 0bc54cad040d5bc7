"""A client's end of a secure sum, in four phases: keys, shares, the masked upload, and shares to take masks off.

A member masks its upload twice. The pairwise masks, from a key agreed with each neighbour, cancel in the sum; if a
member drops out, its neighbours' shares give back its key and with it the masks that are left over. Its own mask, from
a seed, stays on an upload that arrives after it was given up. Of every neighbour a member gives the share of the key or
that of the seed, never both.
"""

from __future__ import annotations

import base64
import hashlib
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from fedrec.errors import FedrecError
from fedrec.federation.codec import BadMessage, pack, unpack
from fedrec.federation.update import Update
from fedrec.secure import shamir
from fedrec.secure.identity import Peers, statement
from fedrec.secure.primitives import KEY_BYTES, PrivateKey, SigningKey, add_mask, derive, seal, unseal
from fedrec.secure.terms import (
    LEAST,
    Aborted,
    Circle,
    Terms,
    close_message,
    hash_digests,
    key_digest,
    numbers,
    open_message,
)

PHASES = ("keys", "shares", "masked", "unmask", "done")


def text(value: bytes) -> str:
    return base64.b64encode(value).decode()


def binary(value: Any, size: int, what: str) -> bytes:
    """Bytes of a header, of the size that they must have."""
    try:
        # Letters outside the alphabet would be skipped, so that many texts would stand for one key.
        found = base64.b64decode(value, validate=True)
    except (ValueError, TypeError):
        raise BadMessage(f"{what} is not base64 text") from None
    if len(found) != size:
        raise BadMessage(f"{what} has {len(found)} bytes; it must have {size}")
    return found


def pair_key(secret: bytes, session: str, one: int, other: int) -> bytes:
    """Of the mask between two members, from what they agreed on."""
    # In one order, because both ends must derive the same key.
    return derive(secret, f"fedrec mask {session} {min(one, other)} {max(one, other)}")


def own_key(seed: bytes, session: str, member: int) -> bytes:
    """Of a member's own mask."""
    return derive(seed, f"fedrec own mask {session} {member}")


def commitment(seed: bytes) -> str:
    """By which a seed that was put together from shares is recognised."""
    # The prefix keeps this hash apart from anything else that is made of the seed.
    return hashlib.sha256(b"fedrec seed " + seed).hexdigest()


@dataclass
class Member:
    """One member in one sum: its secrets live as long as the sum does.

    `least`: the smallest group that it is willing to hide in. A member that a process cannot keep between phases is
    stored by `save`; the store must be on the client's side, and must be written before what the phase returned is
    sent, so that no phase is ever answered twice.
    """

    number: int
    terms: Terms
    least: int = LEAST
    phase: str = PHASES[0]
    # No secret is part of the repr, so that none gets into a log or a traceback.
    _mask_key: PrivateKey = field(default_factory=PrivateKey, repr=False)
    _seal_key: PrivateKey = field(default_factory=PrivateKey, repr=False)
    _seed: bytes = field(default_factory=lambda: secrets.token_bytes(KEY_BYTES), repr=False)
    _roster: list[int] = field(default_factory=list, repr=False)
    _keys: dict[int, tuple[bytes, bytes]] = field(default_factory=dict, repr=False)  # neighbours' public keys
    _held: dict[int, tuple[bytes, bytes]] = field(default_factory=dict, repr=False)  # shares of their keys and seeds
    _own_share: bytes = field(default=b"", repr=False)  # of this member's seed
    _sealing: dict[int, bytes] = field(default_factory=dict, repr=False)  # agreed with neighbours, to seal with
    _graph: str = field(default="", repr=False)  # a hash of all signed keys, which decides on the circle
    _signed: dict[str, str] = field(default_factory=dict, repr=False)  # what this member sent of keys

    def __post_init__(self) -> None:
        if self.terms.minimum < self.least:
            raise FedrecError(
                f"the secure sum may be of {self.terms.minimum} members; this client takes part in sums of at least "
                f"{self.least}"
            )

    @property
    def roster(self) -> list[int]:
        """All members of the sum; nobody before the phase of shares."""
        return list(self._roster)

    # -- the phases --

    def keys(self, identity: SigningKey | None = None) -> bytes:
        """First: two public keys, one to agree on masks and one to seal shares; signed, if it has an identity."""
        self._enter("keys", "shares")
        public = {"mask": text(self._mask_key.public), "seal": text(self._seal_key.public)}
        if identity is not None:
            signature = identity.sign(statement(self.terms.session, self.number, public["mask"], public["seal"]))
            public |= {"identity": identity.public, "signature": signature.hex()}
        self._signed = public
        return self._close("keys", public)

    def shares(self, message: bytes, peers: Peers | None = None) -> bytes:
        """Given the neighbours' keys: for each neighbour shares of both secrets that it alone can read.

        `peers`: by whom keys must be signed; None: by nobody.
        """
        self._require("shares")
        header, _ = open_message(message, self.terms, "shares")
        self._roster = list(numbers(header.get("roster"), "the roster"))
        # The server is not trusted with the minimum: every member counts for itself.
        if len(self._roster) < self.terms.minimum:
            raise Aborted(f"{len(self._roster)} members are left; a secure sum needs {self.terms.minimum}")
        if self.number not in self._roster:
            raise BadMessage("the roster of the secure sum leaves this member out")
        # Before the keys of the neighbours, because the digests decide who the neighbours are.
        digests = self._check_own_digest(header.get("digests"))
        self._graph = hash_digests(digests)
        self._keys = self._public_keys(header.get("keys"))
        if peers is not None:
            peers.require(self.terms.session, {other: header["keys"][str(other)] for other in self._keys})
            # Without them the server could try sessions until this member sits among accomplices.
            if not digests:
                raise BadMessage("the secure sum does not say what keys its circle is made of")
        for other in self._keys if digests else ():
            if digests[self._roster.index(other)] != key_digest(other, header["keys"][str(other)]):
                raise BadMessage(f"the keys of member {other} are not those that the circle was made of")
        # The member is a holder too: the threshold is a majority of all holders, itself included.
        mine, holders = self._circle, [*self._keys, self.number]
        of_key, of_seed = (shamir.split(secret, holders, mine.threshold) for secret in (self._mask_key.raw, self._seed))
        sealed = {
            str(other): text(
                seal(
                    self._sealing_key(self.number, other),
                    of_key[other] + of_seed[other],
                    self._about(self.number, other),
                )
            )
            for other in self._keys
        }
        self._own_share = of_seed[self.number]
        self._enter("shares", "masked")
        return self._close("shares", {"sealed": sealed, "commitment": commitment(self._seed)})

    def mask(self, message: bytes, update: Update) -> bytes:
        """Given the shares of those neighbours who sent some: the upload, masked. Once only."""
        self._require("masked")
        header, _ = open_message(message, self.terms, "masked")
        self._held, unopened = self._unseal(header.get("sealed"))
        self._require_enough(len(self._held) + len(unopened) + 1, "took part")
        total = self.terms.layout.encode(update, len(self._roster))
        add_mask(total, own_key(self._seed, self.terms.session, self.number), 1)
        # Whoever sent shares has put its half of the mask on, even where they could not be opened.
        for other in (*self._held, *unopened):
            secret = self._mask_key.agree(self._keys[other][0])
            key = pair_key(secret, self.terms.session, self.number, other)
            # One end adds what the other takes away, so the pair cancels in the sum.
            add_mask(total, key, 1 if self.number < other else -1)
        self._enter("masked", "unmask")
        clients = torch.from_numpy(np.ascontiguousarray(update.clients, dtype=np.int64))
        told = {"unopened": unopened} if unopened else {}
        # Tensors of uint64 are hardly supported, so the same bits travel as int64.
        return self._close("masked", told, {"sum": torch.from_numpy(total.view(np.int64)), "clients": clients})

    def unmask(self, message: bytes) -> bytes:
        """Given whose uploads arrived: of each neighbour one share, of the seed if its upload did, else of the key."""
        self._require("unmask")
        header, _ = open_message(message, self.terms, "unmask")
        arrived = set(numbers(header.get("arrived"), "the list of arrivals"))
        if len(arrived) < self.terms.minimum:
            raise Aborted(f"{len(arrived)} uploads arrived; a secure sum needs {self.terms.minimum}")
        if self.number not in arrived or not arrived <= set(self._roster):
            raise BadMessage("the list of arrivals names members outside this secure sum, or leaves this one out")
        self._require_enough(len(arrived & self._held.keys()) + 1, "sent their uploads")
        given = {
            str(other): text(of_seed if other in arrived else of_key) for other, (of_key, of_seed) in self._held.items()
        }
        # Answered once: two lists of arrivals would get the share of the key and that of the seed of one neighbour.
        self._enter("unmask", "done")
        # No phase needs them any more, and a stored member should hold no more secrets than it needs.
        self._held = {}
        return self._close("unmask", {"own": text(self._own_share), "shares": given})

    # -- what they are made of --

    @property
    def _circle(self) -> Circle:
        return self.terms.circle(self._roster, self._graph)

    def _check_own_digest(self, given: Any) -> list[str]:
        """Return a digest of every member's keys, this one's own among them; none where keys are not signed."""
        if given is None:
            return []
        if not isinstance(given, list) or len(given) != len(self._roster):
            raise BadMessage("the secure sum does not have a digest of every member's keys")
        if given[self._roster.index(self.number)] != key_digest(self.number, self._signed):
            raise BadMessage("the circle of the secure sum was not made of this member's keys")
        return [str(digest) for digest in given]

    def _public_keys(self, given: Any) -> dict[int, tuple[bytes, bytes]]:
        """Of the neighbours that follow from the roster, neither more nor fewer."""
        neighbours = self._circle.neighbours(self.number)
        # With others on the list, the server would choose who holds this member's shares.
        if not isinstance(given, dict) or set(given) != set(map(str, neighbours)):
            raise BadMessage("the keys are not those of this member's neighbours")
        found = {}
        for other in neighbours:
            pair, what = given[str(other)], f"the key of member {other}"
            mask, sealing = (pair.get("mask"), pair.get("seal")) if isinstance(pair, dict) else (None, None)
            found[other] = (binary(mask, KEY_BYTES, what), binary(sealing, KEY_BYTES, what))
        return found

    def _unseal(self, given: Any) -> tuple[dict[int, tuple[bytes, bytes]], list[int]]:
        """Shares of neighbours' keys and seeds, and whose cannot be opened: that costs a share, not the sum."""
        if not isinstance(given, dict) or not set(given) <= set(map(str, self._keys)):
            raise BadMessage("the shares are not those of this member's neighbours")
        size, found, unopened = shamir.SHARE_BYTES, {}, []
        for name, sealed in given.items():
            other = int(name)
            shares = self._open_share(other, sealed, 2 * size)
            if shares is None:
                unopened.append(other)
            else:
                found[other] = (shares[:size], shares[size:])
        return found, unopened

    def _open_share(self, sender: int, sealed: Any, size: int) -> bytes | None:
        try:
            # The cipher adds an authentication tag of 16 bytes.
            wrapped = binary(sealed, size + 16, f"the share from member {sender}")
        except BadMessage:
            return None
        return unseal(self._sealing_key(sender, self.number), wrapped, self._about(sender, self.number))

    def _sealing_key(self, sender: int, receiver: int) -> bytes:
        """One for each direction, so that each seals one text."""
        other = receiver if sender == self.number else sender
        if other not in self._sealing:
            self._sealing[other] = self._seal_key.agree(self._keys[other][1])
        return derive(self._sealing[other], f"fedrec seal {self._about(sender, receiver)}")

    def _about(self, sender: int, receiver: int) -> str:
        return f"{self.terms.session} from {sender} to {receiver}"

    def _require_enough(self, count: int, did: str) -> None:
        needed = self._circle.threshold
        if count < needed:
            raise Aborted(f"of member {self.number} and its neighbours {count} {did}; the secure sum needs {needed}")

    def _require(self, phase: str) -> None:
        if self.phase != phase:
            raise BadMessage(f"member {self.number} was asked for '{phase}', but its next phase is '{self.phase}'")

    def _enter(self, phase: str, then: str) -> None:
        self._require(phase)
        self.phase = then

    def _close(self, phase: str, values: dict[str, Any], tensors: dict[str, Any] | None = None) -> bytes:
        return close_message(self.terms, phase, {"from": self.number, **values}, tensors)

    # -- between processes --

    def save(self) -> bytes:
        """All of it, secrets included: for the client's own disk, never for the wire."""
        pairs = {
            name: {str(k): [text(a), text(b)] for k, (a, b) in getattr(self, f"_{name}").items()} for name in PAIRS
        }
        single = {
            "mask_key": text(self._mask_key.raw),
            "seal_key": text(self._seal_key.raw),
            "seed": text(self._seed),
            "own_share": text(self._own_share),
        }
        header = {"number": self.number, "least": self.least, "phase": self.phase, "roster": self._roster}
        header |= {"graph": self._graph, "signed": self._signed}
        # A bytearray, because torch warns of buffers that cannot be written to.
        terms = torch.frombuffer(bytearray(self.terms.encode()), dtype=torch.uint8)
        return pack({**header, **pairs, **single}, {"terms": terms})

    @staticmethod
    def load(stored: bytes) -> Member:
        header, tensors = unpack(stored)
        try:
            pairs: Mapping[str, Any] = {
                f"_{name}": {int(k): (base64.b64decode(a), base64.b64decode(b)) for k, (a, b) in header[name].items()}
                for name in PAIRS
            }
            mask, sealing, seed, own = (
                base64.b64decode(header[name]) for name in ("mask_key", "seal_key", "seed", "own_share")
            )
            terms = Terms.decode(tensors["terms"].numpy().tobytes())
            return Member(
                header["number"],
                terms,
                header["least"],
                header["phase"],
                PrivateKey(mask),
                PrivateKey(sealing),
                seed,
                header["roster"],
                **pairs,
                _own_share=own,
                _graph=str(header["graph"]),
                _signed=dict(header["signed"]),
            )
        except (KeyError, TypeError, ValueError) as error:
            raise BadMessage(f"this is not a stored member of a secure sum ({error})") from None


PAIRS = ("keys", "held")
