"""What everybody knows of a secure sum before it begins, and what follows from it: neighbours and threshold."""

from __future__ import annotations

import hashlib
import json
import math
import secrets
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import Any

from scipy.special import bdtr

from fedrec.errors import FedrecError
from fedrec.federation.codec import BadMessage, pack, unpack
from fedrec.secure.fixed_point import Layout

LEAST = 2  # members; even then each of them knows the other's part, but the server neither
COMPLETE = 16  # up to so many members, each is everybody's neighbour
FAILS = 1e-6  # how likely a round may be lost for want of shares


class Aborted(FedrecError):
    """A secure sum that cannot be finished: too few are left. Nothing of it was learned and nothing is averaged."""


@dataclass(frozen=True)
class Terms:
    """Of one sum. `session` names it and nothing else: no message fits another.

    `minimum`: of how many members the sum must at least be. `lost`: the share of members that may drop out on the way.
    """

    session: str
    layout: Layout
    minimum: int = 3
    lost: float = 0.05

    def __post_init__(self) -> None:
        if self.minimum < LEAST:
            raise FedrecError(f"a secure sum of {self.minimum} members hides nobody; the minimum is {LEAST}")
        # A secret needs a majority of its holders, which nobody can plan for once half of them are lost.
        if not 0 <= self.lost < 0.5:
            raise FedrecError(f"secure sums cannot be planned for {self.lost:.0%} lost uploads; below 50% they can")

    def encode(self) -> bytes:
        return pack(
            {"session": self.session, "layout": self.layout.to_dict(), "minimum": self.minimum, "lost": self.lost}, {}
        )

    @staticmethod
    def decode(message: bytes) -> Terms:
        header, _ = unpack(message)
        try:
            layout = Layout.from_dict(header["layout"])
            return Terms(str(header["session"]), layout, int(header["minimum"]), float(header["lost"]))
        except (KeyError, TypeError, ValueError) as error:
            raise BadMessage(f"these are not the terms of a secure sum ({error})") from None

    def circle(self, roster: Iterable[int], keys: str = "") -> Circle:
        """Put those who take part in an order that nobody chose: by a hash of the session and of all signed keys.

        Of the session alone, the server could try names until it has put somebody among members of its own.
        """
        # A tuple, because the cache needs arguments that can be hashed.
        return _circle(f"{self.session} {keys}", tuple(roster), self.lost)


@dataclass(frozen=True)
class Circle:
    """Members around a circle: neighbours of each are those next to it, half of them on either side."""

    order: tuple[int, ...]
    degree: int

    @property
    def threshold(self) -> int:
        """A majority of those who hold shares of a member, itself included.

        So nobody can gather enough shares of two different secrets of one member while each holder gives one.
        """
        return (self.degree + 1) // 2 + 1

    def neighbours(self, member: int) -> list[int]:
        at, count = self.order.index(member), len(self.order)
        if self.degree == count - 1:
            return sorted(set(self.order) - {member})
        steps = range(1, self.degree // 2 + 1)
        return sorted({self.order[(at + sign * step) % count] for step in steps for sign in (1, -1)})


@lru_cache(maxsize=8)  # in a simulation all members ask for the same
def _circle(seed: str, roster: tuple[int, ...], lost: float) -> Circle:
    members = sorted(set(roster), key=lambda member: hashlib.sha256(f"{seed} {member}".encode()).digest())
    return Circle(tuple(members), degree(len(members), lost))


@cache
def degree(members: int, lost: float) -> int:
    """How many neighbours each has: about 2 log2(members), more where many may be lost, all where there are few.

    So many that, with probability 1 - FAILS, a majority of every member's holders is left.
    """
    if members <= COMPLETE:
        return members - 1
    # Even numbers only: as many neighbours on one side as on the other.
    for count in range(2 * math.ceil(math.log2(members)), members - 1, 2):
        # A union bound: members share holders, and independence between them could not be claimed.
        if members * bdtr(Circle((), count).threshold - 1, count, 1 - lost) < FAILS:
            return count
    return members - 1


def key_digest(member: int, keys: Mapping[str, object]) -> str:
    """Hash the keys of a member with what it signed them by."""
    # Everybody has to hash the same text, in whatever order the dictionary has arrived.
    return hashlib.sha256(json.dumps([member, dict(keys)], sort_keys=True).encode()).hexdigest()


def hash_digests(digests: Sequence[str]) -> str:
    """Hash the keys of all members: whoever changes one changes the circle."""
    return hashlib.sha256(" ".join(digests).encode()).hexdigest() if digests else ""


def new_session(label: str) -> str:
    """A name that was never used before."""
    return f"{label} {secrets.token_hex(16)}"


def open_message(
    message: bytes, terms: Terms, phase: str, limit: int | None = None
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Header and tensors of a message of this sum and phase."""
    header, tensors = unpack(message, limit)
    if header.get("session") != terms.session:
        raise BadMessage(f"a message of another secure sum ({header.get('session')!s:.60})")
    if header.get("phase") != phase:
        raise BadMessage(f"a message of the phase '{header.get('phase')!s:.20}', where '{phase}' is due")
    return header, tensors


def close_message(terms: Terms, phase: str, values: dict[str, Any], tensors: dict[str, Any] | None = None) -> bytes:
    """A message of this sum and phase."""
    return pack({"session": terms.session, "phase": phase, **values}, tensors or {})


def numbers(values: Any, what: str) -> Sequence[int]:
    """A list of members' numbers as it arrived."""
    if not isinstance(values, list) or not all(isinstance(value, int) and value >= 0 for value in values):
        raise BadMessage(f"{what} is not a list of members")
    if len(set(values)) < len(values):
        raise BadMessage(f"{what} names a member twice")
    return values
