"""Local training, shared by the methods that train a backbone by gradient descent on their clients.

Every client takes its own steps on its own batches; the clients of a chunk take them side by side. Only the rows that
a round's samples touch are gathered, trained and sent on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, replace
from functools import cached_property, partial
from typing import Annotated, Any, ClassVar, Literal, get_args

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from fedrec.errors import FedrecError
from fedrec.federation.clients import Chunk
from fedrec.federation.contract import Footprint, Method, PartialSum, Rows, Tensors, World
from fedrec.federation.declarations import Settings, with_defaults
from fedrec.federation.ranges import Count, Interval
from fedrec.models import BACKBONES, Backbone, Sequential
from fedrec.training.compiled import Kernel, fit_compiled, kernel_for, kernel_of
from fedrec.training.initial import (
    DENSE,
    ITEM,
    fan_in_uniform,
    initial_key,
    normal_values,
    uniform_values,
    user_keys,
)
from fedrec.training.losses import Saturate, bce
from fedrec.training.optimisers import MOMENTS, adam_step
from fedrec.training.samples import Batch, Loss, Samples
from fedrec.training.sequences import user_vectors

SMALL = 2_000_000  # numbers in a step
TOGETHER = [{"user", "item", "dense"}]  # phases of a step
IN_TURN = [{"user", "dense"}, {"item"}]


@dataclass
class Fitted:
    """What a chunk's clients hold after local training. `table` is Rows or PartialSum where the start was shared."""

    user: Tensor
    table: Rows | PartialSum | Tensor
    dense: Tensors = field(default_factory=dict)


# A network needs gentler steps than the bare inner product: Adam at the rate of FedCA's comparison.
DEFAULTS: Mapping[str, Settings] = {
    "ncf": {"optimiser": "adam", "lr": 0.01, "init_std": 0.1},
    "sasrec": {"optimiser": "adam", "lr": 0.01, "init_std": 0.1, "dim": 16},
}


usual_backbones = partial(with_defaults, DEFAULTS)


@dataclass(frozen=True)
class LocalTraining(Method):
    """The hyper-parameters of local training, and `fit`."""

    # Each batch is gone through once per phase: a new forward pass, then a step on the groups named.
    phases: ClassVar[tuple[tuple[str, ...], ...]] = (("user", "item", "dense"),)
    pulled: ClassVar[tuple[str, ...]] = ("item", "dense")  # the groups that `pull` acts on
    moments: ClassVar[tuple[float, float]] = MOMENTS  # of Adam
    losses: ClassVar[tuple[str, ...]] = get_args(Loss)

    backbone: str = "mf"
    dim: Count = 32
    init: Literal["normal", "uniform"] = "normal"  # of standard deviation init_std, or within 1 / sqrt(dim)
    init_std: float = 0.01
    common_user: bool = False  # all user vectors start equal
    lr: float = 10.0
    lr_item: float | None = None  # None: lr
    lr_dense: float | None = None  # None: lr
    weight_decay_dense: float = 0.0  # added to the gradient of dense weights
    epochs: Count = 1
    early_exit: Annotated[float, Interval("[0, 1)")] = (
        0.0  # stop when an epoch changes the mean loss since the round began by less than this part
    )
    batch: Count = 256
    optimiser: Literal["sgd", "adam"] = "sgd"
    loss: Loss = "bce"
    reduction: Literal["mean", "sum"] = "mean"  # over the batch
    length: int = 50  # sasrec: items of a sequence that are read, the last ones; there, batch counts sequences
    dropout: Annotated[float, Interval("[0, 1)")] = 0.2  # sasrec: part of the activations that training drops

    def __post_init__(self) -> None:
        super().__post_init__()
        _ = self.model  # refuses what it cannot be made with
        if self.loss not in self.losses:
            raise FedrecError(f"loss={self.loss} does not fit {self.info.name}: it must be {' or '.join(self.losses)}")

    @cached_property
    def model(self) -> Backbone:
        """The backbone, with those of its settings that the method has as parameters."""
        kind: Any = BACKBONES[self.backbone]
        return kind(**{f.name: getattr(self, f.name) for f in fields(kind) if hasattr(self, f.name)})

    def slots(self) -> int | None:
        """How many of the negatives that were drawn a sequential backbone uses at each position; None: all."""
        return None

    def rates(self) -> dict[str, float]:
        item = self.lr if self.lr_item is None else self.lr_item
        dense = self.lr if self.lr_dense is None else self.lr_dense
        return {"user": self.lr, "item": item, "dense": dense}

    def pull(self) -> float:
        """Weight of the squared distance to where the round started, added to the loss of shared parameters."""
        return 0.0

    def shrink(self) -> float:
        """Part of every trained parameter that a step takes away, times its rate: a decay apart from the gradient."""
        return 0.0

    def saturation(self) -> Saturate:
        """What a pointwise loss does with scores beyond single precision."""
        return "none"

    # -- initial values: a function of the seed and of who it is for, never of a batch --

    def init_items(self, world: World) -> Tensor:
        """The common item table."""
        return self.init_table(world, ITEM)

    def init_table(self, world: World, *where: int) -> Tensor:
        """A table of items from its own stream."""
        position = torch.arange(world.items * self.dim)
        return self._initial(initial_key(world, *where), position, world).reshape(world.items, self.dim)

    def init_users(self, world: World, users: np.ndarray) -> Tensor:
        """Independent user vectors, unless they are asked to be equal; of width zero where the backbone has none."""
        of = np.zeros_like(users) if self.common_user else users
        width = self.dim if self.model.has_user else 0
        return self._initial(user_keys(world, of), torch.arange(width)[None], world)

    def _initial(self, key: Tensor | int, position: Tensor, world: World) -> Tensor:
        if self.init == "normal":
            return normal_values(world, key, position, self.init_std)
        return uniform_values(world, key, position, self.dim)

    def init_dense(self, world: World) -> Tensors:
        """Dense weights, uniform within 1/sqrt(fan-in) (a bias has the fan-in of its weight), or as a sequential
        backbone says."""
        key = initial_key(world, DENSE)
        if isinstance(self.model, Sequential):
            made = self.model.initial(key, world.dtype)
            return {name: value.to(world.device) for name, value in made.items()}
        return fan_in_uniform(world, key, self.model.dense_shapes())

    # -- training --

    def fit(self, chunk: Chunk, round: int, user: Tensor, table: Tensor, dense: Tensors | None = None,
            weight: Tensor | None = None, fold: bool = True, own: Tensor | None = None) -> Fitted:  # fmt: skip
        """Train from `table`: [items, d] common to all, or [clients, items, d], which is then updated in place.

        `dense` has a leading client axis. `weight` (one per client) is what a mean will use; with `fold` and a
        chunk from which only sums leave, the weighted sum is formed on the fly. From a common start, `own` [clients,
        items, d] becomes what each client then has.
        """
        kernel = self._kernel(chunk, table, fold)
        if kernel is not None:
            return fit_compiled(kernel, self, chunk, round, user, table, dense or {}, weight, own)
        fitted = self.descent()(self, chunk, round, user, table, dense or {}).run()
        if own is not None:
            assert isinstance(fitted.table, Rows)
            fitted.table.dense(own)
        return fitted

    def descent(self) -> type[Descent]:
        """How a chunk's clients descend: a method whose local loss has further terms names its own kind."""
        if isinstance(self.model, Sequential):
            from fedrec.training.sequence_training import SequenceDescent

            return SequenceDescent
        return Descent

    def common_scores(self, user: Tensor, common: Tensors, chunk: Chunk, items: Tensor) -> Tensor:
        """Scores where all clients have the same model: `common` holds `item` and dense weights."""
        user = self._vectors(user, common, chunk)
        return self.model.scores(user, common["item"][items], {k: v for k, v in common.items() if k != "item"})

    def _vectors(self, user: Tensor, tensors: Tensors, chunk: Chunk) -> Tensor:
        """What users are scored with: their own vectors, or what a sequential backbone makes of their items."""
        return user_vectors(self.model, chunk, tensors) if isinstance(self.model, Sequential) else user

    def own_scores(self, user: Tensor, own: Tensors, chunk: Chunk, items: Tensor) -> Tensor:
        """Scores where every client has its own model: `own` holds `item` and dense weights, one per client."""
        user = self._vectors(user, own, chunk)
        own = {name: _columns(value, items) if name == "item" else value for name, value in own.items()}
        if chunk.data.single:
            table = own.pop("item")
            return self.model.scores(user, table, own)
        ends, parts = chunk.client_ptr, []
        for k in range(len(chunk.clients)):
            mine = {name: value[k] for name, value in own.items()}
            parts.append(self.model.scores(user[ends[k] : ends[k + 1]], mine.pop("item"), mine))
        return torch.cat(parts)

    def _kernel(self, chunk: Chunk, table: Tensor, fold: bool) -> Kernel | None:
        """The backbone's compiled kernel, where there is one and all that is asked for is in it."""
        kernel = kernel_of(self.model)
        fits = (
            kernel is not None
            and kernel.only(self)
            and (kernel.saturates or self.saturation() == "none")
            and [set(kinds) for kinds in self.phases] in (TOGETHER, IN_TURN)
            and self.moments == LocalTraining.moments
            and self.shrink() == 0
            and (self.pull() == 0 or self.optimiser in kernel.pulls)
            and self.descent() is Descent
            and chunk.data.single
            and (table.dim() == 3 or (fold and chunk.foldable))
            and kernel_for(kernel.name, chunk.world) is not None
        )
        return kernel if fits else None

    def footprint(self, world: World) -> Footprint:
        # indices and masks, and per group of parameters: rows, gradient, two moments, gathered copies
        sample = 200 + 8 * self.dim * world.dtype.itemsize
        # a network holds its widest layer, twice, for every pair of user and item; one of sequences keeps to a budget
        shapes = {} if isinstance(self.model, Sequential) else self.model.dense_shapes()
        widest = max((shape[0] for shape in shapes.values()), default=0)
        usual = super().footprint(world)
        return replace(usual, sample=sample, score=usual.score + 2 * widest * world.items * world.dtype.itemsize)

    def model_bytes(self, world: World, dense: int, tables: int) -> int:
        """Bytes of a client that holds its dense weights and a table of items as many times as this."""
        one = sum(int(np.prod(shape)) for shape in self.model.dense_shapes().values())
        return 4096 + (dense * one + tables * world.items * self.dim) * world.dtype.itemsize


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
        self.samples = s = self._draw(method, chunk, round)
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
        pulled = [name for name in self.groups if name.split(".")[0] in method.pulled] if method.pull() else []
        self.start = {name: self.groups[name].value.clone() for name in pulled}
        self.step_count = torch.zeros(len(each), dtype=torch.int64, device=each.device)
        self.going = torch.ones(len(each), dtype=torch.bool, device=each.device)  # not yet stopped by early_exit
        self.update: Callable[[Group, Tensor], None] = self._adam if method.optimiser == "adam" else self._sgd

    def _draw(self, method: LocalTraining, chunk: Chunk, round: int) -> Any:
        """The samples of the round."""
        return Samples(chunk, round, method.loss, method.batch)

    def run(self) -> Fitted:
        s = self.samples
        total = torch.zeros(len(s.count), dtype=torch.float64, device=s.count.device)  # by client, since the start
        seen = torch.zeros_like(s.count)
        with threads_for(self._numbers()):
            for epoch in range(self.method.epochs):
                before, now = total / seen.clamp(min=1), self.going
                for batch in s.epoch(epoch):
                    total[: batch.clients] += self._step(batch) * now[: batch.clients]
                seen += s.count * now
                if self.method.early_exit and epoch:
                    self.going = now & ~settled(before, total / seen.clamp(min=1), self.method.early_exit)
                    if not self.going.any():
                        break
        self.chunk.observe("loss", float(total.sum()), int(seen.sum()))
        return self._result()

    def _numbers(self) -> int:
        """That a step computes with, roughly."""
        return sum(group.value.numel() for group in self.groups.values())

    def _step(self, batch: Batch) -> Tensor:
        """One batch of every client that has one left; returns the loss summed by client."""
        self.step_count[: batch.clients] += 1
        total, *_ = [self._phase(batch, kinds) for kinds in self.method.phases]
        return total

    def _phase(self, batch: Batch, kinds: tuple[str, ...]) -> Tensor:
        """A step on the groups of these kinds, the others held; returns each client's summed loss before it."""
        leaves = {name: group.value[: group.end[batch.clients]].detach() for name, group in self.groups.items()}
        moving = {name: leaf.requires_grad_() for name, leaf in leaves.items() if name.split(".")[0] in kinds}
        total, gradients = self._gradients(leaves, list(moving.values()), batch)
        for name, gradient in zip(moving, gradients, strict=True):
            if name in self.start:
                away = self.groups[name].value[: len(gradient)] - self.start[name][: len(gradient)]
                gradient = gradient + 2 * self.method.pull() * away
            self.update(self.groups[name], gradient)
        return total

    def _gradients(self, leaves: Tensors, moving: list[Tensor], batch: Any) -> tuple[Tensor, Sequence[Tensor]]:
        """Each client's summed loss, and the gradients of what moves."""
        losses = self._losses(leaves, batch) * batch.valid
        weight = 1.0 / batch.size[:, None].to(losses.dtype) if self.method.reduction == "mean" else 1.0
        # a backbone without user vectors leaves theirs, of width zero, unused
        gradients = torch.autograd.grad((losses * weight).sum(), moving, materialize_grads=True)
        return losses.detach().sum(1).double(), gradients

    def _losses(self, leaves: Tensors, batch: Batch) -> Tensor:
        model = self.method.model
        user = leaves["user"][batch.user]
        dense = {name[6:]: leaf for name, leaf in leaves.items() if name.startswith("dense.")}
        logits = model.logits(user, leaves["item"][batch.pos], dense)
        if batch.neg is None:
            return bce(logits, batch.label, self.method.saturation())
        return F.softplus(model.logits(user, leaves["item"][batch.neg], dense) - logits)

    def _sgd(self, group: Group, gradient: Tensor) -> None:
        value = group.value[: len(gradient)]
        if group.decay:
            gradient = gradient + group.decay * value
        self._move(group, value, gradient)

    def _adam(self, group: Group, gradient: Tensor) -> None:
        """A row that was touched once goes on moving while its moments last."""
        if group.moments is None:
            group.moments = (torch.zeros_like(group.value), torch.zeros_like(group.value))
        value, (first, second) = group.value[: len(gradient)], (m[: len(gradient)] for m in group.moments)
        if group.decay:
            gradient = gradient + group.decay * value
        shape = (-1, *[1] * (gradient.dim() - 1))
        count = self.step_count[group.owner[: len(gradient)]].to(value.dtype).reshape(shape)
        self._move(group, value, adam_step(gradient, first, second, count, moments=self.method.moments))

    def _move(self, group: Group, value: Tensor, step: Tensor) -> None:
        if self.method.early_exit:
            step = step * self.going[group.owner[: len(step)]].reshape(-1, *[1] * (step.dim() - 1))
        if self.method.shrink():
            value *= 1 - group.rate * self.method.shrink()
        value -= group.rate * step

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


def settled(before: Tensor, after: Tensor, threshold: float) -> Tensor:
    """Whether a running mean of the loss hardly changed with the last epoch."""
    return (after - before).abs() / (before + 1e-5).abs() < threshold


@contextmanager
def threads_for(numbers: int) -> Iterator[None]:
    """One thread for small steps: there, handing work to a second one costs more than it saves."""
    before = torch.get_num_threads()
    if numbers < SMALL:
        torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _ends(owner: Tensor, clients: int) -> list[int]:
    """end[c] = how many entries belong to the first c clients; `owner` is ascending."""
    ends = torch.searchsorted(owner, torch.arange(clients + 1, device=owner.device))
    return [int(e) for e in ends]
