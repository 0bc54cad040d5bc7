"""Local training of a sequential backbone: at every position of a sequence, the next item against drawn ones."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import ClassVar, Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from fedrec.federation.contract import Tensors
from fedrec.models import Sequential
from fedrec.training.descent import Descent, Fitted, Group
from fedrec.training.replayed import Replayed
from fedrec.training.sequences import Dropout, SequenceBatch, SequenceSamples, bands, fill, unpack, weights_of

Products = Literal["full", "bfloat16"]
"""Of matrices in training: bfloat16 rounds what is multiplied to 8 bits, and sums in single precision."""

PACKED = "dense.network"  # the group of a network whose weights are rows of one table
# Recording takes about as long as a few steps, and the first one cannot be recorded.
REPLAYED = 8  # batches from which on it pays to record a step


class SequenceDescent(Descent):
    """As `Descent`, with whole sequences for samples; a batch goes through the network band by band.

    The network of a single client is stepped as one long vector, and on a GPU its steps are replayed: otherwise the GPU
    would spend most of its time on starting the steps of each weight.
    """

    kind: ClassVar[type[SequenceSamples]] = SequenceSamples
    samples: SequenceSamples
    joins: ClassVar[bool] = True  # whether a single client's network is one vector
    apart: dict[str, Group] | None = None  # the groups, where the network's are one
    replayed: Replayed | None = None
    recordable: bool = True

    def run(self) -> Fitted:
        self.warm = False
        if self.joins and len(self.samples.order) == 1 and not self.start and PACKED not in self.groups:
            self.apart = self.groups
            network = [self.groups[f"dense.{name}"] for name in self.model.dense_shapes()]
            self.groups = {"user": self.groups["user"], "item": self.groups["item"], "dense": _join(network)}
        return super().run()

    def _result(self) -> Fitted:
        self.groups = self.apart or self.groups
        return super()._result()

    def _step(self, batch: SequenceBatch) -> Tensor:
        if not self._replays(batch):
            self.warm = True
            return super()._step(batch)
        if self.replayed is None or not self.replayed.fits(batch):
            try:
                self.replayed = Replayed(super()._step, batch)
            except RuntimeError:  # a driver that cannot record these kernels: they are started one by one
                self.recordable = False
                return super()._step(batch)
        return self.replayed(batch)

    def _replays(self, batch: SequenceBatch) -> bool:
        """Whether other batches are like this one, and nothing in a step depends on what the host has to look at."""
        # A recorded step has fixed shapes, so the short last batch is left to the usual way.
        full = len(batch.lengths) == self.settings.batch
        return (
            self.warm
            and self.recordable
            and full
            and batch.size.device.type == "cuda"
            and self.apart is not None
            # Whether to go on is asked of the loss, for which the host would have to wait.
            and not self.settings.early_exit
            and len(self.chunk.places) >= REPLAYED * self.settings.batch
            and next(bands(batch.pad().lengths, self.model, batch.size.device)).stop == self.settings.batch
        )

    def _draw(self, round: int) -> SequenceSamples:
        trainer, settings = self.trainer, self.settings
        assert isinstance(trainer.model, Sequential)
        self.model = trainer.model
        return self.kind(
            self.chunk, round, settings.loss, settings.batch, self.model.length, trainer.slots, trainer.crop
        )

    def _gradients(self, leaves: Tensors, moving: list[Tensor], batch: SequenceBatch) -> tuple[Tensor, list[Tensor]]:
        # In double, because losses of many bands are added and early_exit compares small differences of the sums.
        total = torch.zeros(batch.clients, dtype=torch.float64, device=batch.size.device)
        gradients = [torch.zeros_like(leaf) for leaf in moving]
        for band in self._bands(batch):
            losses, owner = self._band_losses(leaves, batch, band)
            weight = 1.0 / batch.size[owner].to(losses.dtype) if self.settings.reduction == "mean" else 1.0
            parts = torch.autograd.grad((losses * weight).sum(), moving, materialize_grads=True)
            for gradient, part in zip(gradients, parts, strict=True):
                gradient += part
            total.index_add_(0, owner, losses.detach().double())
        return total, gradients

    def _bands(self, batch: SequenceBatch) -> Iterator[slice]:
        return bands(batch.lengths, self.model, batch.size.device)

    def _band_losses(self, leaves: Tensors, batch: SequenceBatch, band: slice) -> tuple[Tensor, Tensor]:
        """Summed over the positions of each sequence, and whose it is."""
        s, model, rows = self.samples, self.model, leaves["item"]
        at, real = fill(s.start[batch.sequence[band]], s.size[batch.sequence[band]], batch.lengths[band.start])
        hidden, dense, owner = self._encode(leaves, batch, band, at)
        positive = model.logits(hidden, F.embedding(s.target[at], rows), dense)
        negative = model.logits(hidden.unsqueeze(-2), F.embedding(s.neg[at], rows), dense)
        if self.settings.loss == "bpr":
            losses = F.softplus(negative - positive.unsqueeze(-1)).sum(-1)
        else:
            losses = F.softplus(-positive) + F.softplus(negative).sum(-1)
        return (losses * real).sum(1), owner

    def _encode(self, leaves: Tensors, batch: SequenceBatch, band: slice, at: Tensor) -> tuple[Tensor, Tensors, Tensor]:
        """Hidden states of the steps at these places, the weights they were made with, and whose sequences they are."""
        model = self.model
        owner = self.samples.owner_of_sequence[batch.sequence[band]]
        dense = self._weights(leaves, owner)
        drop = Dropout(model.dropout, batch.key[band], max(model.dim, model.length))
        rows = F.embedding(self.samples.input[at], leaves["item"])
        with self.rounding():
            hidden = model.encode(rows, dense, drop)
        # Losses are taken in the precision of the run: of near logits, bfloat16 leaves no difference.
        return hidden.to(rows.dtype), dense, owner

    def rounding(self) -> AbstractContextManager[object]:
        """Where products of matrices are as the trainer was told."""
        half = self.trainer.products == "bfloat16"
        return torch.autocast(self.table.device.type, torch.bfloat16) if half else nullcontext()

    def _weights(self, leaves: Tensors, owner: Tensor) -> Tensors:
        """The network of every sequence."""
        if "dense" in leaves:
            shapes = self.model.dense_shapes()
            parts = leaves["dense"][0].split([math.prod(shape) for shape in shapes.values()])
            return {name: part.view(shape) for (name, shape), part in zip(shapes.items(), parts, strict=True)}
        mine = weights_of({name[6:]: leaf for name, leaf in leaves.items() if name.startswith("dense.")}, owner)
        return unpack(self.model, mine["network"]) if PACKED in leaves else mine


def _join(groups: list[Group]) -> Group:
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
