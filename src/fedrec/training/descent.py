"""Side-by-side gradient descent of a chunk's clients.

Every client takes its own steps on its own batches; the clients of a chunk take them side by side. Only the rows that
a round's samples touch are gathered, trained and sent on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.nn import functional as F

from fedrec.federation.clients import Chunk
from fedrec.federation.contract import PartialSum, Rows, Tensors, Upload
from fedrec.training.lookup import look_up
from fedrec.training.losses import bce
from fedrec.training.optimisers import adam_step
from fedrec.training.samples import Batch, Samples

if TYPE_CHECKING:
    from fedrec.training.local_training import LocalMethod, LocalTrainer

# About where a second core begins to pay.
SMALL = 2_000_000  # numbers in a step


@dataclass
class Fitted:
    """What a chunk's clients hold after local training. `table` is Rows or PartialSum where the start was shared."""

    user: Tensor
    table: Rows | PartialSum | Tensor
    dense: Tensors = field(default_factory=dict)

    @property
    def model(self) -> dict[str, Upload]:
        """The table and the network's weights, to be sent."""
        return {"item": self.table, **self.dense}

    @property
    def own(self) -> Tensors:
        """The same of clients with a table of their own, to be kept."""
        assert isinstance(self.table, Tensor)
        return {"item": self.table, **self.dense}


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
    """What a trainer asks for, in torch. A method whose local loss has further terms has a subclass of it."""

    settings: LocalMethod

    def __init__(
        self, trainer: LocalTrainer, chunk: Chunk, round: int, user: Tensor, table: Tensor, dense: Tensors
    ) -> None:
        self.trainer, self.settings, self.chunk, self.table = trainer, trainer.settings, chunk, table
        self.samples = s = self._draw(round)
        self.personal = table.dim() == 3
        self.clients = s.order[s.owner]  # the client (position in the chunk) of every row of the working set
        rows = table[self.clients, s.item] if self.personal else table[s.item]
        rates = trainer.rates
        each = torch.arange(len(s.order), device=s.order.device)
        self.groups = {
            "user": Group(user[s.user_order], s.owner_of_user, s.user_ends, rates["user"]),
            "item": Group(rows, s.owner, _ends(s.owner, len(each)), rates["item"]),
        }
        for name, value in dense.items():
            end = list(range(len(each) + 1))
            group = Group(value[s.order], each, end, rates["dense"], self.settings.weight_decay_dense)
            self.groups["dense." + name] = group
        pulled = [name for name in self.groups if name.split(".")[0] in trainer.pulled] if trainer.pull else []
        self.start = {name: self.groups[name].value.clone() for name in pulled}
        self.step_count = torch.zeros(len(each), dtype=torch.int64, device=each.device)
        self.going = torch.ones(len(each), dtype=torch.bool, device=each.device)  # not yet stopped by early_exit
        self.update: Callable[[Group, Tensor], None] = self._adam if self.settings.optimiser == "adam" else self._sgd

    def _draw(self, round: int) -> Any:
        """The samples of the round."""
        return Samples(self.chunk, round, self.settings.loss, self.settings.batch)

    def run(self) -> Fitted:
        s = self.samples
        total = torch.zeros(len(s.count), dtype=torch.float64, device=s.count.device)  # by client, since the start
        seen = torch.zeros_like(s.count)
        with threads_for(self._numbers()):
            for epoch in range(self.settings.epochs):
                # Held for a whole epoch: who stopped inside one would have seen some samples more often than others.
                before, now = total / seen.clamp(min=1), self.going
                for batch in s.epoch(epoch):
                    total[: batch.clients] += self._step(batch) * now[: batch.clients]
                seen += s.count * now
                if self.settings.early_exit and epoch:
                    self.going = now & ~has_settled(before, total / seen.clamp(min=1), self.settings.early_exit)
                    if not self.going.any():
                        break
        self.chunk.observe("loss", total.sum(), seen.sum())
        return self._result()

    def gradient(self) -> Fitted:
        """Of the loss of all samples, in the places of the parameters; no step is taken."""
        found: Tensors = {}
        with threads_for(self._numbers()):
            for batch in self.samples.epoch(0):
                leaves = {
                    name: group.value[: group.end[batch.clients]].detach().requires_grad_()
                    for name, group in self.groups.items()
                }
                total, gradients = self._gradients(leaves, list(leaves.values()), batch)
                self.chunk.observe("loss", total.sum(), batch.size.sum())
                for name, gradient in zip(leaves, gradients, strict=True):
                    part = gradient * self._part(batch, self.groups[name], gradient)
                    # Most gradients come from a single batch, and are then taken as they are instead of added to zeros.
                    if name not in found and len(part) == len(self.groups[name].value):
                        found[name] = part
                    else:
                        found.setdefault(name, torch.zeros_like(self.groups[name].value))[: len(part)] += part
        for name, group in self.groups.items():
            group.value = found[name] if name in found else torch.zeros_like(group.value)
        return self._result()

    def _part(self, batch: Any, group: Group, gradient: Tensor) -> Tensor | float:
        """What a batch's mean counts in the mean over all samples of a client; a sum counts whole."""
        if self.settings.reduction == "sum":
            return 1.0
        part = batch.size.double() / self.samples.count[: batch.clients]
        return part[group.owner[: len(gradient)]].to(gradient.dtype).reshape(-1, *[1] * (gradient.dim() - 1))

    def _numbers(self) -> int:
        """That a step computes with, roughly."""
        return sum(group.value.numel() for group in self.groups.values())

    def _step(self, batch: Any) -> Tensor:
        """One batch of every client that has one left; returns the loss summed by client."""
        # Counted once per batch and not per phase: Adam's correction is for how often a group has moved.
        self.step_count[: batch.clients] += 1
        # The loss of the first phase is the one before anything moved in this step.
        total, *_ = [self._phase(batch, kinds) for kinds in self.trainer.phases]
        return total

    def _phase(self, batch: Batch, kinds: tuple[str, ...]) -> Tensor:
        """A step on the groups of these kinds, the others held; returns each client's summed loss before it."""
        leaves = {name: group.value[: group.end[batch.clients]].detach() for name, group in self.groups.items()}
        moving = {name: leaf.requires_grad_() for name, leaf in leaves.items() if name.split(".")[0] in kinds}
        total, gradients = self._gradients(leaves, list(moving.values()), batch)
        for name, gradient in zip(moving, gradients, strict=True):
            if name in self.start:
                away = self.groups[name].value[: len(gradient)] - self.start[name][: len(gradient)]
                gradient = gradient + 2 * self.trainer.pull * away
            self.update(self.groups[name], gradient)
        return total

    def _gradients(self, leaves: Tensors, moving: list[Tensor], batch: Any) -> tuple[Tensor, Sequence[Tensor]]:
        """Each client's summed loss, and the gradients of what moves."""
        losses = self._losses(leaves, batch) * batch.valid
        weight = 1.0 / batch.size[:, None].to(losses.dtype) if self.settings.reduction == "mean" else 1.0
        # a backbone without user vectors leaves theirs, of width zero, unused
        gradients = torch.autograd.grad((losses * weight).sum(), moving, materialize_grads=True)
        return losses.detach().sum(1).double(), gradients

    def _losses(self, leaves: Tensors, batch: Batch) -> Tensor:
        model = self.trainer.model
        user = look_up(leaves["user"], batch.user)
        dense = {name[6:]: leaf for name, leaf in leaves.items() if name.startswith("dense.")}
        logits = model.logits(user, look_up(leaves["item"], batch.pos), dense)
        if batch.neg is None:
            return bce(logits, batch.label, self.trainer.saturation)
        return F.softplus(model.logits(user, look_up(leaves["item"], batch.neg), dense) - logits)

    def _sgd(self, group: Group, gradient: Tensor) -> None:
        value = group.value[: len(gradient)]
        if group.decay:
            gradient = gradient + group.decay * value
        self._move(group, value, gradient)

    def _adam(self, group: Group, gradient: Tensor) -> None:
        """A row that was touched once goes on moving while its moments last."""
        # Made at the first step, because plain descent and groups that are held never need them.
        if group.moments is None:
            group.moments = (torch.zeros_like(group.value), torch.zeros_like(group.value))
        value, (first, second) = group.value[: len(gradient)], (m[: len(gradient)] for m in group.moments)
        if group.decay:
            gradient = gradient + group.decay * value
        shape = (-1, *[1] * (gradient.dim() - 1))
        count = self.step_count[group.owner[: len(gradient)]].to(value.dtype).reshape(shape)
        self._move(group, value, adam_step(gradient, first, second, count, moments=self.trainer.moments))

    def _move(self, group: Group, value: Tensor, step: Tensor) -> None:
        if self.settings.early_exit:
            step = step * self.going[group.owner[: len(step)]].reshape(-1, *[1] * (step.dim() - 1))
        if self.trainer.shrink:
            # Before the step, as AdamW has it: the decay is of the weights that the gradient was taken at.
            value *= 1 - group.rate * self.trainer.shrink
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


def has_settled(before: Tensor, after: Tensor, threshold: float) -> Tensor:
    """Whether a running mean of the loss hardly changed with the last epoch."""
    # The small number keeps a loss of exactly zero from dividing by zero.
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
    if clients == 1:
        return [0, len(owner)]
    ends: list[int] = torch.searchsorted(owner, torch.arange(clients + 1, device=owner.device)).tolist()
    return ends
