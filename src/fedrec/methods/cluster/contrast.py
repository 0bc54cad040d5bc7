"""The supervised contrastive loss over all rows of every client's item table, with its gradient in closed form.

Khosla et al., "Supervised Contrastive Learning" (NeurIPS 2020). Rows are normalised, those with the same label attract
each other, all others repel. With z the normalised rows and P(i) the other rows with the label of row i,

    loss = 1/m sum_i [ log sum_{a != i} exp(z_i.z_a / tau) - 1/|P(i)| sum_{p in P(i)} z_i.z_p / tau ],

where a row that is alone with its label adds nothing but counts in the mean. Attraction needs cluster sums only;
repulsion takes all pairs, O(m^2 d) per client, and is symmetric: the similarities of two blocks of rows are computed
once and serve both.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from fedrec.federation.clients import Chunk
from fedrec.federation.contract import Tensors
from fedrec.training.compiled import CompiledKernel, find_kernel
from fedrec.training.descent import Descent, Fitted, Group
from fedrec.training.local_training import LocalTrainer
from fedrec.training.samples import Batch

Form = Literal["paper", "released"]

FLOOR = 1e-6  # released: added to the sum in the logarithm and to |P(i)|
BASE_TEMPERATURE = 0.5  # released: the loss is multiplied by tau / this
SPAN = {torch.float32: 80.0, torch.float64: 700.0}  # exponents 0 .. -SPAN are far from underflow
ROWS = 256  # of a block: large enough for matrix products, small enough to stay in a cache


class Terms(NamedTuple):
    """What follows from the labels alone."""

    member: Tensor  # [items, clusters]
    share: Tensor  # 1 / |P(i)|, [items, 1]
    weight: Tensor  # 1, but 0 for a row that is alone


@dataclass(frozen=True)
class SupCon:
    """The loss for one clustering of the items, `labels` [items], which all clients share.

    form=released: the variant in the code of CoFedRec and its family. It measures exponents from the row's similarity
    to itself and adds a floor, so that at small temperatures nothing repels any more.
    """

    labels: Tensor
    temperature: float = 0.1
    form: Form = "paper"
    memory: int = 1 << 30  # bytes of similarities held at once
    compiled: bool = True  # let passes over similarities be compiled where they can be

    def __call__(self, tables: Tensor) -> tuple[Tensor, Tensor]:
        """[clients, items, d] to the losses [clients] and their gradients, each client's by its own table."""
        loss, gradient = tables.new_empty(len(tables)), torch.empty_like(tables)
        items, rows = tables.shape[1], min(ROWS, tables.shape[1])
        each = items * (items + 3 * rows) // 2  # the triangle, and a block beside it
        size = each * tables.element_size()
        fits = self._one_exponent(tables.dtype) and size <= self.memory
        on_cpu = tables.device.type == "cpu"
        # similarities of one client fill a cache; an accelerator wants many clients at once
        group = 1 if on_cpu else min(max(1, self.memory // size), len(tables))
        terms = self._terms(tables)

        def work(starts: Iterable[int]) -> None:
            # fresh memory for every client would cost as much again
            space = tables.new_empty(group * each) if fits else None
            for start in starts:
                part = slice(start, start + group)
                loss[part] = self._evaluate(tables[part], terms, space, gradient[part])

        _in_threads(work, range(0, len(tables), group), max(1, self.memory // size) if on_cpu else 1)
        return loss, gradient

    def _one_exponent(self, dtype: torch.dtype) -> bool:
        """Whether exp((cosine - 1) / tau) serves all rows, though none has its own maximum taken off."""
        return self.form == "released" or 2 / self.temperature <= SPAN[dtype]

    def _terms(self, tables: Tensor) -> Terms:
        member = F.one_hot(self.labels.long()).to(tables.dtype)
        others = (member.sum(0) - 1)[self.labels.long()]
        share = torch.where(others > 0, 1 / (others + self._floor), torch.zeros_like(others))
        return Terms(member, share[:, None], others * share)

    @property
    def _floor(self) -> float:
        return FLOOR if self.form == "released" else 0.0

    def _evaluate(self, tables: Tensor, terms: Terms, space: Tensor | None, gradient: Tensor) -> Tensor:
        """The losses; their gradients into `gradient`."""
        items, tau, (member, share, weight) = tables.shape[1], self.temperature, terms
        norm = tables.norm(dim=-1, keepdim=True).clamp(min=1e-12)
        z = tables / norm
        friends = member @ (member.T @ z) - z  # sum over P(i)
        if space is None:
            log_sum, repulsion = self._rows(z, weight)
        else:
            log_sum, repulsion = self._triangle(z, weight, space)
        scale = 1 / items if self.form == "paper" else tau / BASE_TEMPERATURE / items
        attraction = self._slopes(z, friends, share, repulsion, norm, scale / tau, gradient)
        return scale * ((weight * log_sum).sum(1) - attraction / tau)

    def _slopes(self, z: Tensor, friends: Tensor, share: Tensor, repulsion: Tensor, norm: Tensor, scale: float,
                out: Tensor) -> Tensor:  # fmt: skip
        """From slopes by z to those by the rows themselves, into `out`; returns the mean similarity of friends."""
        kernel = self._kernel("contrast_slopes", z)
        if kernel is not None:
            found = kernel(z[0], friends[0], share[:, 0], repulsion[0], norm[0, :, 0], scale, out[0])
            return z.new_tensor([found])
        slope = repulsion - 2 * share * friends
        out.copy_((slope - (slope * z).sum(-1, keepdim=True) * z) / norm * scale)
        return (share * z * friends).sum((1, 2))

    def _triangle(self, z: Tensor, weight: Tensor, space: Tensor) -> tuple[Tensor, Tensor]:
        """log sum_a exp(z_i.z_a / tau), and sum_a (w_i P_ia + w_a P_ai) z_a, from blocks on and above the diagonal.

        With one exponent for all, P_ia = E_ia / D_i for a symmetric E, and P_ia + P_ai = E_ia (1 / D_i + 1 / D_a).
        """
        clients, items, tau = *z.shape[:2], self.temperature
        starts, scaled, total, blocks = range(0, items, ROWS), z.mT / tau, torch.zeros_like(z[..., 0]), []
        for start in starts:
            stop = min(start + ROWS, items)
            shape = (clients, stop - start, items - start)
            e, space = space[: math.prod(shape)].view(shape), space[math.prod(shape) :]
            torch.bmm(z[:, start:stop], scaled[..., start:], out=e)
            self._exponentials(e, total[:, start:])
            blocks.append(e)
        total = _positive(total + self._floor, weight)
        by, pull = weight / total, torch.zeros_like(z)
        for start, e in zip(starts, blocks, strict=True):
            stop = min(start + ROWS, items)
            self._weigh(e, by[:, start:], space)
            pull[:, start:stop].baddbmm_(e, z[:, start:])
            pull[:, stop:].baddbmm_(e[..., stop - start :].mT, z[:, start:stop])
        return total.log() + 1 / tau, pull

    def _exponentials(self, e: Tensor, total: Tensor) -> None:
        """Similarities to E, in place; its sums over rows, and over columns beyond the square, are added to total."""
        kernel, square = self._kernel("contrast_exponentials", e), e.shape[1]
        if kernel is not None:
            kernel(e[0], 1 / self.temperature, -SPAN[e.dtype], total[0])
            return
        self._exp(e.sub_(1 / self.temperature), slice(0, square))
        total[:, :square] += e.sum(2)
        total[:, square:] += e[..., square:].sum(1)

    def _weigh(self, e: Tensor, by: Tensor, space: Tensor) -> None:
        kernel = self._kernel("contrast_weigh", e)
        if kernel is not None:
            kernel(e[0], by[0])
            return
        e *= torch.add(by[:, : e.shape[1], None], by[:, None], out=space[: e.numel()].view(e.shape))

    def _kernel(self, name: str, e: Tensor) -> CompiledKernel | None:
        """Of one client at a time, in single precision."""
        return find_kernel(name, e.device, self.compiled and len(e) == 1 and e.dtype == torch.float32)

    def _rows(self, z: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
        """The same row block by row block, each row with its own largest exponent unless the form forbids it."""
        items, tau = z.shape[1], self.temperature
        log_sum, pull = torch.empty_like(z[..., 0]), torch.zeros_like(z)
        step = max(1, min(ROWS, self.memory // (len(z) * items * z.element_size())))
        for start in range(0, items, step):
            stop = min(start + step, items)
            e = z[:, start:stop] @ z.mT / tau
            e[..., start:stop].diagonal(dim1=1, dim2=2).fill_(-torch.inf)  # before the maximum is taken
            top = e.amax(2, keepdim=True) if self.form == "paper" else torch.full_like(e[..., :1], 1 / tau)
            e -= torch.where(top.isfinite(), top, torch.zeros_like(top))
            self._exp(e, slice(start, stop))
            total = _positive(e.sum(2) + self._floor, weight[start:stop])
            log_sum[:, start:stop] = total.log() + top.squeeze(2)
            by = (weight[start:stop] / total)[..., None]
            pull[:, start:stop] += by * (e @ z)
            pull += e.mT @ (by * z[:, start:stop])
        return torch.where(weight > 0, log_sum, torch.zeros_like(log_sum)), pull

    def _exp(self, exponent: Tensor, own: slice) -> None:
        """In place; 0 where rows meet themselves. What would underflow is held just above: there, exp is slow."""
        span = SPAN[exponent.dtype]
        if 2 / self.temperature > span:
            exponent.clamp_(min=-span)
        exponent.exp_()
        exponent[..., own].diagonal(dim1=1, dim2=2).zero_()


def _in_threads(work: Callable[[Iterable[int]], None], tasks: range, most: int) -> None:
    """Share out tasks that each keep to one thread: more than products of this size would gain from several."""
    threads = torch.get_num_threads()
    count = min(threads, most, len(tasks))
    if count < 2:
        work(tasks)
        return
    torch.set_num_threads(1)
    try:
        with ThreadPoolExecutor(count) as pool:
            list(pool.map(work, [tasks[k::count] for k in range(count)]))
    finally:
        torch.set_num_threads(threads)


def _positive(total: Tensor, weight: Tensor) -> Tensor:
    """1 where a row has no weight, whose sum may be empty."""
    return torch.where(weight > 0, total, torch.ones_like(total))


class Contrastive(Descent):
    """Descent on the loss of a batch plus `strength` times the contrastive loss of the whole own table.

    The second part is there at every batch, or with `once` at the first batch of every epoch.
    """

    def __init__(self, trainer: LocalTrainer, chunk: Chunk, round: int, user: Tensor, table: Tensor, dense: Tensors,
                 contrast: SupCon, strength: float, once: bool = False) -> None:  # fmt: skip
        super().__init__(trainer, chunk, round, user, table, dense)
        s, items = self.samples, table.shape[1]
        each = torch.arange(len(s.order), device=s.order.device)
        ends = [items * k for k in range(len(each) + 1)]
        rate = self.groups["item"].rate
        # all rows; those with samples have their newest values in their own group
        self.whole = Group(table[s.order].flatten(0, 1), each.repeat_interleave(items), ends, rate)
        self.row = s.owner * items + s.item  # where those with samples are among all
        self.contrast, self.strength, self.once = contrast, strength, once
        self.batches, self.present, self.along = 0, 0, self.update
        self.update = self._update

    def _step(self, batch: Batch) -> Tensor:
        self.batches, self.present = self.batches + 1, batch.clients
        return super()._step(batch)

    def _update(self, group: Group, gradient: Tensor) -> None:
        if group is self.groups["item"]:
            gradient = self._with_contrast(group, gradient)
        self.along(group, gradient)

    def _with_contrast(self, group: Group, gradient: Tensor) -> Tensor:
        """The gradient of rows with samples, with the contrast where it is due; all rows take its step."""
        rows, whole = self.row[: len(gradient)], self.whole.value[: self.whole.end[self.present]]
        if self._due():
            whole[rows] = group.value[: len(gradient)]
            loss, slope = self.contrast(whole.unflatten(0, (-1, self.table.shape[1])))
            self.chunk.observe("contrastive", float(loss.sum()), len(loss))
            slope = slope.flatten(0, 1).mul_(self.strength)
            gradient = gradient + slope[rows]
            self.along(self.whole, slope)
        elif self.settings.optimiser == "adam":  # rows go on moving while their moments last
            self.along(self.whole, torch.zeros_like(whole))
        return gradient

    def _due(self) -> bool:
        return not self.once or (self.batches - 1) % int(self.samples.steps[0]) == 0

    def _result(self) -> Fitted:
        self.table[self.samples.order] = self.whole.value.view_as(self.table)
        return super()._result()
