"""Local training from a common table in which every row, with samples or without, is drawn towards a guide.

Where no sample touches a row, k steps of that descent have a closed form.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from fedrec.federation.clients import Chunk
from fedrec.federation.contract import Rows, Tensors
from fedrec.models import NCF
from fedrec.training.compiled import CompiledKernel, kernel_for, network_settings, pack, unpack, work_of
from fedrec.training.descent import Descent, Fitted, Group
from fedrec.training.samples import Batch

if TYPE_CHECKING:
    from fedrec.training.local_training import LocalTrainer


def fit_guided(
    trainer: LocalTrainer,
    chunk: Chunk,
    round: int,
    user: Tensor,
    table: Tensor,
    own: Tensors,
    guide: Tensor,
    strength: float,
) -> Fitted:
    """Train from the common `table`, with the networks that are in `own`; own tables, too, may be written there.

    `strength` is what a row's gradient has of its distance from its `guide` [clients, items, d].
    """
    dense = {name: own[name] for name in trainer.model.dense_shapes()}
    fits = chunk.data.single and isinstance(trainer.model, NCF)
    kernel = kernel_for("guided", chunk.world) if fits else None
    if kernel is None:
        return Guided(trainer, chunk, round, user, table, dense, guide, strength).run()
    return _fit_compiled(kernel, trainer, chunk, round, user, table, dense, guide, strength, own["item"])


class Guided(Descent):
    """Descent in which every row of a client's table, with samples or without, is drawn towards its guide."""

    def __init__(
        self,
        trainer: LocalTrainer,
        chunk: Chunk,
        round: int,
        user: Tensor,
        table: Tensor,
        dense: Tensors,
        guide: Tensor,
        strength: float,
    ) -> None:
        super().__init__(trainer, chunk, round, user, table, dense)
        self.guide = guide
        # Gathered once: a step needs the guides of the working set alone, and whole tables of guides are large.
        self.towards = guide[self.clients, self.samples.item]
        self.strength = strength
        self.taken = torch.zeros_like(self.step_count)  # steps, of clients that early_exit has not stopped

    def _step(self, batch: Batch) -> Tensor:
        self.taken[: batch.clients] += self.going[: batch.clients]
        return super()._step(batch)

    def _sgd(self, group: Group, gradient: Tensor) -> None:
        if group is self.groups["item"]:
            away = group.value[: len(gradient)] - self.towards[: len(gradient)]
            gradient = gradient + self.strength * away
        super()._sgd(group, gradient)

    def _result(self) -> Fitted:
        """Rows without samples: each step leaves the same part of their distance to the guide."""
        fitted = super()._result()
        rows = fitted.table
        assert isinstance(rows, Rows)
        left = torch.empty_like(self.guide[:, 0, 0])
        stays = 1 - self.groups["item"].rate * self.strength
        left[self.samples.order] = stays ** self.taken.to(left.dtype)  # whole numbers as powers give single precision
        table = torch.lerp(self.guide, self.table.expand_as(self.guide), left[:, None, None])
        table[rows.owner, rows.item] = rows.value
        return Fitted(fitted.user, table, fitted.dense)


def _fit_compiled(
    train: CompiledKernel,
    trainer: LocalTrainer,
    chunk: Chunk,
    round: int,
    user: Tensor,
    table: Tensor,
    dense: Tensors,
    guide: Tensor,
    strength: float,
    own: Tensor,
) -> Fitted:
    """The same as `Guided`, compiled, from the common `table` into `own` [clients, items, d]."""
    settings, model, trained = trainer.settings, trainer.model, user.clone()
    assert isinstance(model, NCF)
    work, (flat, net) = work_of(trainer, chunk, round, trained, table), pack(model, dense)
    train(
        work.data(),
        chunk.data.negatives,
        settings.loss == "bpr",
        work.keys,
        network_settings(trainer),
        net,
        trained,
        table,
        flat,
        guide,
        strength,
        own,
        work.blocks,
        work.loss,
        work.seen,
    )
    work.observe()
    return Fitted(trained, own, unpack(model, flat))
