"""Local training, shared by the methods that train a backbone by gradient descent on their clients.

Every client takes its own steps on its own batches; the clients of a chunk take them side by side. Only the rows that
a round's samples touch are gathered, trained and sent on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from typing import ClassVar, Literal

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from fedrec.federation.available import has_numba
from fedrec.federation.clients import Chunk
from fedrec.federation.contract import Folded, Method, Rows, Tensors, World
from fedrec.federation.samples import Batch, Loss, Samples
from fedrec.models import BACKBONES, Backbone
from fedrec.random import Purpose, fold, fold_tensor, normal, stream, uniform

USER, ITEM, DENSE = 0, 1, 2  # streams of initial values
SMALL = 2_000_000  # parameters in a step


@dataclass
class Fitted:
    """What a chunk's clients hold after local training. `table` is Rows or Folded where the start was shared."""

    user: Tensor
    table: Rows | Folded | Tensor
    dense: Tensors = field(default_factory=dict)


@dataclass(frozen=True)
class LocalTraining(Method):
    """The hyper-parameters of local training, and `fit`."""

    # A network needs gentler steps than the bare inner product: Adam at the rate of FedCA's comparison.
    backbone_defaults: ClassVar[Mapping[str, Mapping[str, object]]] = {
        "ncf": {"optimiser": "adam", "lr": 0.01, "init_std": 0.1}
    }

    # Each batch is gone through once per phase: a new forward pass, then a step on the groups named.
    phases: ClassVar[tuple[tuple[str, ...], ...]] = (("user", "item", "dense"),)

    backbone: str = "mf"
    dim: int = 32
    init_std: float = 0.01
    lr: float = 10.0
    lr_item: float | None = None  # None: lr
    lr_dense: float | None = None  # None: lr
    weight_decay_dense: float = 0.0  # added to the gradient of dense weights
    epochs: int = 1
    batch: int = 256
    optimiser: Literal["sgd", "adam"] = "sgd"
    loss: Loss = "bce"
    reduction: Literal["mean", "sum"] = "mean"  # over the batch

    @cached_property
    def model(self) -> Backbone:
        return BACKBONES[self.backbone](self.dim)

    def rates(self) -> dict[str, float]:
        item = self.lr if self.lr_item is None else self.lr_item
        dense = self.lr if self.lr_dense is None else self.lr_dense
        return {"user": self.lr, "item": item, "dense": dense}

    def pull(self) -> float:
        """Weight of the squared distance to where the round started, added to the loss of shared parameters."""
        return 0.0

    # -- initial values: a function of the seed and of who it is for, never of a batch --

    def init_items(self, world: World) -> Tensor:
        """The common item table N(0, init_std^2)."""
        key = stream(world.seed, Purpose.INIT, ITEM)
        position = torch.arange(world.items * self.dim)
        table = self.init_std * normal(key, position, world.dtype).reshape(world.items, self.dim)
        return table.to(world.device)

    def init_users(self, world: World, users: np.ndarray) -> Tensor:
        """Independent user vectors N(0, init_std^2); of width zero where the backbone has none."""
        key = fold_tensor(stream(world.seed, Purpose.INIT, USER), torch.from_numpy(users.astype(np.int64)))
        width = self.dim if self.model.has_user else 0
        vectors = self.init_std * normal(key[:, None], torch.arange(width)[None], world.dtype)
        return vectors.to(world.device)

    def init_dense(self, world: World) -> Tensors:
        """Dense weights, uniform within 1/sqrt(fan-in) (a bias has the fan-in of its weight)."""
        dense, fan_in = {}, 1
        for index, (name, shape) in enumerate(self.model.dense_shapes().items()):
            fan_in = shape[-1] if len(shape) > 1 else fan_in
            key = fold(stream(world.seed, Purpose.INIT, DENSE), index)
            draws = uniform(fold_tensor(key, torch.arange(int(np.prod(shape)))), world.dtype)
            dense[name] = ((2 * draws - 1) / fan_in**0.5).reshape(shape).to(world.device)
        return dense

    # -- training --

    def fit(self, chunk: Chunk, round: int, user: Tensor, table: Tensor, dense: Tensors | None = None,
            weight: Tensor | None = None, fold: bool = True) -> Fitted:  # fmt: skip
        """Train from `table`: [items, d] common to all, or [clients, items, d], which is then updated in place.

        `dense` has a leading client axis. `weight` (one per client) is what a mean will use; with `fold` and a
        chunk from which only sums leave, the weighted sum is formed on the fly.
        """
        if self._compilable(chunk, table, fold):
            from fedrec.federation.compiled import fit_compiled

            return fit_compiled(self, chunk, round, user, table, weight)
        return self.descent()(self, chunk, round, user, table, dense or {}).run()

    def descent(self) -> type[Descent]:
        """How a chunk's clients descend: a method whose local loss has further terms names its own kind."""
        return Descent

    def own_scores(self, user: Tensor, own: Tensors, chunk: Chunk, items: Tensor) -> Tensor:
        """Scores where every client has its own model: `own` holds `item` and dense weights, one per client."""
        own = {name: _columns(value, items) if name == "item" else value for name, value in own.items()}
        if chunk.data.single:
            table = own.pop("item")
            return self.model.scores(user, table, own)
        ends, parts = chunk.client_ptr, []
        for k in range(len(chunk.clients)):
            mine = {name: value[k] for name, value in own.items()}
            parts.append(self.model.scores(user[ends[k] : ends[k + 1]], mine.pop("item"), mine))
        return torch.cat(parts)

    def _compilable(self, chunk: Chunk, table: Tensor, fold: bool) -> bool:
        world = chunk.world
        return (
            world.compiled
            and world.device.type == "cpu"
            and self.backbone == "mf"
            and len(self.phases) == 1
            and self.pull() == 0
            and self.descent() is Descent
            and chunk.data.single
            and (table.dim() == 3 or (fold and chunk.foldable))
            and has_numba()
        )

    def score_bytes(self, world: World) -> int:
        # a network holds its widest layer, twice, for every pair of user and item
        widest = max((shape[0] for shape in self.model.dense_shapes().values()), default=0)
        return super().score_bytes(world) + 2 * widest * world.items * world.dtype.itemsize

    def sample_bytes(self, world: World) -> int:
        # indices and masks, and per group of parameters: rows, gradient, two moments, gathered copies
        return 200 + 8 * self.dim * world.dtype.itemsize


def _columns(tables: Tensor, items: Tensor) -> Tensor:
    """The rows of some items in every client's table, without a copy when these are all."""
    everything = torch.arange(tables.shape[1], device=items.device)
    return tables if torch.equal(items, everything) else tables[:, items]


@dataclass
class Group:
    """Parameters of one kind. Those of the first c clients (in order of size) are the first `end[c]`."""

    value: Tensor
    owner: Tensor
    end: list[int]
    rate: float
    decay: float = 0.0
    moments: tuple[Tensor, Tensor] | None = None


class Descent:
    """Side-by-side gradient descent of a chunk's clients."""

    def __init__(self, method: LocalTraining, chunk: Chunk, round: int, user: Tensor, table: Tensor,
                 dense: Tensors) -> None:  # fmt: skip
        self.method, self.chunk, self.table = method, chunk, table
        self.samples = s = Samples(chunk, round, method.loss, method.batch)
        self.personal = table.dim() == 3
        self.clients = s.order[s.owner]  # the client (position in the chunk) of every row of the working set
        rows = table[self.clients, s.item] if self.personal else table[s.item]
        rates = method.rates()
        each = torch.arange(len(s.order), device=s.order.device)
        self.groups = {
            "user": Group(user[s.user_order], s.owner_of_user, _ends(s.owner_of_user, len(each)), rates["user"]),
            "item": Group(rows, s.owner, _ends(s.owner, len(each)), rates["item"]),
        }
        for name, value in dense.items():
            end = list(range(len(each) + 1))
            group = Group(value[s.order], each, end, rates["dense"], method.weight_decay_dense)
            self.groups["dense." + name] = group
        pulled = [name for name in self.groups if name != "user"] if method.pull() else []
        self.start = {name: self.groups[name].value.clone() for name in pulled}
        self.step_count = torch.zeros(len(each), dtype=torch.int64, device=each.device)
        self.update: Callable[[Group, Tensor], None] = self._adam if method.optimiser == "adam" else self._sgd

    def run(self) -> Fitted:
        s = self.samples
        total = torch.zeros((), dtype=torch.float64, device=s.count.device)
        with threads_for(sum(group.value.numel() for group in self.groups.values())):
            for epoch in range(self.method.epochs):
                for batch in s.epoch(epoch):
                    total += self._step(batch)
        self.chunk.observe("loss", float(total), int(s.count.sum()) * self.method.epochs)
        return self._result()

    def _step(self, batch: Batch) -> Tensor:
        """One batch of every client that has one left; returns the summed loss."""
        self.step_count[: batch.clients] += 1
        total, *_ = [self._phase(batch, kinds) for kinds in self.method.phases]
        return total

    def _phase(self, batch: Batch, kinds: tuple[str, ...]) -> Tensor:
        """A step on the groups of these kinds, the others held; returns the summed loss before it."""
        leaves = {name: group.value[: group.end[batch.clients]].detach() for name, group in self.groups.items()}
        moving = {name: leaf.requires_grad_() for name, leaf in leaves.items() if name.split(".")[0] in kinds}
        losses = self._losses(leaves, batch) * batch.valid
        weight = 1.0 / batch.size[:, None].to(losses.dtype) if self.method.reduction == "mean" else 1.0
        # a backbone without user vectors leaves theirs, of width zero, unused
        gradients = torch.autograd.grad((losses * weight).sum(), list(moving.values()), materialize_grads=True)
        for name, gradient in zip(moving, gradients, strict=True):
            if name in self.start:
                away = self.groups[name].value[: len(gradient)] - self.start[name][: len(gradient)]
                gradient = gradient + 2 * self.method.pull() * away
            self.update(self.groups[name], gradient)
        return losses.detach().sum().double()

    def _losses(self, leaves: Tensors, batch: Batch) -> Tensor:
        model = self.method.model
        user = leaves["user"][batch.user]
        dense = {name[6:]: leaf for name, leaf in leaves.items() if name.startswith("dense.")}
        logits = model.logits(user, leaves["item"][batch.pos], dense)
        if batch.neg is None:
            return F.binary_cross_entropy_with_logits(logits, batch.label, reduction="none")
        return F.softplus(model.logits(user, leaves["item"][batch.neg], dense) - logits)

    def _sgd(self, group: Group, gradient: Tensor) -> None:
        value = group.value[: len(gradient)]
        if group.decay:
            gradient = gradient + group.decay * value
        value -= group.rate * gradient

    def _adam(self, group: Group, gradient: Tensor) -> None:
        """Adam as the libraries define it: a row that was touched once goes on moving while its moments last."""
        if group.moments is None:
            group.moments = (torch.zeros_like(group.value), torch.zeros_like(group.value))
        value, (first, second) = group.value[: len(gradient)], (m[: len(gradient)] for m in group.moments)
        if group.decay:
            gradient = gradient + group.decay * value
        first.mul_(0.9).add_(gradient, alpha=0.1)
        second.mul_(0.999).addcmul_(gradient, gradient, value=0.001)
        shape = (-1, *[1] * (gradient.dim() - 1))
        count = self.step_count[group.owner[: len(gradient)]].to(value.dtype).reshape(shape)
        value -= group.rate * (first / (1 - 0.9**count)) / ((second / (1 - 0.999**count)).sqrt() + 1e-8)

    def _result(self) -> Fitted:
        s, groups = self.samples, self.groups
        user = torch.empty_like(groups["user"].value)
        user[s.user_order] = groups["user"].value
        dense = {}
        for name, group in groups.items():
            if name.startswith("dense."):
                dense[name[6:]] = torch.empty_like(group.value)
                dense[name[6:]][s.order] = group.value
        if self.personal:
            self.table[self.clients, s.item] = groups["item"].value
            return Fitted(user, self.table, dense)
        rows = Rows(self.table, self.clients, s.item, groups["item"].value, len(self.chunk.clients))
        return Fitted(user, rows, dense)


@contextmanager
def threads_for(parameters: int) -> Iterator[None]:
    """One thread for small steps: there, handing work to a second one costs more than it saves."""
    before = torch.get_num_threads()
    if parameters < SMALL:
        torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _ends(owner: Tensor, clients: int) -> list[int]:
    """end[c] = how many entries belong to the first c clients; `owner` is ascending."""
    ends = torch.searchsorted(owner, torch.arange(clients + 1, device=owner.device))
    return [int(e) for e in ends]
