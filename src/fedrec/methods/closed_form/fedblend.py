"""FedBlend: FedGram and a federated SASRec as one method, their scores mixed. Our own method.

In every round some clients send a clipped gradient of their own sequences, and the server steps Adam against the mean
(`average/fedopt.py`, backbone sasrec, softmax over all items). The first round asks all clients, who then also add
their Gram matrices to one blind sum (`fedgram.py`, order=true), from which the server solves an item-item model. Both
parts are sums, so that the server stays blind.

A client brings both scores to one scale and ranks by gram_share z_g + (1 - gram_share) z_s; where no `gram_share` is
given, validation chooses it with the round (`methods/mixing.py`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Annotated, Any, ClassVar, TypeVar

import numpy as np
import torch
from torch import Tensor

from fedrec import method as fm
from fedrec.methods.average.fedopt import FedOpt
from fedrec.methods.closed_form.fedgram import FedGram
from fedrec.methods.mixing import Scale, mix_scores, share_at
from fedrec.models.sasrec import BlockKind
from fedrec.training.averaging import MEAN
from fedrec.training.sequences import Crop

Kind = TypeVar("Kind", bound=fm.Method)
GRAM, SEQUENCE = "gram.", "sequence."  # whose tensors of the server


@dataclass(frozen=True)
class FedBlend(fm.Method):
    info: ClassVar[fm.MethodInfo] = fm.MethodInfo(
        name="fedblend",
        summary="mixed scores of FedGram and a federated SASRec, from sums only",
        new_users=0,
        reads_order=lambda method: True,
    )

    rounds: fm.Count = 900
    gram_share: Annotated[float | None, "[0, 1]"] = None
    scale: Scale = "deviation"
    # of the Gram part: FedGram's preset `tuned`
    l2: fm.Positive = 1600.0
    half_life: fm.Positive = 3.0
    floor: Annotated[float, "[0, 1]"] = 0.08
    window: fm.Count = 2
    co: float = 0.8
    popularity_power: Annotated[float, "(-inf, inf)"] = 0.3
    # of the sequence part: FedOpt's defaults for sasrec
    dim: fm.Count = 64
    length: int = 100
    blocks: int = 2
    heads: int = 1
    block_kind: BlockKind = "sasrec"
    crop: Crop = "last"
    dropout: Annotated[float, "[0, 1)"] = 0.2
    sampled: int = 0
    clip: float = 0.5
    """Largest norm of a client's upload; 0: any."""
    clients_per_round: int = 128
    shares: fm.Shares = "equal"
    server_lr: float = 0.001
    server_decay: float = 0.0
    cooldown: Annotated[float, "[0, 1]"] = 0.0
    averaging: Annotated[float, "[0, 1)"] = 0.0
    personal_steps: int = 0
    personal_lr: fm.Positive = 1.0
    warm_start: bool = False
    """Whether the item table starts from the leading factors of the Gram model."""

    def __post_init__(self) -> None:
        super().__post_init__()
        # At once, so that a wrong setting is refused here and not when the first round begins.
        _ = self.sequence.model  # refuses what it cannot be made with

    @cached_property
    def gram(self) -> FedGram:
        return _make_part(FedGram, self, {"order": True})

    @cached_property
    def sequence(self) -> FedOpt:
        return _make_part(FedOpt, self, {**FedOpt.info.backbones["sasrec"], "backbone": "sasrec"})

    @property
    def disclosure(self) -> fm.Disclosure:
        """Ask for sums: a Gram matrix reveals everything; a gradient is as far from another as its clip allows."""
        return fm.Disclosure(secure_aggregation=True, covered_with=self.sequence.disclosure.covered_with)

    # -- every round is FedOpt's, the first one FedGram's too --

    def init_server(self, world: fm.World, attributes: Tensor | None = None) -> fm.Tensors:
        if self.warm_start and world.items < self.dim:  # there are only as many factors as items
            raise fm.FedrecError(f"warm_start with dim={self.dim} needs as many items, not {world.items}; lower dim")
        share = torch.tensor(share_at(-1, self.rounds, self.gram_share), dtype=world.dtype, device=world.device)
        gram, sequence = self.gram.init_server(world), self.sequence.init_server(world)
        return _add_mark(GRAM, gram) | _add_mark(SEQUENCE, sequence) | {"share": share}

    def init_clients(self, world: fm.World, chunk: fm.Chunk) -> fm.State:
        return self.sequence.init_clients(world, chunk)

    def plan(self, world: fm.World, server: fm.Tensors, round: int) -> fm.Plan:
        # All clients in the first round, because the closed form is exact only over all of them.
        return fm.Plan(np.arange(world.clients)) if round == 0 else self.sequence.plan(world, server, round)

    def broadcast(self, server: fm.Tensors, clients: np.ndarray, round: int) -> fm.Down:
        """Send those who train the sequence model alone."""
        return self.sequence.broadcast(_take_marked(SEQUENCE, server), clients, round)

    def local(self, state: fm.State, down: fm.Down, chunk: fm.Chunk, round: int) -> tuple[fm.State, fm.Uploads]:
        state, payload = self.sequence.local(state, down, chunk, round)
        return state, payload | (self.gram.local(state, down, chunk, round)[1] if round == 0 else {})

    def aggregate(self, server: fm.Tensors, ups: fm.Ups, round: int) -> fm.Tensors:
        new = _add_mark(SEQUENCE, self.sequence.aggregate(_take_marked(SEQUENCE, server), ups, round))
        if round == 0:
            gram = self.gram.aggregate(_take_marked(GRAM, server), ups, round)
            new |= _add_mark(GRAM, gram)
            if self.warm_start:
                new |= self._warm(leading_factors(gram["weight"], self.dim, self.sequence.init_std))
        return server | new | {"share": torch.full_like(server["share"], share_at(round, self.rounds, self.gram_share))}

    def _warm(self, table: Tensor) -> fm.Tensors:
        """Return the item table of the sequence part, and its mean, which begins with it."""
        mean = {SEQUENCE + MEAN + "item": table.clone()} if self.averaging else {}
        return {SEQUENCE + "item": table, **mean}

    # -- scores --

    def round_parameters(self, round: int) -> Mapping[str, float]:
        return {} if self.gram_share is not None else {"gram_share": share_at(round, self.rounds, None)}

    def offer(self, server: fm.Tensors, clients: np.ndarray, round: int, items: Tensor) -> fm.Down:
        gram, sequence = (
            part.offer(_take_marked(mark, server), clients, round, items).shared
            for part, mark in ((self.gram, GRAM), (self.sequence, SEQUENCE))
        )
        return fm.Down(_add_mark(GRAM, gram) | _add_mark(SEQUENCE, sequence) | {"share": server["share"]})

    def score(self, state: fm.State, down: fm.Down, chunk: fm.Chunk, items: Tensor) -> Tensor:
        # Both parts score all items, whatever was asked for: the scale is taken over all that a user has not met.
        every = torch.arange(chunk.world.items, device=items.device)
        of_gram, of_sequence = (
            part.score(state, fm.Down(_take_marked(mark, down.shared)), chunk, every)
            for part, mark in ((self.gram, GRAM), (self.sequence, SEQUENCE))
        )
        return mix_scores(of_gram, of_sequence, down.shared["share"], chunk, self.scale)[:, items]

    def footprint(self, world: fm.World) -> fm.Footprint:
        gram, sequence = self.gram.footprint(world), self.sequence.footprint(world)
        return replace(sequence, sample=gram.sample + sequence.sample, score=gram.score + sequence.score)


def _make_part(kind: type[Kind], whole: FedBlend, settings: Mapping[str, object]) -> Kind:
    """Make a part with those parameters of the whole that it has too."""
    names = {field.name for field in fields(kind)} & {field.name for field in fields(whole)}
    values: dict[str, Any] = {**settings, **{name: getattr(whole, name) for name in names}}
    return kind(**values)


def _add_mark(mark: str, tensors: fm.Tensors) -> fm.Tensors:
    return {mark + name: value for name, value in tensors.items()}


def _take_marked(mark: str, tensors: fm.Tensors) -> fm.Tensors:
    return {name.removeprefix(mark): value for name, value in tensors.items() if name.startswith(mark)}


def leading_factors(weight: Tensor, dim: int, deviation: float) -> Tensor:
    """Return leading eigenvectors of the symmetric part, as long as their eigenvalues' roots, at one deviation."""
    values, vectors = torch.linalg.eigh((weight + weight.T).double() / 2)
    # The last ones, because eigenvalues ascend; those below zero have no real root.
    table = vectors[:, -dim:] * values[-dim:].clamp(min=0).sqrt()
    # At the usual deviation, so that the server's steps, tuned for it, are neither too small nor too large.
    return (table * (deviation / table.std())).to(weight.dtype)
