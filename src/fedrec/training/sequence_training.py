"""Local training of a sequential backbone: at every position of a sequence, the next item against drawn ones."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor
from torch.nn import functional as F

from fedrec.federation.contract import Tensors
from fedrec.models import Sequential
from fedrec.training.descent import Descent
from fedrec.training.sequences import Dropout, SequenceBatch, SequenceSamples, bands, filled, weights_of


class SequenceDescent(Descent):
    """As `Descent`, with whole sequences for samples; a batch goes through the network band by band."""

    kind: ClassVar[type[SequenceSamples]] = SequenceSamples
    samples: SequenceSamples

    def _draw(self, round: int) -> SequenceSamples:
        trainer, settings = self.trainer, self.settings
        assert isinstance(trainer.model, Sequential)
        self.model = trainer.model
        return self.kind(self.chunk, round, settings.loss, settings.batch, self.model.length, trainer.slots)

    def _gradients(self, leaves: Tensors, moving: list[Tensor], batch: SequenceBatch) -> tuple[Tensor, list[Tensor]]:
        total = torch.zeros(batch.clients, dtype=torch.float64, device=batch.size.device)
        gradients = [torch.zeros_like(leaf) for leaf in moving]
        for band in bands(batch.lengths, self.model, total.device):
            losses, owner = self._band_losses(leaves, batch, band)
            weight = 1.0 / batch.size[owner].to(losses.dtype) if self.settings.reduction == "mean" else 1.0
            parts = torch.autograd.grad((losses * weight).sum(), moving, materialize_grads=True)
            for gradient, part in zip(gradients, parts, strict=True):
                gradient += part
            total.index_add_(0, owner, losses.detach().double())
        return total, gradients

    def _band_losses(self, leaves: Tensors, batch: SequenceBatch, band: slice) -> tuple[Tensor, Tensor]:
        """Summed over the positions of each sequence, and whose it is."""
        s, model, rows = self.samples, self.model, leaves["item"]
        at, real = filled(s.start[batch.sequence[band]], s.size[batch.sequence[band]], batch.lengths[band.start])
        hidden, dense, owner = self._encoded(leaves, batch, band, at)
        positive = model.logits(hidden, F.embedding(s.target[at], rows), dense)
        negative = model.logits(hidden.unsqueeze(-2), F.embedding(s.neg[at], rows), dense)
        if self.settings.loss == "bpr":
            losses = F.softplus(negative - positive.unsqueeze(-1)).sum(-1)
        else:
            losses = F.softplus(-positive) + F.softplus(negative).sum(-1)
        return (losses * real).sum(1), owner

    def _encoded(
        self, leaves: Tensors, batch: SequenceBatch, band: slice, at: Tensor
    ) -> tuple[Tensor, Tensors, Tensor]:
        """Hidden states of the steps at these places, the weights they were made with, and whose sequences they are."""
        model = self.model
        owner = self.samples.owner_of_sequence[batch.sequence[band]]
        dense = self._weights(leaves, owner)
        drop = Dropout(model.dropout, batch.key[band], max(model.dim, model.length))
        return model.encode(F.embedding(self.samples.input[at], leaves["item"]), dense, drop), dense, owner

    def _weights(self, leaves: Tensors, owner: Tensor) -> Tensors:
        """The network of every sequence."""
        return weights_of({name[6:]: leaf for name, leaf in leaves.items() if name.startswith("dense.")}, owner)
