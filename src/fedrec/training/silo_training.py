"""Local training of silos: several users around one model, gradient steps on triples, an optimiser that remembers.

A trainer is a plain object that a method has. It starts, trains and scores states that hold a model for every client
(`item` and the weights of a network) and the vectors of its users (`user`). Adam keeps its moments from round to round,
also where a server has overwritten the model in between.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Protocol

import numpy as np
import torch
from torch import Tensor

from fedrec.federation.clients import Chunk
from fedrec.federation.contract import State, Tensors, World, replicate
from fedrec.federation.secret import Secret
from fedrec.models import Backbone
from fedrec.models.gfcf import GFCF, round_scores
from fedrec.models.lightgcn import LightGCN
from fedrec.training.initial import DENSE, ITEM, fan_in_uniform, initial_key, normal_rows, normal_values, user_keys
from fedrec.training.triple_descent import ADAM, TripleDescent, TripleLoss, graph_of, no_moments, no_steps
from fedrec.training.triples import Triples

OWN = 1 << 32  # streams of initial values beside the common ones: those of clients that start by themselves


class Trainer(Protocol):
    """What methods of silos ask of theirs."""

    @property
    def model(self) -> Backbone | GFCF: ...

    def init_model(self, world: World, client: int | None = None) -> Tensors:
        """Item table and weights: common to all, or a client's own."""
        ...

    def start(self, world: World, chunk: Chunk, models: Tensors) -> State:
        """What clients hold before the first round, with these models, one per client, if they keep any."""
        ...

    def train(self, state: State, chunk: Chunk, round: int) -> State:
        """One round of local epochs; the tensors of the state may be changed in place."""
        ...

    def scores(self, state: State, chunk: Chunk, items: Tensor) -> Tensor:
        """What the chunk's users rank by, each with the model of its own client."""
        ...


def own_models(trainer: Trainer, world: World, clients: np.ndarray) -> Tensors:
    """One model per client, each from its own start."""
    found = [trainer.init_model(world, int(client)) for client in clients]
    # With no clients there is nothing to stack, but callers still need the names and shapes.
    if not found:
        return replicate(trainer.init_model(world), 0)
    return {name: torch.stack([mine[name] for mine in found]) for name in found[0]}


@dataclass(frozen=True)
class SiloTrainer:
    """Of a backbone with parameters."""

    model: Backbone
    loss: TripleLoss
    lr: float
    weight_decay: float
    batch: int
    epochs: int = 1
    resample: bool = False
    reset_optimiser: bool = False
    init_std: float = 0.1
    rank_by: Literal["score", "sigmoid"] = "score"

    def init_users(self, world: World, users: np.ndarray, secret: Secret | None = None) -> Tensor:
        width = self.model.dim if self.model.has_user else 0
        return normal_values(world, user_keys(world, users, secret), torch.arange(width)[None], self.init_std)

    def init_model(self, world: World, client: int | None = None) -> Tensors:
        # A client's own start is keyed by its number: who else is in the chunk must not change it.
        where = () if client is None else (OWN + client,)
        item, dense = (initial_key(world, kind, *where) for kind in (ITEM, DENSE))
        return {
            "item": normal_rows(world, item, world.items, self.model.dim, self.init_std),
            **fan_in_uniform(world, dense, self.model.dense_shapes()),
        }

    def start(self, world: World, chunk: Chunk, models: Tensors) -> State:
        user, clients = self.init_users(world, chunk.users, chunk.secret), len(chunk.clients)
        if self.reset_optimiser:
            return State(dict(models), {"user": user})
        shapes = {"item": (world.items, self.model.dim), **self.model.dense_shapes()}
        moments = no_moments({name: (clients, *shape) for name, shape in shapes.items()}, user)
        return State(
            models | no_steps(clients, user) | moments, {"user": user, **no_moments({"user": user.shape}, user)}
        )

    def train(self, state: State, chunk: Chunk, round: int) -> State:
        user, held = state.per_user["user"].clone(), state.per_client | state.per_user
        values = {"user": user} | {name: held[name] for name in ("item", *self.model.dense_shapes())}
        memory = {name: value for name, value in held.items() if name.startswith(ADAM)}
        if self.reset_optimiser:
            shapes = {name: value.shape for name, value in values.items()}
            memory = no_steps(len(chunk.clients), user) | no_moments(shapes, user)
        descent = TripleDescent(self.model, chunk, values, memory, self.loss, self.lr, self.weight_decay)
        self._descend(descent, chunk, round)
        return State(state.per_client, state.per_user | {"user": user})

    def _descend(self, descent: TripleDescent, chunk: Chunk, round: int) -> None:
        """Every triple once an epoch."""
        # One key for all rounds draws the same triples every time, so that they need not be stored.
        triples, total, count = Triples(chunk, round if self.resample else 0), 0.0, 0
        for epoch in range(self.epochs):
            for batch in triples.epoch(round, epoch, self.batch):
                total, count = total + descent.step(batch), count + len(batch.user)
        chunk.observe("loss", total, count)

    def scores(self, state: State, chunk: Chunk, items: Tensor) -> Tensor:
        logits = self._logits(state, chunk, items)
        return torch.sigmoid(logits) if self.rank_by == "sigmoid" else logits

    def _logits(self, state: State, chunk: Chunk, items: Tensor) -> Tensor:
        user, table = state.per_user["user"], state.per_client["item"]
        dense = {name: state.per_client[name] for name in self.model.dense_shapes()}
        if isinstance(self.model, LightGCN):
            user, nodes = self.model.convolve(graph_of(chunk), user, table.flatten(0, 1))
            table = nodes.view_as(table)
        if not torch.equal(items, torch.arange(table.shape[1], device=items.device)):
            table = table[:, items]
        if chunk.data.single:
            return self.model.scores(user, table, dense)
        ends, parts = chunk.client_ptr, []
        for k in range(len(chunk.clients)):
            mine = {name: value[k] for name, value in dense.items()}
            parts.append(self.model.scores(user[ends[k] : ends[k + 1]], table[k], mine))
        return torch.cat(parts)


@dataclass(frozen=True)
class FilterTrainer:
    """Of the filter of GF-CF, which follows from the rows at hand: tables and vectors have no columns."""

    model: GFCF

    def init_model(self, world: World, client: int | None = None) -> Tensors:
        return {"item": torch.zeros(world.items, 0, dtype=world.dtype, device=world.device)}

    def start(self, world: World, chunk: Chunk, models: Tensors) -> State:
        return State(dict(models), {"user": torch.zeros(len(chunk.users), 0, dtype=world.dtype, device=world.device)})

    def train(self, state: State, chunk: Chunk, round: int) -> State:
        return state

    def scores(self, state: State, chunk: Chunk, items: Tensor) -> Tensor:
        return filter_scores(self.model, chunk)[:, items]


def filter_scores(backbone: GFCF, chunk: Chunk) -> Tensor:
    """Every client's users by the filter of its own rows, in float64."""
    rows, ends = chunk.matrix(), chunk.client_ptr
    mine = (rows[ends[k] : ends[k + 1]] for k in range(len(chunk.clients)))
    return chunk.tensor(round_scores(np.concatenate([backbone.fit(part).apply(part) for part in mine])))
