"""One round's secure sum at the server: what each node is sent next, phase by phase."""

from __future__ import annotations

from collections.abc import Iterable

from fedrec.federation.codec import BadMessage
from fedrec.federation.exchange import Coordinator
from fedrec.federation.update import Update
from fedrec.secure import Collector, Terms, layout_of, new_session

LEAST = 2


class SecureSum:
    """`down`: by group, the message of the phase that comes next; who is not in it is out of the sum."""

    before = ("keys", "shares")
    """Phases before the masked updates."""

    def __init__(self, coordinator: Coordinator, round: int, groups: Iterable[int], minimum: int) -> None:
        asked = {group: coordinator.asked(group) for group in groups}
        asked = {group: clients for group, clients in asked.items() if len(clients)}
        layout = layout_of(coordinator.schema, coordinator.server.method.info.name)
        terms = Terms(new_session(f"round {round}"), layout, max(LEAST, minimum))
        self.collector = Collector(terms, asked)
        self.down: dict[int, bytes] = dict.fromkeys(asked, terms.encode())

    def take(self, phase: str, group: int, message: bytes) -> None:
        taken = {"keys": self.collector.take_keys, "shares": self.collector.take_shares,
                 "masked": self.collector.take_masked, "unmask": self.collector.take_unmasked}  # fmt: skip
        if group not in self.down:
            raise BadMessage("it is not in this secure sum")
        taken[phase](group, message)

    def advance(self, phase: str) -> None:
        """Close a phase before the updates."""
        if phase == "keys":
            self.down = self.collector.close_keys()
        elif phase == "shares":
            self.down = self.collector.close_shares()

    def close(self) -> None:
        """All updates are here that will come."""
        self.down = self.collector.close_masked()

    def result(self) -> Update:
        return self.collector.result()
