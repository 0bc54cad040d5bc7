"""FedRAP's descent on two tables at once, the shared one C and each client's own D, and its compiled twin.

Steps shrink with every batch; weight decay reaches all rows at every step, which has a closed form where no sample
touches a row: `left` is the part of it that a round leaves.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from fedrec.federation.clients import Chunk
from fedrec.federation.contract import PartialSum, Rows, Tensors
from fedrec.training.compiled import AdditiveSettings, CompiledKernel, sum_blocks, work_of
from fedrec.training.descent import Descent, Fitted, Group
from fedrec.training.local_training import LocalTrainer
from fedrec.training.lookup import look_up
from fedrec.training.losses import bce
from fedrec.training.samples import Batch

if TYPE_CHECKING:
    from fedrec.methods.personal.fedrap import FedRAP


def nuclear(rows: Tensor) -> Tensor:
    """The sum of singular values of every client's rows [clients, rows, d], from the small matrix of their products."""
    # In double, because products square the singular values, and with them the loss of digits.
    square = torch.linalg.eigvalsh((rows.mT @ rows).double())
    there = square > 1e-12 * square.amax(1, keepdim=True)  # a root has no slope at zero
    return torch.where(there, torch.where(there, square, 1.0).sqrt(), 0.0).sum(1).to(rows.dtype)


Price = Callable[[Tensor], Tensor]
OF_ENTRIES: dict[str, Price] = {"l1": torch.abs, "l2": torch.square}  # their mean is the price of the shared table
OF_ROWS: dict[str, Price] = {"nuclear": nuclear, "max": lambda rows: rows.abs().amax((1, 2))}  # of a batch, together


class Additive(Descent):
    """Descent on two tables at once: the shared one, and `own` [clients, items, d], which is updated in place."""

    settings: FedRAP

    def __init__(
        self, trainer: LocalTrainer, chunk: Chunk, round: int, user: Tensor, table: Tensor, dense: Tensors, own: Tensor
    ) -> None:
        super().__init__(trainer, chunk, round, user, table, dense)
        item = self.groups["item"]
        self.own = own
        self.groups["own"] = Group(own[self.clients, self.samples.item], item.owner, item.end, item.rate)
        for group in self.groups.values():
            group.decay += self.settings.weight_decay
        self.left = torch.ones(len(self.step_count), dtype=table.dtype, device=table.device)  # of untouched rows

    def _losses(self, leaves: Tensors, batch: Batch) -> Tensor:
        """BCE(w . (D + C) + b) - lambda * mean((D - C)^2) + mu * price(C), of every sample."""
        own, shared, settings = leaves["own"], leaves["item"], self.settings
        owner = self.groups["item"].owner[: len(own)]
        weight, bias = (leaves[f"dense.{name}0"].flatten(1).index_select(0, owner) for name in ("weight", "bias"))
        logit = ((own + shared) * weight).sum(1) + bias.squeeze(1)  # of a row, for all its samples
        price = -settings.apart * (own - shared).square().mean(1)
        if settings.regular in OF_ENTRIES:
            price = price + settings.sparse * OF_ENTRIES[settings.regular](shared).mean(1)
        losses = bce(look_up(logit, batch.pos), batch.label) + look_up(price, batch.pos)
        if settings.regular in OF_ROWS:
            norm = OF_ROWS[settings.regular](look_up(shared, batch.pos) * batch.valid[..., None])
            losses = losses + settings.sparse * norm[:, None]
        return losses

    def _step(self, batch: Batch) -> Tensor:
        loss = super()._step(batch)
        some = slice(batch.clients)
        shrink = 1 - self.groups["item"].rate * self.settings.weight_decay * self._pace()[some]
        # A client that early_exit has stopped takes no step, so its untouched rows do not decay either.
        self.left[some] = torch.where(self.going[some], self.left[some] * shrink, self.left[some])
        return loss

    def _pace(self) -> Tensor:
        """What is left of every client's rates at its present step."""
        return self.settings.batch_decay ** (self.step_count - 1).to(self.left.dtype)

    def _move(self, group: Group, value: Tensor, step: Tensor) -> None:
        pace = self._pace()[group.owner[: len(step)]]
        super()._move(group, value, step * pace.reshape(-1, *[1] * (step.dim() - 1)))

    def _result(self) -> Fitted:
        fitted = super()._result()
        rows, left = fitted.table, torch.empty_like(self.left)
        assert isinstance(rows, Rows)
        left[self.samples.order] = self.left
        if self.settings.weight_decay:
            self.own *= left[:, None, None]
            # Decay is a pull to zero, which an upload of rows can carry without the rows that no sample touched.
            rows = replace(rows, shift=1 - left, towards=torch.zeros_like(rows.base))
        self.own[self.clients, self.samples.item] = self.groups["own"].value
        return Fitted(fitted.user, rows, fitted.dense)


def fit_compiled(
    train: CompiledKernel,
    method: FedRAP,
    chunk: Chunk,
    round: int,
    user: Tensor,
    table: Tensor,
    dense: Tensors,
    own: Tensor,
) -> Fitted:
    """The same as `Additive`, compiled: only the sum of the shared tables comes out."""
    work, rates = work_of(method.trainer, chunk, round, user, table), method.trainer.rates
    left = torch.ones_like(work.loss)
    head, bias = (dense[name + "0"].flatten(1).clone() for name in ("weight", "bias"))
    parts = work.parts()
    priced = method.sparse if method.regular != "none" else 0.0
    decay = float(method.weight_decay)
    settings = AdditiveSettings(
        rate_head=float(rates["dense"]),
        rate_row=float(rates["item"]),
        decay_head=decay + method.weight_decay_dense,
        decay=decay,
        apart=float(method.apart),
        sparse=float(priced),
        lasso=method.regular == "l1",
        batch=method.batch,
        epochs=method.epochs,
        mean=method.reduction == "mean",
        early_exit=float(method.early_exit),
        slower=float(method.batch_decay),
    )
    train(
        work.data(),
        chunk.world.items,
        chunk.data.negatives,
        work.keys,
        settings,
        work.tables[0],
        own,
        head,
        bias,
        work.blocks,
        parts,
        left,
        work.loss,
        work.seen,
    )
    work.observe()
    change = sum_blocks(parts) + table.double() * (left - 1).sum()
    trained = {"weight0": head.view_as(dense["weight0"]), "bias0": bias}
    return Fitted(user, PartialSum(table, change, len(chunk.clients)), trained)
