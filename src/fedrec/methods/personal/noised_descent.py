"""Descent with the gradient of each client's whole table clipped and noised at every step.

Noise falls on rows without samples too, or they would show which rows have some. Nothing reads those within a round, so
that their noise of all steps is one draw.
"""

from __future__ import annotations

import torch
from torch import Tensor

from fedrec.federation.clients import Chunk
from fedrec.federation.contract import Tensors
from fedrec.federation.noise import Gaussian, UploadContext
from fedrec.federation.stages import Clip
from fedrec.random import Purpose, fold_tensor, normal
from fedrec.training.descent import Descent, Fitted, Group
from fedrec.training.local_training import LocalTrainer

STEP_NOISE = 1  # the stream of noise on rows that a batch touched


def clip(gradient: Tensor, owner: Tensor, clients: int, norm: float) -> Tensor:
    """Rows of several clients' gradients, each client's scaled down together to at most this norm."""
    square = gradient.new_zeros(clients).index_add_(0, owner, gradient.square().sum(1))
    # Scaled down and never up: a small gradient that grew to the norm would be learned from as if it were large.
    return gradient * (norm / square.sqrt().clamp(min=1e-30)).clamp(max=1)[owner, None]


class NoisedDescent(Descent):
    """`clip` bounds the norm of a gradient, `noise` is the standard deviation of what is added."""

    def __init__(
        self,
        trainer: LocalTrainer,
        chunk: Chunk,
        round: int,
        user: Tensor,
        table: Tensor,
        dense: Tensors,
        clip: float,
        noise: float,
    ) -> None:
        super().__init__(trainer, chunk, round, user, table, dense)
        clients = chunk.tensor(chunk.clients)[self.samples.order]
        self.clip, self.noise = clip, noise
        self.context = UploadContext(chunk.world, chunk.clients, round, {}, secret=chunk.secret)
        self.key = fold_tensor(chunk.secret.stream(Purpose.NOISE, round, STEP_NOISE), clients)
        self.entry = torch.arange(self.settings.dim, device=table.device)
        self.along, self.update = self.update, self._update

    def _update(self, group: Group, gradient: Tensor) -> None:
        if group is self.groups["item"]:
            owner = group.owner[: len(gradient)]
            bounded = clip(gradient, owner, len(group.end), self.clip)
            # Fresh at every step: the same noise twice would add up, and could be taken off by a difference.
            key = fold_tensor(self.key, self.step_count)[owner, None]
            position = self.samples.item[: len(gradient), None] * self.settings.dim + self.entry
            gradient = bounded + self.noise * normal(key, position, gradient.dtype)
        self.along(group, gradient)

    def _result(self) -> Fitted:
        fitted, s = super()._result(), self.samples
        rest = Gaussian(1.0).apply({"rest": torch.zeros_like(self.table)}, self.context)["rest"]
        assert isinstance(rest, Tensor)
        rest[self.clients, s.item] = 0
        steps = torch.empty_like(s.order)
        steps[s.order] = self.chunk.tensor(s.steps * self.settings.epochs)
        # Independent noise of k steps has the root of k times the deviation of one.
        scale = self.groups["item"].rate * self.noise * steps.to(rest.dtype).sqrt()
        self.table -= scale[:, None, None] * rest
        return fitted


def noise_change(change: Tensor, clip: float, noise: float, chunk: Chunk, round: int) -> Tensor:
    """Return the changes of own tables [clients, items, d], each clipped to a norm and noised."""
    context = UploadContext(chunk.world, chunk.clients, round, {}, secret=chunk.secret)
    noised = Gaussian(noise).apply(Clip(clip).apply({"item": change}, context), context)["item"]
    assert isinstance(noised, Tensor)
    return noised
