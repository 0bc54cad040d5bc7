"""Local training of a sequential backbone: at every position of a sequence, the next item against drawn ones."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn import functional as F

from fedrec.federation.clients import Chunk
from fedrec.federation.contract import Tensors
from fedrec.federation.sequences import Dropout, SequenceBatch, SequenceSamples, bands, filled, weights_of
from fedrec.federation.training import Descent
from fedrec.models import Sequential

if TYPE_CHECKING:
    from fedrec.federation.training import LocalTraining


class SequenceDescent(Descent):
    """As `Descent`, with whole sequences for samples; a batch goes through the network band by band."""

    samples: SequenceSamples

    def _draw(self, method: LocalTraining, chunk: Chunk, round: int) -> SequenceSamples:
        assert isinstance(method.model, Sequential)
        self.model = method.model
        return SequenceSamples(chunk, round, method.loss, method.batch, self.model.length, method.slots())

    def _gradients(self, leaves: Tensors, moving: list[Tensor], batch: SequenceBatch) -> tuple[Tensor, list[Tensor]]:
        s = self.samples
        total = torch.zeros(batch.clients, dtype=torch.float64, device=batch.size.device)
        gradients = [torch.zeros_like(leaf) for leaf in moving]
        for band in bands(s.size[batch.sequence], self.model):
            owner = s.owner_of_sequence[batch.sequence[band]]
            losses = self._sequence_losses(leaves, batch.sequence[band], owner, batch.key[band])
            weight = 1.0 / batch.size[owner].to(losses.dtype) if self.method.reduction == "mean" else 1.0
            parts = torch.autograd.grad((losses * weight).sum(), moving, materialize_grads=True)
            for gradient, part in zip(gradients, parts, strict=True):
                gradient += part
            total.index_add_(0, owner, losses.detach().double())
        return total, gradients

    def _sequence_losses(self, leaves: Tensors, sequence: Tensor, owner: Tensor, key: Tensor) -> Tensor:
        """Summed over the positions of each sequence."""
        s, model, rows = self.samples, self.model, leaves["item"]
        at, real = filled(s.start[sequence], s.size[sequence])
        dense = weights_of({name[6:]: leaf for name, leaf in leaves.items() if name.startswith("dense.")}, owner)
        drop = Dropout(model.dropout, key, max(model.dim, model.length))
        hidden = model.encode(F.embedding(s.input[at], rows), dense, drop)
        positive = model.logits(hidden, F.embedding(s.target[at], rows), dense)
        negative = model.logits(hidden.unsqueeze(-2), F.embedding(s.neg[at], rows), dense)
        if self.method.loss == "bpr":
            losses = F.softplus(negative - positive.unsqueeze(-1)).sum(-1)
        else:
            losses = F.softplus(-positive) + F.softplus(negative).sum(-1)
        return (losses * real).sum(1)
