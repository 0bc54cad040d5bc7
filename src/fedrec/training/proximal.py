"""Local training drawn to given tables: mu |Q - T|^2 in the loss, Q being a client's whole item table."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from fedrec.federation.clients import Chunk
from fedrec.federation.contract import Tensors
from fedrec.training.descent import Descent, Fitted, Group
from fedrec.training.sequence_training import SequenceDescent

if TYPE_CHECKING:
    from fedrec.training.local_training import LocalTrainer


class Proximal(Descent):
    """Every row of a client's table, with samples or without, is drawn to its row in `towards`."""

    def __init__(
        self,
        trainer: LocalTrainer,
        chunk: Chunk,
        round: int,
        user: Tensor,
        table: Tensor,
        dense: Tensors,
        towards: Tensor,
    ) -> None:
        super().__init__(trainer, chunk, round, user, table, dense)
        s, items = self.samples, table.shape[1]
        each = torch.arange(len(s.order), device=s.order.device)
        ends = [items * k for k in range(len(each) + 1)]
        # all rows; those with samples have their values in their own group
        self.whole = Group(table[s.order].flatten(0, 1), each.repeat_interleave(items), ends, trainer.rates["item"])
        self.towards = towards[s.order].flatten(0, 1)
        # Rows with samples take the same pull by the usual way, in one step with their gradients.
        self.start["item"] = towards[self.clients, s.item]

    def _step(self, batch: Any) -> Tensor:
        total = super()._step(batch)
        value = self.whole.value[: self.whole.end[batch.clients]]
        self.update(self.whole, 2 * self.trainer.pull * (value - self.towards[: len(value)]))
        return total

    def _result(self) -> Fitted:
        self.table[self.samples.order] = self.whole.value.view_as(self.table)
        return super()._result()


class ProximalSequences(Proximal, SequenceDescent):
    """The same for a sequential backbone."""
