"""Adam on the triples of several clients, side by side; what it remembers can be handed on to the next round."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from fedrec.federation.clients import Chunk
from fedrec.federation.contract import Tensors
from fedrec.models import Backbone
from fedrec.models.lightgcn import Graph, LightGCN
from fedrec.training.optimisers import adam_step
from fedrec.training.triples import TripleBatch

ADAM = "adam."  # what the optimiser remembers, in a client's state
FIRST, SECOND, STEPS = ADAM + "first.", ADAM + "second.", ADAM + "steps"

TripleLoss = Literal["mse_elem", "bpr", "bce"]


def no_steps(clients: int, like: Tensor) -> Tensors:
    """How often every client has stepped, before its first step."""
    return {STEPS: torch.zeros(clients, dtype=torch.int64, device=like.device)}


def no_moments(shapes: Mapping[str, tuple[int, ...]], like: Tensor) -> Tensors:
    """What Adam remembers of parameters before its first step."""
    return {mark + name: like.new_zeros(shape) for name, shape in shapes.items() for mark in (FIRST, SECOND)}


def graph_of(chunk: Chunk) -> Graph:
    """All clients' interactions as one graph; its item nodes are client * items + item."""
    user = torch.repeat_interleave(
        torch.arange(len(chunk.places), device=chunk.world.device), chunk.tensor(chunk.user_ptr).diff()
    )
    node = chunk.owner[user] * chunk.world.items + chunk.tensor(chunk.items)
    return Graph.build(user, node, len(chunk.places), chunk.world.dtype)


class TripleDescent:
    """`values` are the parameters by name: `user`, one row per user, `item` and weights, one of each per client.

    They and `memory` are changed in place.
    """

    def __init__(
        self,
        model: Backbone,
        chunk: Chunk,
        values: Tensors,
        memory: Tensors,
        loss: TripleLoss,
        lr: float,
        weight_decay: float,
    ) -> None:
        self.model, self.chunk, self.values, self.memory = model, chunk, values, memory
        self.loss, self.lr, self.weight_decay = loss, lr, weight_decay
        self.graph = graph_of(chunk) if isinstance(model, LightGCN) else None

    def step(self, batch: TripleBatch) -> float:
        """One step of every client that has triples left; returns the summed loss."""
        leaves = {name: value.detach().requires_grad_() for name, value in self.values.items()}
        losses = self.losses(leaves, batch)
        share = 1.0 / batch.size[batch.owner].to(losses.dtype)
        active = batch.size > 0
        penalty = sum((leaves[name][active].square().sum() for name in self.model.dense_shapes()), torch.zeros(()))
        loss = (losses * share).sum() + self.weight_decay * penalty
        gradients = torch.autograd.grad(loss, list(leaves.values()))
        # Per client: silos have different numbers of batches, and Adam's correction depends on the own steps.
        self.memory[STEPS] += active
        for name, gradient in zip(leaves, gradients, strict=True):
            self._adam(name, gradient, active)
        return float(losses.detach().sum())

    def losses(self, leaves: Tensors, batch: TripleBatch) -> Tensor:
        """Loss of every triple, with the penalty on its three vectors (before any convolution)."""
        user, item = leaves["user"], leaves["item"].flatten(0, 1)
        ego = _vectors(batch, user, item)
        penalty = 0.5 * sum((vector.square().sum(-1) for vector in ego), torch.zeros(()))
        if self.graph is not None:
            assert isinstance(self.model, LightGCN)
            ego = _vectors(batch, *self.model.convolve(self.graph, user, item))
        p, liked, other = ego
        if self.loss == "mse_elem":
            losses = 0.5 * ((p * liked - 1).square().mean(-1) + (p * other).square().mean(-1))
        else:
            up, down = (self._logits(p, q, leaves, batch) for q in (liked, other))
            pointwise = self.loss == "bce"
            losses = 0.5 * (F.softplus(-up) + F.softplus(down)) if pointwise else F.softplus(down - up)
        return losses + self.weight_decay * penalty

    def _logits(self, user: Tensor, item: Tensor, leaves: Tensors, batch: TripleBatch) -> Tensor:
        dense = {name: leaves[name] for name in self.model.dense_shapes()}
        if not dense:
            return self.model.logits(user, item, {})
        # every client has weights of its own: triples are laid out in one row per client
        shape = (len(batch.size), batch.width, user.shape[1])
        laid = [v.new_zeros(shape[0] * shape[1], shape[2]).index_copy(0, batch.slot, v) for v in (user, item)]
        return self.model.logits(laid[0].view(shape), laid[1].view(shape), dense).flatten()[batch.slot]

    def _adam(self, name: str, gradient: Tensor, active: Tensor) -> None:
        """For the clients that take this step."""
        owner = self.chunk.owner if name == "user" else torch.arange(len(active), device=active.device)
        moving = active[owner]
        at: slice | Tensor = slice(None) if bool(moving.all()) else moving.nonzero()[:, 0]
        gradient, shape = gradient[at], (-1, *[1] * (gradient.dim() - 1))
        count = self.memory[STEPS][owner[at]].to(gradient.dtype).reshape(shape)
        first, second = self.memory[FIRST + name][at], self.memory[SECOND + name][at]
        moved = self.values[name][at].sub_(adam_step(gradient, first, second, count), alpha=self.lr)
        if not isinstance(at, slice):  # what was indexed is a copy
            for whole, part in zip(
                (self.memory[FIRST + name], self.memory[SECOND + name], self.values[name]),
                (first, second, moved),
                strict=True,
            ):
                whole[at] = part


def _vectors(batch: TripleBatch, user: Tensor, item: Tensor) -> list[Tensor]:
    """Of the user, the liked and the other item of every triple."""
    return [F.embedding(at, table) for at, table in ((batch.user, user), (batch.liked, item), (batch.other, item))]
