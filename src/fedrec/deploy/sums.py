"""Secure sums at the server: that of this round, and that of the next, whose keys and shares travel with it.

A round is two exchanges then: masked updates come with the keys of the next sum, shares that take the masks off with
the sealed shares of the next. A sum that was not prepared so (the first, one that somebody new is to be in) begins with
two exchanges of its own. A node masks one update a round, for one sum, so a sum that was asked for is never begun
again: what has arrived of it is on the disk, and a server that was stopped goes on with it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

import numpy as np

from fedrec.deploy.answers import digest
from fedrec.deploy.sum_journal import SumJournal
from fedrec.federation.codec import BadMessage
from fedrec.federation.exchange import Coordinator
from fedrec.federation.update import Update
from fedrec.secure import Aborted, Collector, Layout, Terms, layout_of, new_session

LEAST = 2


class SecureSum:
    """`down`: by phase and group, the message that begins the phase; who has none is out of the sum."""

    def __init__(self, journal: SumJournal, round: int, terms: Terms, asked: Mapping[int, np.ndarray]) -> None:
        self.journal, self.round, self.asked, self.terms = journal, round, asked, terms
        self.collector = Collector(terms, asked)
        self.down: dict[str, dict[int, bytes]] = {"keys": dict.fromkeys(asked, terms.encode())}
        self.requested = False  # whether nodes may have masked their updates for it
        self._taken: dict[tuple[str, int], str] = {}

    @staticmethod
    def begin(
        journal: SumJournal, layout: Layout, round: int, asked: Mapping[int, np.ndarray], minimum: int
    ) -> SecureSum:
        terms = Terms(new_session(f"round {round}"), layout, max(LEAST, minimum))
        clients = {str(group): numbers.tolist() for group, numbers in asked.items()}
        # Durable: that a sum was begun must be known after a power cut, or a node would mask for two sums.
        journal.append({"entry": "begin", "round": round, "asked": clients}, terms.encode(), durable=True)
        return SecureSum(journal, round, terms, asked)

    @staticmethod
    def read(journal: SumJournal) -> SecureSum | None:
        """Go through all that a journal holds once more; None where it holds nothing whole."""
        sum: SecureSum | None = None
        for header, message in journal.read():
            if sum is None:
                asked = {int(group): np.array(numbers, np.int64) for group, numbers in header["asked"].items()}
                sum = SecureSum(journal, int(header["round"]), Terms.decode(message), asked)
            elif header["entry"] == "take":
                sum._take(header["phase"], int(header["group"]), message)
            elif header["entry"] == "close":
                sum._close()
            else:
                sum.requested = True
        return sum

    @property
    def phase(self) -> str:
        return self.collector.phase

    @property
    def over(self) -> bool:
        return self.phase == "done"

    def has(self, phase: str, group: int) -> bool:
        return group in self.down.get(phase, {})

    def waits_for(self, group: int) -> bool:
        """Whether a group has still to send its message of this phase."""
        return self.has(self.phase, group) and (self.phase, group) not in self._taken

    def request(self) -> None:
        """Note that updates are going to be asked for, before they are."""
        if not self.requested:
            self.requested = True
            self.journal.append({"entry": "request"}, durable=True)

    def take(self, phase: str, group: int, message: bytes) -> None:
        """Take a message. The same once more, from a node that repeats itself, changes nothing."""
        if not self.has(phase, group):
            raise BadMessage("it is not in this secure sum")
        if (before := self._taken.get((phase, group))) is not None:
            if before != digest(message):
                raise BadMessage(f"another '{phase}' in the same secure sum")
            # The same message again is no offence: a node repeats itself when its reply got lost.
            return
        if self.over:
            return
        # Taken before it is written, so that a message which the collector refuses never enters the journal.
        self._take(phase, group, message)
        self.journal.append({"entry": "take", "phase": phase, "group": group}, message)

    def _take(self, phase: str, group: int, message: bytes) -> None:
        taken = {
            "keys": self.collector.take_keys,
            "shares": self.collector.take_shares,
            "masked": self.collector.take_masked,
            "unmask": self.collector.take_unmasked,
        }
        taken[phase](group, message)
        self._taken[phase, group] = digest(message)

    def close(self) -> None:
        """End a phase, without the members whose message has not come."""
        self._close()
        # Phases close for good, so each closing reaches the disk before the next messages go out.
        self.journal.append({"entry": "close"}, durable=True)

    def _close(self) -> None:
        closed = {
            "keys": self.collector.close_keys,
            "shares": self.collector.close_shares,
            "masked": self.collector.close_masked,
        }
        messages = closed[self.phase]()
        self.down[self.phase] = messages

    def result(self) -> Update:
        return self.collector.result()


class SecureSums:
    """The secure sums of a whole run, one a round. `folder`: where their journals are."""

    def __init__(self, coordinator: Coordinator, minimum: int, rounds: int, folder: Path) -> None:
        self.coordinator, self.minimum, self.rounds, self.folder = coordinator, minimum, rounds, folder
        self.layout = layout_of(coordinator.schema, coordinator.server.method.info.name)
        self._sums: dict[int, SecureSum] = {}
        # Sorted, so that journals are read in the order of their rounds whatever the file system says.
        for path in sorted(folder.iterdir()) if folder.is_dir() else ():
            self._load(SumJournal(path))

    def _load(self, journal: SumJournal) -> SecureSum | None:
        sum = SecureSum.read(journal)
        if sum is None:
            journal.remove()
        else:
            self._sums[sum.round] = sum
        return sum

    def sum_for(self, round: int, groups: Iterable[int]) -> SecureSum:
        """Return the sum of a round: the one that was requested, or prepared for all who are to send, or a new one."""
        # Sums of earlier rounds are over, and their journals of no more use.
        for number in [number for number in self._sums if number < round]:
            self._sums.pop(number).journal.remove()
        asked, sum = self._clients_of_round(round, groups), self._sums.get(round)
        if sum is not None and (sum.requested or self._is_prepared(sum, asked)):
            return sum
        return self._begin(round, asked)

    def _is_prepared(self, sum: SecureSum, asked: Mapping[int, np.ndarray]) -> bool:
        same = all(np.array_equal(clients, sum.asked.get(group, ())) for group, clients in asked.items())
        return sum.phase == "masked" and same and asked.keys() <= sum.down["masked"].keys()

    def _begin(self, round: int, asked: Mapping[int, np.ndarray]) -> SecureSum:
        journal = SumJournal(self.folder / f"{round:06d}")
        # The rest of a sum that never got messages out would be read as the beginning of this one.
        journal.remove()
        self._sums[round] = SecureSum.begin(journal, self.layout, round, asked, self.minimum)
        return self._sums[round]

    def prepare_next(self, round: int, groups: Iterable[int]) -> SecureSum | None:
        """Begin the sum of the next round, whose keys travel with this one; None where no round follows.

        Nodes whose updates were asked for were told of it then, and are to be told the same.
        """
        if round + 1 in self._sums or self._sums[round].requested:
            return self._sums.get(round + 1)
        asked = self._clients_of_round(round + 1, groups) if round + 1 < self.rounds else {}
        # A sum of one node is its update, so none is begun.
        return self._begin(round + 1, asked) if len(asked) >= LEAST else None

    def find(self, round: int) -> SecureSum | None:
        return self._sums.get(round)

    def retry(self, round: int) -> None:
        """Forget a phase that was closed with too few, so that more can still send."""
        if (sum := self._sums.get(round)) is not None and sum.requested:
            # Read again from the journal, which lacks the closing that failed.
            self._load(sum.journal)

    def is_requested(self, round: int) -> bool:
        """Whether nodes may have masked their updates of a round, and so will not do it for another sum."""
        return round in self._sums and self._sums[round].requested

    def _clients_of_round(self, round: int, groups: Iterable[int]) -> dict[int, np.ndarray]:
        sending = self.coordinator.server.plan(round).uploads()
        found = {group: np.intersect1d(self.coordinator.groups[group], sending) for group in groups}
        return {group: clients for group, clients in found.items() if len(clients)}


def close_or_drop(sum: SecureSum | None, phase: str) -> None:
    """Close a phase of the next sum; too few in it must not end this round."""
    try:
        if sum is not None and sum.phase == phase:
            sum.close()
    except Aborted:
        return
