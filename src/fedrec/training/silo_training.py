"""Local training of silos: several users around one model, gradient steps on triples, an optimiser that remembers.

Adam keeps its moments from round to round, also where a server has overwritten the parameters in between. Silos may
differ in architecture (`blocks`); those of a block form a cohort.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any, Literal, Self

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from fedrec.errors import FedrecError, unknown
from fedrec.federation.clients import Chunk
from fedrec.federation.contract import Cohort, Footprint, Method, State, Tensors, World, replicate
from fedrec.federation.declarations import Settings, with_defaults
from fedrec.federation.ranges import Count
from fedrec.models import MF, NCF, Backbone
from fedrec.models.gfcf import GFCF, rounded
from fedrec.models.lightgcn import Graph, LightGCN
from fedrec.training.initial import DENSE, ITEM, fan_in_uniform, initial_key, normal_rows, normal_values, user_keys
from fedrec.training.optimisers import adam_step
from fedrec.training.triples import TripleBatch, Triples

OWN = 1 << 32  # streams of initial values beside the common ones: those of clients that start by themselves
ADAM = "adam."  # what the optimiser remembers, in a client's state
FIRST, SECOND, STEPS = ADAM + "first.", ADAM + "second.", ADAM + "steps"

TripleLoss = Literal["mse_elem", "bpr", "bce"]


DEFAULTS: Mapping[str, Settings] = {
    "mlp": {"dim": 32, "lr": 0.001, "weight_decay": 1e-3, "loss": "bce"},
    "lightgcn": {"weight_decay": 1e-3, "loss": "bpr"},
    "gfcf": {"rounds": 1},
}


silo_backbones = partial(with_defaults, DEFAULTS)


@dataclass(frozen=True)
class SiloTraining(Method):
    """The hyper-parameters of silos; by default those of FedCIA's released code for matrix factorisation."""

    rounds: Count = 500
    backbone: str = "mf"
    dim: Count = 512
    init_std: float = 0.1
    lr: float = 0.1  # of Adam
    weight_decay: float = 1e-6  # in the loss, on the vectors of the triples
    epochs: Count = 1
    batch: Count = 4096
    loss: TripleLoss = "mse_elem"  # of every coordinate's product (released); bpr as the paper says; bce for networks
    resample: bool = False  # draw new triples every round
    reset_optimiser: bool = False  # forget Adam's moments between rounds
    layers: int = 5  # lightgcn
    frequencies: Count = 32  # gfcf: singular vectors in the ideal part
    ideal_weight: float = 0.3  # gfcf: of the ideal part
    # The released code ranks by the sigmoid, which is exactly 1 above 17 in single precision: items tie, and their
    # numbers decide. (Filters have no sigmoid.)
    rank_by: Literal["score", "sigmoid"] = "score"
    blocks: str = ""  # architectures of equal blocks of silos, backbone:dim[:lr] each, e.g. mf:512+mf:256+mf:128

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.loss == "mse_elem" and self.backbone in ("mlp", "lightgcn"):
            raise FedrecError(f"loss=mse_elem is for backbone mf; use loss=bpr or loss=bce with {self.backbone}")
        if self.rank_by == "sigmoid" and self.backbone == "gfcf":
            raise FedrecError("rank_by=sigmoid is for trained backbones; gfcf has no sigmoid, leave it out")
        if self.blocks and any(part.backbone == "gfcf" for part in self.parts.values()):
            raise FedrecError(
                "gfcf has no table to align, so it cannot be one of several blocks; use mf, mlp, lightgcn"
            )

    @cached_property
    def model(self) -> Backbone | GFCF:
        return MODELS[self.backbone](self)

    # -- blocks of different architecture --

    @cached_property
    def parts(self) -> Mapping[str, Self]:
        """This method once for every block, under the name of its cohort."""
        if not self.blocks:
            return {"all": self}
        texts = self.blocks.split("+")
        return {f"{number}-{text}": self._part(text) for number, text in enumerate(texts)}

    def _part(self, text: str) -> Self:
        backbone, *numbers = text.split(":")
        if backbone not in self.info.backbones:
            raise unknown(f"backbone of {self.info.name}", backbone, self.info.backbones)
        try:
            sizes = {"dim": int(numbers[0])} | ({"lr": float(numbers[1])} if len(numbers) > 1 else {})
        except (ValueError, IndexError):
            raise FedrecError(
                f"blocks={self.blocks}: write backbone:dim or backbone:dim:lr for each, as in mf:512"
            ) from None
        if sizes["dim"] < 1 or len(numbers) > 2:
            raise FedrecError(f"blocks={self.blocks}: write backbone:dim or backbone:dim:lr for each, as in mf:512")
        values: dict[str, Any] = {**self.info.backbones.get(backbone, {}), **sizes}
        return replace(self, blocks="", backbone=backbone, **values)

    def part(self, chunk: Chunk) -> Self:
        """The method as the clients of a chunk know it. A newcomer, who has no cohort, joins the first block."""
        return self.parts.get(chunk.cohort, next(iter(self.parts.values())))

    def cohorts(self, world: World) -> Sequence[Cohort]:
        size, names = world.clients // len(self.parts), list(self.parts)
        ends = [*(size * k for k in range(len(names))), world.clients]
        return [Cohort(name, np.arange(ends[k], ends[k + 1])) for k, name in enumerate(names)]

    # -- initial values --

    def init_users(self, world: World, users: np.ndarray) -> Tensor:
        width = self.model.dim if self.model.has_user else 0
        return normal_values(world, user_keys(world, users), torch.arange(width)[None], self.init_std)

    def init_model(self, world: World, client: int | None = None) -> Tensors:
        """Item table and dense weights: common to all, or a client's own."""
        where = () if client is None else (OWN + client,)
        item, dense = (initial_key(world, kind, *where) for kind in (ITEM, DENSE))
        return {
            "item": normal_rows(world, item, world.items, self.model.dim, self.init_std),
            **fan_in_uniform(world, dense, self.model.dense_shapes()),
        }

    def init_memory(self, world: World, chunk: Chunk) -> State:
        """What Adam remembers before its first step."""
        if self.reset_optimiser or isinstance(self.model, GFCF):
            return State()
        shapes = {"item": (world.items, self.model.dim), **self.model.dense_shapes()}
        clients, users = len(chunk.clients), len(chunk.places)
        kind: dict[str, Any] = {"dtype": world.dtype, "device": world.device}
        steps = torch.zeros(clients, dtype=torch.int64, device=world.device)
        per_client = {
            moment + name: torch.zeros(clients, *shape, **kind)
            for name, shape in shapes.items()
            for moment in (FIRST, SECOND)
        }
        per_user = {moment + "user": torch.zeros(users, self.model.dim, **kind) for moment in (FIRST, SECOND)}
        return State({STEPS: steps, **per_client}, per_user)

    # -- training and scoring --

    def model_of(self, state: State) -> Tensors:
        """Item table and weights in a client's state."""
        return {name: state.per_client[name] for name in ("item", *self.model.dense_shapes())}

    def train(self, state: State, model: Tensors, chunk: Chunk, round: int) -> tuple[State, Tensors]:
        """One round of local epochs from `model` (item table and weights, one per client, changed in place).

        Returns the user vectors with Adam's memory, and the model.
        """
        if isinstance(self.model, GFCF):
            return State(per_user={"user": state.per_user["user"]}), model
        kept = State(*(
            {name: value for name, value in held.items() if name.startswith(ADAM)}
            for held in (state.per_client, state.per_user)
        ))  # fmt: skip
        descent = TripleDescent(self, chunk, state.per_user["user"], model, kept)
        descent.run(round)
        return State(kept.per_client, {"user": descent.values["user"], **kept.per_user}), model

    def model_scores(self, user: Tensor, model: Tensors, chunk: Chunk, items: Tensor) -> Tensor:
        """What the chunk's users rank by, each with the model of its own client."""
        if isinstance(self.model, GFCF):
            return filter_scores(self.model, chunk)[:, items]
        logits = self._model_logits(self.model, user, dict(model), chunk, items)
        return torch.sigmoid(logits) if self.rank_by == "sigmoid" else logits

    def _model_logits(self, backbone: Backbone, user: Tensor, model: Tensors, chunk: Chunk, items: Tensor) -> Tensor:
        table = model.pop("item")
        if isinstance(backbone, LightGCN):
            user, nodes = backbone.convolve(graph_of(chunk), user, table.flatten(0, 1))
            table = nodes.view_as(table)
        if not torch.equal(items, torch.arange(table.shape[1], device=items.device)):
            table = table[:, items]
        if chunk.data.single:
            return backbone.scores(user, table, model)
        ends, parts = chunk.client_ptr, []
        for k in range(len(chunk.clients)):
            mine = {name: value[k] for name, value in model.items()}
            parts.append(backbone.scores(user[ends[k] : ends[k + 1]], table[k], mine))
        return torch.cat(parts)

    # -- sizes --

    def parameters_of(self, world: World) -> int:
        """Numbers in the largest block's model."""
        sizes = [
            world.items * part.model.dim + sum(int(np.prod(shape)) for shape in part.model.dense_shapes().values())
            for part in self.parts.values()
        ]
        return max(sizes)

    def footprint(self, world: World) -> Footprint:
        size, parts = world.dtype.itemsize, self.parts.values()
        widest = max((shape[0] for part in parts for shape in part.model.dense_shapes().values()), default=0)
        return Footprint(
            client=4096 + 8 * self.parameters_of(world) * size,
            # three gathered vectors, products and gradients; a network holds its padded input too
            sample=100 + 6 * max(part.model.dim for part in parts) * size,
            score=(6 * max(size, 8) + 2 * widest * size) * world.items + 3 * self.parameters_of(world) * size,
        )


MODELS: dict[str, Callable[[SiloTraining], Backbone | GFCF]] = {
    "mf": lambda method: MF(method.dim),
    "mlp": lambda method: NCF(method.dim, hidden=(32,)),
    "lightgcn": lambda method: LightGCN(method.dim, method.layers),
    "gfcf": lambda method: GFCF(method.frequencies, method.ideal_weight),
}


def own_models(method: SiloTraining, world: World, clients: np.ndarray) -> Tensors:
    """One model per client, each from its own start."""
    found = [method.init_model(world, int(client)) for client in clients]
    if not found:
        return replicate(method.init_model(world), 0)
    return {name: torch.stack([mine[name] for mine in found]) for name in found[0]}


def graph_of(chunk: Chunk) -> Graph:
    """All clients' interactions as one graph; its item nodes are client * items + item."""
    user = torch.repeat_interleave(
        torch.arange(len(chunk.places), device=chunk.world.device), chunk.tensor(chunk.user_ptr).diff()
    )
    node = chunk.owner[user] * chunk.world.items + chunk.tensor(chunk.items)
    return Graph.build(user, node, len(chunk.places), chunk.world.dtype)


def filter_scores(backbone: GFCF, chunk: Chunk) -> Tensor:
    """Every client's users by the filter of its own rows, in float64."""
    rows, ends = chunk.matrix(), chunk.client_ptr
    mine = (rows[ends[k] : ends[k + 1]] for k in range(len(chunk.clients)))
    return chunk.tensor(rounded(np.concatenate([backbone.fit(part).apply(part) for part in mine])))


class TripleDescent:
    """Adam on the triples of a chunk's clients, side by side. `values` are the parameters, by name."""

    def __init__(self, method: SiloTraining, chunk: Chunk, user: Tensor, model: Tensors, memory: State) -> None:
        assert not isinstance(method.model, GFCF)
        self.method, self.chunk, self.backbone = method, chunk, method.model
        self.values = {"user": user.clone(), **model}
        self.memory = memory.per_client | memory.per_user
        if not self.memory:
            self.memory[STEPS] = torch.zeros(len(chunk.clients), dtype=torch.int64, device=user.device)
            for name, value in self.values.items():
                self.memory |= {FIRST + name: torch.zeros_like(value), SECOND + name: torch.zeros_like(value)}
        self.graph = graph_of(chunk) if isinstance(self.backbone, LightGCN) else None

    def run(self, round: int) -> None:
        method, total, count = self.method, 0.0, 0
        triples = Triples(self.chunk, round if method.resample else 0)
        for epoch in range(method.epochs):
            for batch in triples.epoch(round, epoch, method.batch):
                total, count = total + self._step(batch), count + len(batch.user)
        self.chunk.observe("loss", total, count)

    def _step(self, batch: TripleBatch) -> float:
        """One step of every client that has triples left; returns the summed loss."""
        leaves = {name: value.detach().requires_grad_() for name, value in self.values.items()}
        losses = self.losses(leaves, batch)
        share = 1.0 / batch.size[batch.owner].to(losses.dtype)
        active = batch.size > 0
        penalty = sum((leaves[name][active].square().sum() for name in self.backbone.dense_shapes()), torch.zeros(()))
        loss = (losses * share).sum() + self.method.weight_decay * penalty
        gradients = torch.autograd.grad(loss, list(leaves.values()))
        self.memory[STEPS] += active
        for name, gradient in zip(leaves, gradients, strict=True):
            self._adam(name, gradient, active)
        return float(losses.detach().sum())

    def losses(self, leaves: Tensors, batch: TripleBatch) -> Tensor:
        """Loss of every triple, with the penalty on its three vectors (before any convolution)."""
        user, item = leaves["user"], leaves["item"].flatten(0, 1)
        ego = [F.embedding(at, table) for at, table in _lookups(batch, user, item)]
        penalty = 0.5 * sum((vector.square().sum(-1) for vector in ego), torch.zeros(()))
        if self.graph is not None:
            assert isinstance(self.backbone, LightGCN)
            final = self.backbone.convolve(self.graph, user, item)
            ego = [F.embedding(at, table) for at, table in _lookups(batch, *final)]
        p, liked, other = ego
        if self.method.loss == "mse_elem":
            losses = 0.5 * ((p * liked - 1).square().mean(-1) + (p * other).square().mean(-1))
        else:
            up, down = (self._logits(p, q, leaves, batch) for q in (liked, other))
            pointwise = self.method.loss == "bce"
            losses = 0.5 * (F.softplus(-up) + F.softplus(down)) if pointwise else F.softplus(down - up)
        return losses + self.method.weight_decay * penalty

    def _logits(self, user: Tensor, item: Tensor, leaves: Tensors, batch: TripleBatch) -> Tensor:
        dense = {name: leaves[name] for name in self.backbone.dense_shapes()}
        if not dense:
            return self.backbone.logits(user, item, {})
        # every client has weights of its own: triples are laid out in one row per client
        shape = (len(batch.size), batch.width, user.shape[1])
        laid = [v.new_zeros(shape[0] * shape[1], shape[2]).index_copy(0, batch.slot, v) for v in (user, item)]
        return self.backbone.logits(laid[0].view(shape), laid[1].view(shape), dense).flatten()[batch.slot]

    def _adam(self, name: str, gradient: Tensor, active: Tensor) -> None:
        """For the clients that take this step."""
        owner = self.chunk.owner if name == "user" else torch.arange(len(active), device=active.device)
        moving = active[owner]
        at: slice | Tensor = slice(None) if bool(moving.all()) else moving.nonzero()[:, 0]
        gradient, shape = gradient[at], (-1, *[1] * (gradient.dim() - 1))
        count = self.memory[STEPS][owner[at]].to(gradient.dtype).reshape(shape)
        first, second = self.memory[FIRST + name][at], self.memory[SECOND + name][at]
        moved = self.values[name][at].sub_(adam_step(gradient, first, second, count), alpha=self.method.lr)
        if not isinstance(at, slice):  # what was indexed is a copy
            for whole, part in zip((self.memory[FIRST + name], self.memory[SECOND + name], self.values[name]),
                                   (first, second, moved), strict=True):  # fmt: skip
                whole[at] = part


def _lookups(batch: TripleBatch, user: Tensor, item: Tensor) -> tuple[tuple[Tensor, Tensor], ...]:
    return (batch.user, user), (batch.liked, item), (batch.other, item)
