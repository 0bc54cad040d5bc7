"""Secure sums at the server: that of this round, and that of the next, whose keys and shares travel with it.

A round is two exchanges then: masked updates come with the keys of the next sum, shares that take the masks off with
the sealed shares of the next. A sum that was not prepared so (the first, one after a restart, one that somebody new is
to be in) begins with two exchanges of its own.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np

from fedrec.federation.codec import BadMessage
from fedrec.federation.exchange import Coordinator
from fedrec.federation.update import Update
from fedrec.secure import Aborted, Collector, Layout, Terms, layout_of, new_session

LEAST = 2


class SecureSum:
    """`down`: by group, the message of the phase that comes next; who is not in it is out of the sum."""

    def __init__(self, layout: Layout, round: int, asked: Mapping[int, np.ndarray], minimum: int) -> None:
        terms = Terms(new_session(f"round {round}"), layout, max(LEAST, minimum))
        self.round, self.asked = round, asked
        self.collector = Collector(terms, asked)
        self.down: dict[int, bytes] = dict.fromkeys(asked, terms.encode())

    @property
    def phase(self) -> str:
        return self.collector.phase

    def take(self, phase: str, group: int, message: bytes) -> None:
        taken = {
            "keys": self.collector.take_keys,
            "shares": self.collector.take_shares,
            "masked": self.collector.take_masked,
            "unmask": self.collector.take_unmasked,
        }
        if group not in self.down:
            raise BadMessage("it is not in this secure sum")
        taken[phase](group, message)

    def close(self) -> None:
        """End a phase, without the members whose message has not come."""
        closed = {
            "keys": self.collector.close_keys,
            "shares": self.collector.close_shares,
            "masked": self.collector.close_masked,
        }
        self.down = closed[self.phase]()

    def result(self) -> Update:
        return self.collector.result()


class SecureSums:
    """The secure sums of a whole run."""

    def __init__(self, coordinator: Coordinator, minimum: int, rounds: int) -> None:
        self.coordinator, self.minimum, self.rounds = coordinator, minimum, rounds
        self.layout = layout_of(coordinator.schema, coordinator.server.method.info.name)
        self._prepared: SecureSum | None = None

    def sum_for(self, round: int, groups: Iterable[int]) -> SecureSum:
        """Return the sum of a round: the prepared one if all who are to send are in it, else a new one."""
        asked, sum = self._clients_of_round(round, groups), self._prepared
        self._prepared = None
        if sum is not None and sum.round == round and sum.phase == "masked":
            expected = all(np.array_equal(clients, sum.asked.get(group, ())) for group, clients in asked.items())
            if expected and asked.keys() <= sum.down.keys():
                return sum
        return SecureSum(self.layout, round, asked, self.minimum)

    def prepare_next(self, round: int, groups: Iterable[int]) -> SecureSum | None:
        """Begin the sum of the next round, whose keys travel with this one; None where no round follows."""
        asked = self._clients_of_round(round + 1, groups) if round + 1 < self.rounds else {}
        return SecureSum(self.layout, round + 1, asked, self.minimum) if len(asked) >= LEAST else None

    def keep(self, sum: SecureSum | None) -> None:
        """Remember the sum of the next round."""
        self._prepared = sum

    def _clients_of_round(self, round: int, groups: Iterable[int]) -> dict[int, np.ndarray]:
        sending = self.coordinator.server.plan(round).uploads()
        found = {group: np.intersect1d(self.coordinator.groups[group], sending) for group in groups}
        return {group: clients for group, clients in found.items() if len(clients)}


def closed_or_none(sum: SecureSum | None) -> SecureSum | None:
    """Close a phase of the next sum; None if too few are in it, which must not end this round."""
    try:
        if sum is not None:
            sum.close()
    except Aborted:
        return None
    return sum
