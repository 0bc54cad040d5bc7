"""The supervised contrastive loss over all rows of every client's item table, with its gradient in closed form.

Khosla et al., "Supervised Contrastive Learning" (NeurIPS 2020). Rows are normalised, those with the same label attract
each other, all others repel (equations 7 to 11 of CGFedRec). With z the normalised rows and P(i) the other rows with
the label of row i,

    loss = 1/m sum_i [ log sum_{a != i} exp(z_i.z_a / tau) - 1/|P(i)| sum_{p in P(i)} z_i.z_p / tau ],

where a row that is alone with its label adds nothing but counts in the mean. Attraction needs cluster sums only;
repulsion takes all pairs (`repulsion.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from fedrec.methods.cluster.repulsion import SPAN, Form, Repulsion
from fedrec.training.compiled import ContrastTerms

ON_GPU = 8  # times the memory, so that a thousand small tables are compared at once
BASE_TEMPERATURE = 0.5  # released: the loss is multiplied by tau / this


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
    memory: int = 1 << 30  # bytes of similarities held at once by a processor
    compiled: bool = True  # let passes over similarities be compiled where they can be
    classes: int = -1  # labels that there may be; -1: as many as there are, which a device has to be asked for

    @cached_property
    def repulsion(self) -> Repulsion:
        memory = self.memory * (1 if self.labels.device.type == "cpu" else ON_GPU)
        return Repulsion(self.temperature, self.form, memory, self.compiled)

    def __call__(self, tables: Tensor) -> tuple[Tensor, Tensor]:
        """[clients, items, d] to the losses [clients] and their gradients, each client's by its own table."""
        loss, gradient = tables.new_empty(len(tables)), torch.empty_like(tables)
        terms = self._terms_of(tables.dtype)
        room, on_cpu = self.repulsion.clients(tables), tables.device.type == "cpu"
        # similarities of one client fill a cache; an accelerator wants many clients at once
        group = 1 if on_cpu else min(room, len(tables))

        def work(starts: Iterable[int]) -> None:
            space = self.repulsion.space(tables[:group])  # fresh memory for every client would cost as much again
            for start in starts:
                part = slice(start, start + group)
                loss[part] = self._evaluate(tables[part], terms, space, gradient[part])

        _in_threads(work, range(0, len(tables), group), room if on_cpu else 1)
        return loss, gradient

    @cached_property
    def _terms(self) -> dict[torch.dtype, Terms]:
        return {}

    def _terms_of(self, dtype: torch.dtype) -> Terms:
        if dtype not in self._terms:
            member = F.one_hot(self.labels.long(), self.classes).to(dtype)
            others = (member.sum(0) - 1)[self.labels.long()]
            share = torch.where(others > 0, 1 / (others + self.repulsion.floor), torch.zeros_like(others))
            self._terms[dtype] = Terms(member, share[:, None], others * share)
        return self._terms[dtype]

    @cached_property
    def compiled_terms(self) -> ContrastTerms:
        """All that a kernel has to know, in single precision."""
        member, share, weight = self._terms_of(torch.float32)
        return ContrastTerms(
            labels=self.labels.long().numpy(),
            clusters=member.shape[1],
            share=share[:, 0].numpy(),
            weight=weight.numpy(),
            steep=1 / self.temperature,
            floor=self.repulsion.floor,
            lowest=-SPAN[torch.float32],
            scale=self._factor,
        )

    @property
    def _factor(self) -> float:
        """Of the sum over all items."""
        return (1 if self.form == "paper" else self.temperature / BASE_TEMPERATURE) / len(self.labels)

    def _evaluate(self, tables: Tensor, terms: Terms, space: Tensor | None, gradient: Tensor) -> Tensor:
        """The losses; their gradients into `gradient`."""
        tau, (member, share, weight) = self.temperature, terms
        kernel = self.repulsion.whole_loss(tables) if space is not None and len(tables) == 1 else None
        if kernel is not None:
            return tables.new_tensor([kernel(tables[0], self.compiled_terms, space, gradient[0])])
        norm = tables.norm(dim=-1, keepdim=True).clamp(min=1e-12)
        z = tables / norm
        friends = member @ (member.T @ z) - z  # sum over P(i)
        log_sum, repulsion = self.repulsion(z, weight, space)
        slope = repulsion - 2 * share * friends
        gradient.copy_((slope - (slope * z).sum(-1, keepdim=True) * z) / norm * (self._factor / tau))
        return self._factor * ((weight * log_sum).sum(1) - (share * z * friends).sum((1, 2)) / tau)


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
