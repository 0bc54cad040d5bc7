"""Some clients of a chunk: their part of it, and of what all of them hold."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from fedrec.federation.clients import Chunk
from fedrec.federation.contract import State


@dataclass(frozen=True)
class SomeClients:
    """`clients` are positions in the chunk, ascending."""

    whole: Chunk
    clients: Tensor

    @cached_property
    def chunk(self) -> Chunk:
        """What is observed of them is observed of the whole chunk. Their state is a copy: no work on it can be left."""
        return replace(self.whole, clients=self.whole.clients[self.clients.cpu().numpy()], later=None)

    @cached_property
    def users(self) -> Tensor:
        """Their users' positions."""
        return torch.isin(self.whole.owner, self.clients).nonzero().flatten()

    def take(self, state: State) -> State:
        return State(
            {name: value[self.clients] for name, value in state.per_client.items()},
            {name: value[self.users] for name, value in state.per_user.items()},
        )

    def write(self, part: State, state: State) -> None:
        for name, value in part.per_client.items():
            state.per_client[name][self.clients] = value
        for name, value in part.per_user.items():
            state.per_user[name][self.users] = value
