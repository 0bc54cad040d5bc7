"""FedBlend's mixture, centralised: what federation costs it.

The Gram model is the one that FedGram's clients arrive at by their sum. The sequence model is the centralised SASRec
with softmax over all items. Their scores are mixed as there (`methods/mixing.py`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Annotated, ClassVar

import torch
from torch import Tensor

from fedrec import method as fm
from fedrec.federation.accumulator import Accumulator
from fedrec.methods.closed_form.fedgram import FedGram
from fedrec.methods.mixing import Scale, mix_scores, share_at
from fedrec.methods.reference.sasrec import CentralSASRec
from fedrec.training.sequences import SequenceLoss


@dataclass(frozen=True)
class Blend(CentralSASRec):
    """CentralSASRec with a Gram model of the same users beside it."""

    info: ClassVar[fm.MethodInfo] = fm.MethodInfo(
        name="blend",
        summary="mixed scores of a Gram model and SASRec",
        backbones={"sasrec": {}},
        centralised=True,
        new_users=0,
        reads_order=lambda method: True,
    )

    gram_share: Annotated[float | None, "[0, 1]"] = None
    scale: Scale = "deviation"
    # of the Gram part: FedGram's preset `tuned`
    l2: fm.Positive = 1600.0
    half_life: fm.Positive = 3.0
    floor: Annotated[float, "[0, 1]"] = 0.08
    window: fm.Count = 2
    co: float = 0.8
    popularity_power: Annotated[float, "(-inf, inf)"] = 0.3
    # of the sequence part: its own preset `tuned`
    loss: SequenceLoss = "ce"
    dim: fm.Count = 128
    weight_decay: float = 1.0

    @cached_property
    def gram(self) -> FedGram:
        names = {field.name for field in fields(FedGram)} & {field.name for field in fields(self)} - {"rounds"}
        return FedGram(order=True, **{name: getattr(self, name) for name in names})

    @property
    def disclosure(self) -> fm.Disclosure:
        usual = super().disclosure
        return replace(usual, private=(*usual.private, "weight", "share"))

    def init_clients(self, world: fm.World, chunk: fm.Chunk) -> fm.State:
        state = super().init_clients(world, chunk)
        weight = self.gram.init_server(world)["weight"].expand(len(chunk.clients), -1, -1).clone()
        state.per_client |= {"weight": weight, "share": self._share(-1, chunk)}
        return state

    def local(self, state: fm.State, down: fm.Down, chunk: fm.Chunk, round: int) -> tuple[fm.State, fm.Uploads]:
        weight = self._solve(chunk) if round == 0 else state.per_client["weight"]
        new, _ = super().local(state, down, chunk, round)
        new.per_client |= {"weight": weight, "share": self._share(round, chunk)}
        return new, {}

    def round_parameters(self, round: int) -> Mapping[str, float]:
        return {} if self.gram_share is not None else {"gram_share": share_at(round, self.rounds, None)}

    def _share(self, round: int, chunk: fm.Chunk) -> Tensor:
        share = share_at(round, self.rounds, self.gram_share)
        return torch.full((len(chunk.clients),), share, dtype=chunk.world.dtype, device=chunk.world.device)

    def _solve(self, chunk: fm.Chunk) -> Tensor:
        """Solve for the Gram model of each client's users: there is one client, as a rule."""
        weights = []
        for client in chunk.clients:
            alone, sums = chunk.data.chunk(client[None], chunk.cohort, chunk.foldable), Accumulator()
            sums.add(self.gram.local(fm.State(), fm.Down(), alone, 0)[1], alone.clients, chunk.cohort)
            start: fm.Tensors = self.gram.init_server(chunk.world)
            weights.append(self.gram.aggregate(start, sums.update().ups(chunk.world.dtype), 0)["weight"])
        return torch.stack(weights)

    def score(self, state: fm.State, down: fm.Down, chunk: fm.Chunk, items: Tensor) -> Tensor:
        every = torch.arange(chunk.world.items, device=items.device)
        of_gram = torch.cat(
            [
                self.gram.score(fm.State(), fm.Down({"weight": weight}), replace(chunk, clients=client[None]), every)
                for client, weight in zip(chunk.clients, state.per_client["weight"], strict=True)
            ]
        )
        share = state.per_client["share"][chunk.owner, None]
        return mix_scores(of_gram, super().score(state, down, chunk, every), share, chunk, self.scale)[:, items]

    def footprint(self, world: fm.World) -> fm.Footprint:
        return replace(super().footprint(world), score=super().footprint(world).score + 4 * world.items * 8)
