"""Secure sums in a simulation: every client is a member, and all messages are made, checked and counted.

Keys, shares and seeds come from the operating system, not from the run's seed: masks cancel, so a run can be repeated
all the same.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch

from fedrec.errors import FedrecError
from fedrec.federation.blind import MakeBlindSums, Traffic
from fedrec.federation.contract import Cohort
from fedrec.federation.schema import Schema
from fedrec.federation.update import Update
from fedrec.secure.collector import Collector
from fedrec.secure.fixed_point import FRACTION, Layout, layout_of
from fedrec.secure.member import Member
from fedrec.secure.terms import Aborted, Terms, new_session

MINIMUM = 3  # clients of a sum
LOST = 0.05  # the share of uploads that is planned for at least


@dataclass(frozen=True)
class SimulatedSums:
    """Of a whole run. `lost`: the share of uploads that are lost on their way.

    `heard` is told all that reaches the server, for an audit: the phase, the client and the message.
    """

    layout: Layout
    lost: float
    device: torch.device
    heard: Callable[[str, int, bytes], None] | None = None
    cohorts: Mapping[str, np.ndarray] = field(default_factory=dict)

    def begin(self, members: np.ndarray, round: int, fewest: int = 0) -> SimulatedSum:
        for name in sorted({part.cohort for part in self.layout.parts}):
            count = int(np.isin(members, self.cohorts[name]).sum()) if name else len(members)
            if 0 < count < MINIMUM:
                raise FedrecError(
                    f"{count} clients{name and f' of {name}'} upload in round {round + 1}, but a secure sum hides "
                    f"nobody in fewer than {MINIMUM}; raise --participation, or use more clients"
                )
        terms = Terms(new_session(f"round {round + 1}"), self.layout, max(MINIMUM, fewest), max(self.lost, LOST))
        return SimulatedSum(terms, members, self.device, self.heard, self.cohorts)


def simulated_sums(
    method: str, lost: float, device: torch.device, bits: int | None = None, cohorts: Sequence[Cohort] = ()
) -> MakeBlindSums:
    """What cannot be summed blindly is refused by name."""

    def make(schema: Schema) -> SimulatedSums:
        layout = layout_of(schema, method, FRACTION if bits is None else bits)
        return SimulatedSums(layout, lost, device, cohorts={cohort.name: cohort.clients for cohort in cohorts})

    return make


@dataclass
class SimulatedSum:
    terms: Terms
    numbers: np.ndarray
    device: torch.device
    heard: Callable[[str, int, bytes], None] | None = None
    cohorts: Mapping[str, np.ndarray] = field(default_factory=dict)
    is_given_up: bool = False
    _bytes: dict[tuple[str, str], dict[int, int]] = field(default_factory=dict)
    _members: dict[int, Member] = field(default_factory=dict)
    _downs: dict[int, bytes] = field(default_factory=dict)
    _collector: Collector | None = None

    def take(self, update: Update) -> None:
        collector = self._open()
        client = int(update.clients[0])
        if not self.is_given_up:
            message = self._members[client].mask(self._downs.pop(client), update)
            collector.take_masked(client, self._count("up", "masked", client, message))

    def result(self) -> Update:
        if self._collector is None or self.is_given_up:
            return Update()
        try:
            self._ask("unmask", self._collector.close_masked(), self._collector.take_unmasked, Member.unmask)
            return self._collector.result().to(self.device)
        except Aborted:
            self.is_given_up = True
            return Update()

    def traffic(self) -> Traffic:
        return [(way, np.array(list(sizes)), np.array(list(sizes.values()))) for (way, _), sizes in self._bytes.items()]

    def _open(self) -> Collector:
        """Keys and shares of all who are to upload, at the first upload that arrives."""
        if self._collector is None:
            own = {int(number): np.array([number]) for number in self.numbers}
            self._collector = collector = Collector(self.terms, own, self.cohorts)
            self._members = {int(number): Member(int(number), self.terms) for number in self.numbers}
            start = dict.fromkeys(self._members, self.terms.encode())
            try:
                self._ask("keys", start, collector.take_keys, lambda member, _: member.keys())
                self._ask("shares", collector.close_keys(), collector.take_shares, Member.shares)
                self._downs = collector.close_shares()
            except Aborted:
                self.is_given_up = True
            # Not when the upload comes in: a client that drops out in between was sent this as well.
            for client, down in self._downs.items():
                self._count("down", "masked", client, down)
        return self._collector

    def _ask(
        self,
        phase: str,
        downs: dict[int, bytes],
        take: Callable[[int, bytes], None],
        answer: Callable[[Member, bytes], bytes],
    ) -> None:
        for client, down in downs.items():
            self._count("down", phase, client, down)
            take(client, self._count("up", phase, client, answer(self._members[client], down)))

    def _count(self, way: str, phase: str, client: int, message: bytes) -> bytes:
        self._bytes.setdefault((way, phase), {})[client] = len(message)
        if way == "up" and self.heard is not None:
            self.heard(phase, client, message)
        return message
