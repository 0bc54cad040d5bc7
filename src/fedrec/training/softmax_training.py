"""Training of a sequential backbone with all data in one place: at every position, the next item among all items.

Softmax cross-entropy over the whole catalogue. The logits of all positions of a batch would be its largest tensor by
far, so they are made, turned into gradients and dropped for some positions at a time.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.nn import functional as F

from fedrec.federation.contract import Tensors
from fedrec.training.descent import Fitted, Group
from fedrec.training.sequence_training import SequenceDescent
from fedrec.training.sequences import SequenceBatch, SequenceSamples, WholeCatalogue, filled

LOGITS = 1 << 21  # at a time: those of a processor should stay in its cache
LOGITS_ON_GPU = 1 << 27


class SoftmaxDescent(SequenceDescent):
    """As `SequenceDescent`, of a single client, whose network is stepped as one long vector: a GPU would spend most of
    its time on starting the steps of each weight."""

    kind: ClassVar[type[SequenceSamples]] = WholeCatalogue

    def run(self) -> Fitted:
        self.apart = self.groups
        network = [group for name, group in self.groups.items() if name.startswith("dense.")]
        self.groups = {"user": self.groups["user"], "item": self.groups["item"], "dense": _joined(network)}
        return super().run()

    def _result(self) -> Fitted:
        self.groups = self.apart
        return super()._result()

    def _weights(self, leaves: Tensors, owner: Tensor) -> Tensors:
        shapes = self.model.dense_shapes()
        parts = leaves["dense"][0].split([math.prod(shape) for shape in shapes.values()])
        return {name: part.view(shape) for (name, shape), part in zip(shapes.items(), parts, strict=True)}

    def _numbers(self) -> int:
        logits = self.settings.batch * self.model.length * len(self.samples.item)
        return super()._numbers() + logits

    def _band_losses(self, leaves: Tensors, batch: SequenceBatch, band: slice) -> tuple[Tensor, Tensor]:
        """Summed over all sequences of the band, which are the one client's."""
        s, lengths = self.samples, batch.lengths[band]
        size = s.size[batch.sequence[band]]
        at, _ = filled(s.start[batch.sequence[band]], size, lengths[0])
        hidden, _, owner = self._encoded(leaves, batch, band, at)
        real = _real_places(size, lengths)
        states = hidden.flatten(0, 1).index_select(0, real)
        return softmax_loss(states, leaves["item"], s.target[at.flatten()[real]])[None], owner[:1]


def _joined(groups: list[Group]) -> Group:
    """One group with all numbers of a single client's groups, which become views of it."""
    moments = [group.moments or (torch.zeros_like(group.value), torch.zeros_like(group.value)) for group in groups]
    value, values = _together([group.value for group in groups])
    first, firsts = _together([both[0] for both in moments])
    second, seconds = _together([both[1] for both in moments])
    for k, group in enumerate(groups):
        group.value, group.moments = values[k], (firsts[k], seconds[k])
    return replace(groups[0], value=value, moments=(first, second))


def _together(values: list[Tensor]) -> tuple[Tensor, list[Tensor]]:
    """Tensors of a single client end to end, and each of them as a view of that."""
    whole = torch.cat([value.flatten(1) for value in values], 1)
    parts = whole.split([value.numel() for value in values], 1)
    return whole, [part.view_as(value) for part, value in zip(parts, values, strict=True)]


def _real_places(size: Tensor, lengths: list[int]) -> Tensor:
    """The places of sequences' own steps where all are filled up to the first one's length and laid end to end."""
    steps = sum(lengths)  # known here, so that nobody has to ask the device
    sequence = torch.repeat_interleave(torch.arange(len(size), device=size.device), size, output_size=steps)
    step = torch.arange(steps, device=size.device) - (size.cumsum(0) - size)[sequence]
    return sequence * lengths[0] + step


def softmax_loss(states: Tensor, table: Tensor, target: Tensor) -> Tensor:
    """Summed cross-entropy of the target rows among all rows of a table; logits are inner products with the states."""
    loss: Tensor = _Softmax.apply(states, table, target)  # type: ignore[no-untyped-call]
    return loss


class _Softmax(torch.autograd.Function):
    """Gradients are computed with the loss: only then are logits at hand, and a sum has a single upstream factor."""

    @staticmethod
    def forward(ctx: Any, states: Tensor, table: Tensor, target: Tensor) -> Tensor:
        at_a_time = max(1, (LOGITS if states.device.type == "cpu" else LOGITS_ON_GPU) // len(table))
        total = torch.zeros((), dtype=torch.float64, device=states.device)
        by_states, by_table = torch.empty_like(states), torch.zeros_like(table)
        for start in range(0, len(states), at_a_time):
            some = slice(start, start + at_a_time)
            logarithms = F.log_softmax(states[some] @ table.T, 1)
            chosen = target[some, None]
            total -= logarithms.gather(1, chosen).sum(dtype=torch.float64)
            slope = logarithms.exp_().scatter_add_(1, chosen, torch.full_like(chosen, -1, dtype=states.dtype))
            torch.mm(slope, table, out=by_states[some])
            by_table.addmm_(slope.T, states[some])
        ctx.save_for_backward(by_states, by_table)
        return total

    @staticmethod
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor, Tensor, None]:
        by_states, by_table = ctx.saved_tensors
        factor = upstream.to(by_states.dtype)
        return by_states * factor, by_table * factor, None
