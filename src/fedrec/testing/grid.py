"""Both sides of a method as if they were apart: groups of clients that the server reaches by serialised messages."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from fedrec.federation.client_side import ClientSide
from fedrec.federation.clients import ClientData
from fedrec.federation.contract import Method, Tensors
from fedrec.federation.exchange import Coordinator, Node
from fedrec.federation.schema import ClientSetup
from fedrec.federation.server_side import ServerSide


class Grid:
    """Every message is turned into bytes and back, and checked on arrival as if it came from a stranger."""

    def __init__(self, method: Method, data: ClientData, groups: Sequence[np.ndarray]) -> None:
        self.world, self.groups = data.world, [np.sort(group) for group in groups]
        self.nodes = [Node(ClientSide(method, data.shard(group))) for group in self.groups]
        like = ClientSetup(data.negatives, data.unique)
        self.coordinator = Coordinator(ServerSide(method, data.world), self.groups, like)

    def round(self, number: int) -> None:
        self.coordinator.begin(number)
        # Every reply is made before any is folded, as in a round of real clients, who do not see each other's.
        replies = [node.handle(self.coordinator.task(k).encode()) for k, node in enumerate(self.nodes)]
        for k, reply in enumerate(replies):
            self.coordinator.fold(k, reply)
        # A refusal is a failure here, although a deployment goes on without that group.
        assert not self.coordinator.rejected, self.coordinator.rejected
        self.coordinator.end()

    def outcome(self, round: int) -> Tensors:
        """As `worlds.outcome`, after the last answer has gone out."""
        # The last answer rides on the next task, so one more goes out, without training.
        for k, node in enumerate(self.nodes):
            node.handle(self.coordinator.task(k, train=False).encode())
        # Told to everybody once, and must not be told again.
        self.coordinator.drop_answer()
        found = {f"server.{name}": value for name, value in self.coordinator.server.tensors.items()}
        return found | self._states() | {"scores": self._scores(round)}

    def _states(self) -> Tensors:
        """What all clients hold, in order of their numbers."""
        parts: dict[str, list[tuple[np.ndarray, Tensor]]] = {}
        cohorts = len(self.nodes[0].side.cohorts)
        for node in self.nodes:
            for members in node.side.cohorts:
                mark = f"@{members.cohort.name}" if cohorts > 1 else ""
                users = np.repeat(members.cohort.clients, np.diff(members.user_ptr))
                for kind, owners, held in (
                    ("client", members.cohort.clients, members.state.per_client),
                    ("user", users, members.state.per_user),
                ):
                    for name, value in held.items():
                        parts.setdefault(f"{kind}.{name}{mark}", []).append((owners, value))
        return {name: _sort_by_owner(found) for name, found in parts.items()}

    def _scores(self, round: int) -> Tensor:
        items = torch.arange(self.world.items)
        parts: list[tuple[np.ndarray, Tensor]] = []
        for node, group in zip(self.nodes, self.groups, strict=True):
            offer = self.coordinator.step(round, group, lambda some: self.coordinator.server.offer(some, round, items))
            parts += node.side.scores(items, offer.select_down)
        return _sort_by_owner(parts)


def _sort_by_owner(parts: list[tuple[np.ndarray, Tensor]]) -> Tensor:
    """All rows by the number of their owner."""
    owners = np.concatenate([owner for owner, _ in parts])
    # A stable sort keeps the users of one client in their own order.
    return torch.cat([value for _, value in parts])[torch.from_numpy(np.argsort(owners, kind="stable"))]
