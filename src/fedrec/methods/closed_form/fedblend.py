"""FedBlend: FedGram and a federated SASRec as one method, their scores mixed. Our own method.

In every round some clients send a clipped gradient of their own sequences, and the server steps Adam against the mean
(`average/fedopt.py`, backbone sasrec, softmax over all items). The first round asks all clients, who then also add
their Gram matrices to one blind sum (`fedgram.py`, order=true), from which the server solves an item-item model. Both
parts are sums, so that the server stays blind.

A client standardises both scores, so that they are of one scale: it subtracts their mean over the items that the user
has not met and divides by their standard deviation there. With z_g and z_s what comes out, it ranks by

    gram_share z_g + (1 - gram_share) z_s

Where no `gram_share` is given, a run goes through `SHARES` from round to round (by the golden ratio, so that all shares
come up whichever rounds are evaluated). The round that validation chooses has then chosen the share too.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Annotated, Any, ClassVar, TypeVar

import numpy as np
import torch
from torch import Tensor

from fedrec.federation.clients import Chunk
from fedrec.federation.contract import (
    Disclosure,
    Down,
    Footprint,
    Method,
    MethodInfo,
    Plan,
    Reduction,
    State,
    Tensors,
    Ups,
    World,
)
from fedrec.federation.declarations import Settings
from fedrec.federation.ranges import ANY, Count, Interval, Positive
from fedrec.methods.average.fedopt import FedOpt
from fedrec.methods.closed_form.fedgram import FedGram

Kind = TypeVar("Kind", bound=Method)
SHARES = (0.0, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 1.0)
GOLDEN = (5**0.5 - 1) / 2
GRAM, SEQUENCE = "gram.", "sequence."  # whose tensors of the server


@dataclass(frozen=True)
class FedBlend(Method):
    info: ClassVar[MethodInfo] = MethodInfo(
        name="fedblend",
        summary="FedGram and a federated SASRec, scores mixed, by sums alone",
        space={"server_lr": "0.0003..0.003", "dropout": "0.1..0.5", "l2": "100..10000", "half_life": "1..10",
               "co": "0.1..2", "popularity_power": "0..0.6"},
        presets={"ml-1m": {"floor": 0.04, "window": 1, "co": 0.4, "l2": 800.0, "popularity_power": 0.2, "dim": 128,
                           "length": 200, "clients_per_round": 256, "rounds": 2300}},
        new_users=0,
        reads_order=lambda method: True,
    )  # fmt: skip

    rounds: Count = 900
    gram_share: Annotated[float | None, Interval("[0, 1]")] = None  # None: as validation chooses
    # of the Gram part: FedGram's preset `tuned`
    l2: Positive = 1600.0
    half_life: Positive = 3.0
    floor: Annotated[float, Interval("[0, 1]")] = 0.08
    window: Count = 2
    co: float = 0.8
    popularity_power: Annotated[float, Interval(ANY)] = 0.3
    # of the sequence part: FedOpt's defaults for sasrec
    dim: Count = 64
    length: int = 100
    blocks: int = 2
    heads: int = 1
    dropout: Annotated[float, Interval("[0, 1)")] = 0.2
    sampled: int = 0  # items that the next one is among; 0: all
    clip: float = 0.5
    clients_per_round: int = 128
    server_lr: float = 0.001
    server_decay: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        _ = self.sequence.model  # refuses what it cannot be made with

    @cached_property
    def gram(self) -> FedGram:
        return _member(FedGram, self, {"order": True})

    @cached_property
    def sequence(self) -> FedOpt:
        return _member(FedOpt, self, {**FedOpt.info.backbones["sasrec"], "backbone": "sasrec"})

    @property
    def disclosure(self) -> Disclosure:
        """A Gram matrix alone would reveal everything; a gradient can be as far from another as its clip allows."""
        return Disclosure(secure_aggregation=True)

    # -- every round is FedOpt's, the first one FedGram's too --

    def init_server(self, world: World, attributes: Tensor | None = None) -> Tensors:
        share = torch.tensor(self._share(-1), dtype=world.dtype, device=world.device)
        gram, sequence = self.gram.init_server(world), self.sequence.init_server(world)
        return _marked(GRAM, gram) | _marked(SEQUENCE, sequence) | {"share": share}

    def init_clients(self, world: World, chunk: Chunk) -> State:
        return self.sequence.init_clients(world, chunk)

    def plan(self, world: World, server: Tensors, round: int) -> Plan:
        return Plan(np.arange(world.clients)) if round == 0 else self.sequence.plan(world, server, round)

    def broadcast(self, server: Tensors, clients: np.ndarray, round: int) -> Down:
        """Those who train need the sequence model alone."""
        return self.sequence.broadcast(_of(SEQUENCE, server), clients, round)

    def local(self, state: State, down: Down, chunk: Chunk, round: int) -> tuple[State, dict[str, Reduction]]:
        state, payload = self.sequence.local(state, down, chunk, round)
        return state, payload | (self.gram.local(state, down, chunk, round)[1] if round == 0 else {})

    def aggregate(self, server: Tensors, ups: Ups, round: int) -> Tensors:
        new = _marked(SEQUENCE, self.sequence.aggregate(_of(SEQUENCE, server), ups, round))
        if round == 0:
            new |= _marked(GRAM, self.gram.aggregate(_of(GRAM, server), ups, round))
        return server | new | {"share": torch.full_like(server["share"], self._share(round))}

    def _share(self, round: int) -> float:
        """In the middle at the last round, which counts where nothing is chosen."""
        if self.gram_share is not None:
            return self.gram_share
        turn = (0.5 + (self.rounds - 1 - round) * GOLDEN) % 1
        return SHARES[int(turn * len(SHARES))]

    # -- scores --

    def offer(self, server: Tensors, clients: np.ndarray, round: int, items: Tensor) -> Down:
        gram, sequence = (
            part.broadcast(_of(mark, server), clients, round).shared
            for part, mark in ((self.gram, GRAM), (self.sequence, SEQUENCE))
        )
        return Down(_marked(GRAM, gram) | _marked(SEQUENCE, sequence) | {"share": server["share"]})

    def score(self, state: State, down: Down, chunk: Chunk, items: Tensor) -> Tensor:
        every = torch.arange(chunk.world.items, device=items.device)
        unmet = _unmet(chunk)
        of_gram, of_sequence = (
            _standardised(part.score(state, Down(_of(mark, down.shared)), chunk, every), unmet)
            for part, mark in ((self.gram, GRAM), (self.sequence, SEQUENCE))
        )
        return torch.lerp(of_sequence, of_gram, down.shared["share"])[:, items]

    def footprint(self, world: World) -> Footprint:
        gram, sequence = self.gram.footprint(world), self.sequence.footprint(world)
        return replace(sequence, sample=gram.sample + sequence.sample, score=gram.score + sequence.score)


def _member(kind: type[Kind], whole: FedBlend, settings: Settings) -> Kind:
    """A part with those parameters of the whole that it has too."""
    names = {field.name for field in fields(kind)} & {field.name for field in fields(whole)}
    values: dict[str, Any] = {**settings, **{name: getattr(whole, name) for name in names}}
    return kind(**values)


def _marked(mark: str, tensors: Tensors) -> Tensors:
    return {mark + name: value for name, value in tensors.items()}


def _of(mark: str, tensors: Tensors) -> Tensors:
    return {name.removeprefix(mark): value for name, value in tensors.items() if name.startswith(mark)}


def _unmet(chunk: Chunk) -> Tensor:
    """[users, items]: 0 where a user's history has the item, else 1."""
    history, world = chunk.context, chunk.world
    unmet = torch.ones(len(chunk.places), world.items, dtype=world.dtype, device=world.device)
    user = np.repeat(np.arange(len(chunk.places)), np.diff(history.ptr))
    unmet[chunk.tensor(user), chunk.tensor(history.items)] = 0.0
    return unmet


def _standardised(scores: Tensor, unmet: Tensor) -> Tensor:
    """Mean 0 and deviation 1 over the items that a user has not met; scores that are all alike become 0."""
    count = unmet.sum(1, keepdim=True).clamp(min=1)
    away = scores - (scores * unmet).sum(1, keepdim=True) / count
    deviation = ((away.square() * unmet).sum(1, keepdim=True) / count).sqrt()
    return away / torch.where(deviation > 0, deviation, torch.ones_like(deviation))
