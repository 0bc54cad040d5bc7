"""Local training that also draws the rows of the own table together which share a label, by a contrastive loss."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from fedrec.federation.clients import Chunk
from fedrec.federation.contract import Tensors
from fedrec.methods.cluster.contrast import SupCon
from fedrec.models import Linear
from fedrec.training.compiled import (
    BLOCKS,
    CompiledKernel,
    ContrastSettings,
    blocks_of,
    head_settings,
    heads_of,
    kernel_for,
    samples_of,
    steepest,
    work_of,
)
from fedrec.training.descent import Descent, Fitted, Group
from fedrec.training.local_training import LocalTrainer
from fedrec.training.samples import Batch

if TYPE_CHECKING:
    from fedrec.methods.cluster.cgfedrec import CGFedRec
    from fedrec.methods.cluster.cofedrec import CoFedRec


def fit_aligned(
    trainer: LocalTrainer,
    method: CGFedRec | CoFedRec,
    chunk: Chunk,
    round: int,
    user: Tensor,
    own: Tensors,
    labels: Tensor | None,
    once: bool = False,
) -> tuple[Tensor, Tensors]:
    """Train every client's own table and network on both losses; without labels, on that of recommendations alone."""
    if labels is None or method.contrast_weight == 0:
        return trainer.fit_own(chunk, round, user, own)
    contrast = SupCon(labels, method.temperature, method.supcon, compiled=chunk.world.compiled, classes=method.clusters)
    dense = {name: own[name] for name in trainer.model.dense_shapes()}
    fitted = fit_contrastive(trainer, chunk, round, user, own["item"], dense, contrast, method.contrast_weight, once)
    return fitted.user, fitted.own


def fit_contrastive(
    trainer: LocalTrainer,
    chunk: Chunk,
    round: int,
    user: Tensor,
    table: Tensor,
    dense: Tensors,
    contrast: SupCon,
    strength: float,
    once: bool = False,
) -> Fitted:
    """Train from every client's own table [clients, items, d], which is updated in place, on both losses."""
    kernel = _kernel(trainer, chunk, table, contrast)
    if kernel is None:
        return Contrastive(trainer, chunk, round, user, table, dense, contrast, strength, once).run()
    work, (head, bias), clients = work_of(trainer, chunk, round, user, table), heads_of(dense), len(table)
    found, turns = torch.zeros(clients, dtype=torch.float64), torch.zeros(clients, dtype=torch.int64)
    # In the first round all begin with one table: its contrast, the dearest part, is computed once for all.
    same = equal_tables(table)
    known = contrast(table[same.int().argmax()][None]) if same.any() else (torch.zeros(1), table.new_empty(1, 0, 0))
    # Work is shared out by steps and not by samples: each has a contrast over the whole table, which decides the time.
    steps = -(-samples_of(chunk) // trainer.settings.batch)
    kernel(
        work.data(),
        chunk.data.negatives,
        work.keys,
        head_settings(trainer),
        contrast.compiled_terms,
        ContrastSettings(strength, once, contrast.repulsion.size(table)),
        head,
        bias,
        table,
        same,
        (float(known[0]), known[1][0].numpy()),
        blocks_of(steps, 0),
        work.loss,
        work.seen,
        found,
        turns,
    )
    work.observe()
    chunk.observe("contrastive", found.sum(), int(turns.sum()))
    return Fitted(user, table, {"weight0": head.view_as(dense["weight0"]), "bias0": bias})


def _kernel(trainer: LocalTrainer, chunk: Chunk, table: Tensor, contrast: SupCon) -> CompiledKernel | None:
    settings = trainer.settings
    fits = (
        isinstance(trainer.model, Linear)
        and steepest(settings)
        and settings.early_exit == 0
        and chunk.data.single
        and contrast.repulsion.whole_loss(table) is not None
        and contrast.repulsion.room(table) >= BLOCKS  # all at once: what is computed must not depend on the cores
    )
    return kernel_for("contrastive", chunk.world) if fits else None


def equal_tables(tables: Tensor) -> Tensor:
    """The clients, if any, that begin with one and the same table: the contrast of its first step is common to them."""
    # By the first row alone, which tells nearly all tables apart; only candidates are compared in full.
    _, place, count = tables[:, 0].unique(dim=0, return_inverse=True, return_counts=True)
    same: Tensor = (place == count.argmax()) & (count.max() > 1)
    likely = same.nonzero()[:, 0]
    for k in likely.tolist():
        same[k] = torch.equal(tables[k], tables[likely[0]])
    return same & (same.sum() > 1)


class Contrastive(Descent):
    """Descent on the loss of a batch plus `strength` times the contrastive loss of the whole own table.

    The second part is there at every batch, or with `once` at the first batch of every epoch.
    """

    def __init__(
        self,
        trainer: LocalTrainer,
        chunk: Chunk,
        round: int,
        user: Tensor,
        table: Tensor,
        dense: Tensors,
        contrast: SupCon,
        strength: float,
        once: bool = False,
    ) -> None:
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
            # The working set is ahead of the whole table, so its rows are written back before all are compared.
            whole[rows] = group.value[: len(gradient)]
            loss, slope = self.contrast(whole.unflatten(0, (-1, self.table.shape[1])))
            self.chunk.observe("contrastive", loss.sum(), len(loss))
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
