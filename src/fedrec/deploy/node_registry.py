"""The nodes that a server has met: who they are, which client numbers are theirs, and who is there now."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from fedrec.data.atomic import atomic_file
from fedrec.deploy.framing import frame, unframe
from fedrec.deploy.link import Limits, Link, Lost
from fedrec.deploy.terms import Terms
from fedrec.errors import FedrecError
from fedrec.federation.codec import BadMessage

Tell = Callable[[str, Mapping[str, Any]], None]
"""Report an event: its name and its particulars."""
PAUSE = 300.0  # seconds until a node that was not let in is asked again


@dataclass
class Member:
    """A node, by a hash of its token, with the client numbers that are its own.

    `cpu`: processor seconds of all its messages since it joined, over `turns` turns.
    """

    name: str
    start: int
    clients: int
    users: int = 0
    interactions: int = 0
    given: int = 0
    """Users of its file, of whom filters keep `users`; 0: it did not say."""
    cpu: float = 0.0
    turns: int = 0

    @property
    def numbers(self) -> np.ndarray:
        return np.arange(self.start, self.start + self.clients)


@dataclass
class Counters:
    """What the report says about the deployment itself."""

    rejected: dict[str, int] = field(default_factory=dict)
    lost: int = 0
    missed: int = 0
    repeated: int = 0
    exchanges: int = 0
    unknown_rows: int = 0


class NodeRegistry:
    """`members` are all that were ever let in, in order; `here` says which of them is which node of the link now."""

    def __init__(self, terms: Terms, link: Link, limits: Limits, path: Path, tell: Tell, counters: Counters) -> None:
        self.terms, self.link, self.limits, self.path, self.tell = terms, link, limits, path, tell
        self.counters = counters
        self.members: list[Member] = self._read()
        self.groups = [member.numbers for member in self.members]
        self.here: dict[int, int] = {}
        self._excluded: set[int] = set()  # groups that are left out
        self._refused: dict[int, float] = {}  # nodes that were not let in, and when they may try again

    def present(self) -> dict[int, int]:
        """Return the admitted nodes that are connected at this moment, each with its group."""
        now = set(self.link.nodes())
        # Asked of the link each time: a node may have gone since it was greeted.
        return {node: group for node, group in self.here.items() if node in now and group not in self._excluded}

    def require(self, enough: int) -> None:
        """Greet connected nodes and wait until enough have joined."""
        if not self._gather(enough, self.limits.wait):
            raise FedrecError(
                f"{len(self.here)} of at least {enough} nodes have joined after "
                f"{self.limits.wait:g} s; start more nodes and continue with --resume"
            )

    def reunite(self) -> None:
        """Wait, after a restart, at most one turn for the nodes that were in the federation before."""
        self._gather(len(self.members), min(self.limits.deadline, self.limits.wait))

    def _gather(self, enough: int, seconds: float) -> bool:
        # A monotonic clock: setting the machine's time must not end or prolong the wait.
        until = time.monotonic() + seconds
        while True:
            self._greet()
            if len(self.here) >= enough:
                return True
            if time.monotonic() > until:
                return False
            time.sleep(self.limits.poll)

    def _greet(self) -> None:
        """Greet new nodes and forget those that left."""
        present = list(self.link.nodes())
        gone = [node for node in self.here if node not in present]
        for node in gone:
            self.tell("left", {"node": self.members[self.here.pop(node)].name})
        now = time.monotonic()
        new = [node for node in present if node not in self.here and self._refused.get(node, now) <= now]
        if new:
            self._meet(new)

    def exclude(self, group: int, reason: str) -> None:
        """Leave a group out of all that follows."""
        if group not in self._excluded:
            self._excluded.add(group)
            self.reject(self.members[group].name, f"{reason}; it is left out from now on")

    def reject(self, name: str, reason: str) -> None:
        self.counters.rejected[reason] = self.counters.rejected.get(reason, 0) + 1
        self.tell("refused", {"node": name, "reason": reason})

    def _meet(self, nodes: Sequence[int]) -> None:
        hello = frame({"kind": "hello"}, [self.terms.encode()])
        for node, reply in self.link.exchange(nodes, lambda _: hello, self.limits.deadline):
            try:
                if isinstance(reply, Lost):
                    raise BadMessage(reply.reason)
                header, _ = open_reply(reply)
                self.here[node] = self._group(header)
            except BadMessage as error:
                if not isinstance(reply, Lost):
                    self._refused[node] = time.monotonic() + PAUSE
                self.reject(f"node {node}", str(error))

    def _group(self, header: Mapping[str, Any]) -> int:
        """Return the group of a node, which is admitted if it is new."""
        try:
            # Only a hash of the token is kept, so that a stolen run folder lets nobody pose as a node.
            name = hashlib.sha256(str(header["token"]).encode()).hexdigest()[:12]
            clients, users, rows = (int(header[key]) for key in ("clients", "users", "interactions"))
            places, unknown = header["places"], int(header["unknown"]["rows"])
            given = int(header.get("given", 0))
        except (KeyError, TypeError, ValueError) as error:
            raise BadMessage(f"its announcement cannot be read ({error})") from None
        if header.get("vocabulary") != self.terms.vocabulary:
            raise BadMessage("it has another vocabulary")
        group = next((k for k, member in enumerate(self.members) if member.name == name), None)
        if group is None:
            group = self._admit(Member(name, self._place(clients, places), clients, users, rows, given))
        if group in self.here.values():
            # Two processes with one state would each spend the same privacy budget.
            raise BadMessage("its state folder is in use by another connected node")
        if self.members[group].clients != clients:
            raise BadMessage(
                f"it has {clients} clients now and had {self.members[group].clients}: its data has "
                "changed; start it over with another --state-dir"
            )
        self.counters.unknown_rows += unknown
        self.tell("joined", {"node": name, "clients": clients, "users": users, "unknown": header["unknown"]})
        return group

    def _place(self, clients: int, places: Sequence[int] | None) -> int:
        """Reserve client numbers for a new node and return the first; in a rehearsal it brings its own."""
        taken = sorted((member.start, member.start + member.clients) for member in self.members)
        # Numbers are given out in order and never again, since draws and states of clients depend on them.
        start = max((stop for _, stop in taken), default=0)
        if self.terms.seeded and places is not None:
            start = int(places[0])
        overlap = any(start < stop and first < start + clients for first, stop in taken)
        if clients < 1 or start < 0 or overlap or start + clients > self.terms.clients:
            raise BadMessage(
                f"no room for {clients} more clients: {self.terms.clients} numbers were reserved and "
                f"{sum(member.clients for member in self.members)} are taken"
            )
        return start

    def _admit(self, member: Member) -> int:
        self.members.append(member)
        self.groups.append(member.numbers)
        kept = [
            {
                "name": one.name,
                "start": one.start,
                "clients": one.clients,
                "users": one.users,
                "interactions": one.interactions,
                "given": one.given,
            }
            for one in self.members
        ]
        # Written at once: after a crash the numbers must belong to the same nodes, or states would be mixed up.
        with atomic_file(self.path, private=True) as temporary:
            temporary.write_text(json.dumps(kept, indent=1) + "\n", encoding="utf-8")
        return len(self.members) - 1

    def _read(self) -> list[Member]:
        path = self.path
        return [Member(**one) for one in json.loads(path.read_text(encoding="utf-8"))] if path.exists() else []


def open_reply(message: bytes) -> tuple[dict[str, Any], list[bytes]]:
    """Header and parts, unless the node says that something went wrong there."""
    header, parts = unframe(message)
    if "error" in header:
        # Cut, because the text comes from a stranger and goes into logs.
        raise BadMessage(str(header["error"])[:300])
    return header, parts
