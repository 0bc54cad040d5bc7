"""FedDAE as its released code has it.

Nothing is a client's own. All load the server's own encoder, which it trains like the shared one, and start from the
first gate; they step on everything between epochs, gradients pile up over the epochs, and beta is there in the first
round only.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import torch
from torch import Tensor

from fedrec import method as fm
from fedrec.methods import personal
from fedrec.methods.personal import DECODER, GATE, OWN, PARTS, ROWED, SHARED, find_slope


@dataclass(frozen=True)
class FedDAEVariants(personal.FedDAE):
    info: ClassVar[fm.MethodInfo] = personal.FedDAE.info

    variant: Literal["paper", "released"] = "paper"
    """Equations as printed in the paper, or as in the released code."""

    @property
    def released(self) -> bool:
        return self.variant == "released"

    @property
    def disclosure(self) -> fm.Disclosure:
        return fm.Disclosure() if self.released else super().disclosure

    @property
    def sent(self) -> tuple[str, ...]:
        return (OWN, SHARED, DECODER) if self.released else super().sent

    def strength(self, round: int) -> float:
        if self.released:
            return self.beta if round == 0 else 0.0
        return super().strength(round)

    def init_clients(self, world: fm.World, chunk: fm.Chunk) -> fm.State:
        state = super().init_clients(world, chunk)
        return fm.State() if self.released else state

    def take_own(self, state: fm.State, chunk: fm.Chunk) -> fm.Tensors:
        if self.released:
            return take_rows_and_copies(self.network.initial(chunk.world, GATE), chunk)
        return super().take_own(state, chunk)

    def find_gradients(self, state: fm.State, sent: fm.Tensors, chunk: fm.Chunk, round: int) -> fm.Tensors:
        """Adam on copies of everything, gradients never cleared; returns their sum over epochs, sums of sums."""
        if not self.released:
            return super().find_gradients(state, sent, chunk, round)
        copies = take_rows_and_copies(sent, chunk)
        total: fm.Tensors = {}
        for _ in self.descend(self.take_own(state, chunk) | copies, {}, chunk, round):
            total = {name: total.get(name, 0) + find_slope(leaf) for name, leaf in copies.items()}
        whole = {name: put_in_place(v, sent[name], chunk) if name in ROWED else v for name, v in total.items()}
        return {name: value.sum(0) for name, value in whole.items()} if chunk.foldable else whole

    def footprint(self, world: fm.World) -> fm.Footprint:
        usual = super().footprint(world)
        if not self.released:
            return usual
        everything = 6 * self.network.entries(*PARTS, items=world.items)  # of every client copies, gradients, moments
        return replace(usual, client=4096 + everything * world.dtype.itemsize)


def take_rows_and_copies(common: fm.Tensors, chunk: fm.Chunk) -> fm.Tensors:
    """Return what every client trains of common weights: rows of its items, one client after another, and copies."""
    items = chunk.tensor(chunk.items)
    first = {name: value[items] for name, value in common.items() if name in ROWED}
    others = {name: value for name, value in common.items() if name not in first}
    return first | fm.replicate(others, len(chunk.clients))


def put_in_place(rows: Tensor, like: Tensor, chunk: fm.Chunk) -> Tensor:
    """[1, items, d] the sum of all clients' rows, or [clients, items, d] where each is sent by itself."""
    items = chunk.tensor(chunk.items)
    if chunk.foldable:
        return torch.zeros_like(like).index_add(0, items, rows).unsqueeze(0)
    table = like.new_zeros(len(chunk.clients), *like.shape)
    table[torch.repeat_interleave(chunk.tensor(chunk.positives)), items] = rows
    return table
