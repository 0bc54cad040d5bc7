"""Training of a sequential backbone on all data, centralised: at every position, the next item among all items.

Softmax cross-entropy over the whole catalogue. The logits of all positions of a batch would be its largest tensor by
far, so they are made, turned into gradients and dropped for some positions at a time. Of very many items, the next one
can stand among drawn ones.
"""

from __future__ import annotations

import math
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.nn import functional as F

from fedrec.federation.contract import Tensors
from fedrec.random import fold_tensor, shuffle
from fedrec.training.sequence_training import SequenceDescent
from fedrec.training.sequences import SequenceBatch, SequenceSamples, WholeCatalogue, fill

SAMPLE = 1 << 20  # in the stream of a sequence's dropout: no site of a network has this number
LOGITS = 1 << 21  # at a time: those of a processor should stay in its cache
LOGITS_ON_GPU = 1 << 27


class SoftmaxDescent(SequenceDescent):
    """As `SequenceDescent`, of a single client."""

    kind: ClassVar[type[SequenceSamples]] = WholeCatalogue

    def _numbers(self) -> int:
        logits = self.settings.batch * self.model.length * len(self.samples.item)
        return super()._numbers() + logits

    def _band_losses(self, leaves: Tensors, batch: SequenceBatch, band: slice) -> tuple[Tensor, Tensor]:
        """Summed over all sequences of the band, which are the one client's."""
        s, lengths = self.samples, batch.lengths[band]
        size = s.size[batch.sequence[band]]
        at, _ = fill(s.start[batch.sequence[band]], size, lengths[0])
        hidden, _, owner = self._encode(leaves, batch, band, at)
        real, there = _real_places(size, lengths[0], batch.room if batch.same_shape else sum(lengths))
        states = hidden.flatten(0, 1).index_select(0, real)
        target = s.target[at.flatten()[real]]
        return self._loss(states, leaves["item"], target, there if batch.same_shape else None, batch)[None], owner[:1]

    def _loss(
        self, states: Tensor, table: Tensor, target: Tensor, there: Tensor | None, batch: SequenceBatch
    ) -> Tensor:
        half = self.trainer.products == "bfloat16"
        return softmax_loss(states, table, target, there, torch.bfloat16 if half else None)


class SampledSoftmaxDescent(SoftmaxDescent):
    """With the next item among `slots` drawn ones, the same for all positions of a batch: for large catalogues."""

    def _numbers(self) -> int:
        return SequenceDescent._numbers(self) + self.settings.batch * self.model.length * self._draw_count

    @property
    def _draw_count(self) -> int:
        return min(self.trainer.slots or 0, len(self.samples.item))

    def _loss(
        self, states: Tensor, table: Tensor, target: Tensor, there: Tensor | None, batch: SequenceBatch
    ) -> Tensor:
        """Keyed by the batch's longest sequence: no two batches of an epoch share one."""
        position = torch.arange(self._draw_count, device=table.device)
        size = torch.full_like(position[:1], len(table))
        drawn = shuffle(fold_tensor(batch.key[:1], SAMPLE), size, position, torch.zeros_like(position))
        with self.rounding():
            return sampled_softmax_loss(states, table, target, drawn, there)


def _real_places(size: Tensor, longest: int, room: int) -> tuple[Tensor, Tensor]:
    """The places of sequences' own steps where all are filled up to the longest and laid end to end.

    There is room for as many as the host knows of, so that nobody has to ask the device how many there are; and which
    of them are there. What is behind repeats a place.
    """
    ends, place = size.cumsum(0), torch.arange(room, device=size.device)
    sequence = torch.searchsorted(ends, place, right=True).clamp(max=len(size) - 1)
    step = (place - (ends - size)[sequence]).clamp(max=longest - 1)
    return sequence * longest + step, place < ends[-1]


def softmax_loss(
    states: Tensor, table: Tensor, target: Tensor, there: Tensor | None = None, multiplied: torch.dtype | None = None
) -> Tensor:
    """Summed cross-entropy of the target rows among all rows of a table; logits are inner products with the states.

    `there`: which states count; None: all. `multiplied`: the type that matrices are multiplied in; None: their own.
    """
    kind = multiplied or states.dtype
    loss: Tensor = _Softmax.apply(states, table, target, there, kind)  # type: ignore[no-untyped-call]
    return loss


def sampled_softmax_loss(
    states: Tensor, table: Tensor, target: Tensor, drawn: Tensor, there: Tensor | None = None
) -> Tensor:
    """As `softmax_loss`, with the sum over the other rows estimated without bias from distinct rows that were drawn."""
    found = (states * F.embedding(target, table)).sum(1, keepdim=True)
    others = states @ table[drawn].T + math.log(len(table) / len(drawn))
    others = others.masked_fill(drawn == target[:, None], -math.inf)
    losses = (torch.cat([found, others], 1).logsumexp(1) - found.squeeze(1)).double()
    return losses.sum() if there is None else (losses * there).sum()


class _Softmax(torch.autograd.Function):
    """Gradients are computed with the loss: only then are logits at hand, and a sum has a single upstream factor."""

    @staticmethod
    def forward(
        ctx: Any, states: Tensor, table: Tensor, target: Tensor, there: Tensor | None, kind: torch.dtype
    ) -> Tensor:
        at_a_time = max(1, (LOGITS if states.device.type == "cpu" else LOGITS_ON_GPU) // len(table))
        total = torch.zeros((), dtype=torch.float64, device=states.device)
        by_states, by_table = torch.empty_like(states), torch.zeros_like(table)
        rows = table.to(kind)
        for start in range(0, len(states), at_a_time):
            some = slice(start, start + at_a_time)
            held = states[some].to(kind)
            logarithms = F.log_softmax((held @ rows.T).to(states.dtype), 1)
            chosen = target[some, None]
            found = logarithms.gather(1, chosen)
            if there is not None:
                found, held = found * there[some, None], held * there[some, None]
            total -= found.sum(dtype=torch.float64)
            slope = logarithms.exp_().scatter_add_(1, chosen, torch.full_like(chosen, -1, dtype=states.dtype))
            slope = slope.to(kind)
            by_states[some] = slope @ rows
            if kind == table.dtype:
                by_table.addmm_(slope.T, held)
            else:
                by_table += slope.T @ held
        if there is not None:
            by_states *= there[:, None]
        ctx.save_for_backward(by_states, by_table)
        return total

    @staticmethod
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor, Tensor, None, None, None]:
        by_states, by_table = ctx.saved_tensors
        factor = upstream.to(by_states.dtype)
        return by_states * factor, by_table * factor, None, None, None
