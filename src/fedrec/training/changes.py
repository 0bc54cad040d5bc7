"""What clients change of what they share: by one gradient, or by epochs of local training.

Changes are measured from zero, so tables that all start from are not repeated in them.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property
from typing import Any

from torch import Tensor

from fedrec.federation.clients import Chunk
from fedrec.federation.contract import Rows, Tensors, Upload, replicate
from fedrec.federation.noise import UploadContext
from fedrec.federation.stages import Clip
from fedrec.models import Sequential
from fedrec.training.descent import Fitted
from fedrec.training.local_training import LocalTrainer
from fedrec.training.one_gradient import OneGradient


class ChangeTrainer:
    """`network`: whether clients share the network too, or keep it. `clip`: largest norm of all changes of a client."""

    def __init__(self, trainer: LocalTrainer, *, gradient: bool, network: bool, clip: float, among_all: bool) -> None:
        """`among_all`: the loss is the softmax over all items."""
        self.trainer, self.gradient, self.network, self.clip = trainer, gradient, network, clip
        self.among_all = among_all

    def __call__(
        self, chunk: Chunk, round: int, user: Tensor, own: Tensors, common: Tensors, weight: Tensor | None
    ) -> tuple[Fitted, dict[str, Any]]:
        """Return what clients then keep, and how what they share has changed."""
        kept, change = self._train(chunk, round, user, own, dict(common), weight)
        if self.clip:
            change = Clip(self.clip).apply(change, UploadContext(chunk.world, chunk.clients, round, reference={}))
        return kept, change

    def _train(
        self, chunk: Chunk, round: int, user: Tensor, own: Tensors, common: Tensors, weight: Tensor | None
    ) -> tuple[Fitted, dict[str, Any]]:
        table = common.pop("item")
        if self._one_gradient is not None and chunk.data.single:
            by_item, by_network = self._one_gradient(chunk, round, table, common["network"])
            return Fitted(user, table), {"item": by_item, "network": by_network}
        dense = replicate(common, len(chunk.clients)) if self.network else own
        if self.gradient:
            return self._by_gradient(chunk, round, user, table, dense)
        return self._by_epochs(chunk, round, user, table, dense, weight)

    @cached_property
    def _one_gradient(self) -> OneGradient | None:
        """Where a step moves nothing before the next: a shorter way to the gradient of the softmax over all items."""
        model, crop = self.trainer.model, self.trainer.crop
        if not isinstance(model, Sequential) or not self.among_all or not self.gradient:
            return None
        return OneGradient(model, self.trainer.settings.reduction == "mean", crop)

    def _by_gradient(
        self, chunk: Chunk, round: int, user: Tensor, table: Tensor, dense: Tensors
    ) -> tuple[Fitted, dict[str, Any]]:
        """K = 1 at rate 1: D_i = -g_i. What stays with the client takes its step."""
        rates, g = self.trainer.rates, self.trainer.gradient(chunk, round, user, table, dense)
        change: dict[str, Any] = {"item": _negate(g.table, table)}
        own = {name: value - rates["dense"] * g.dense[name] for name, value in dense.items() if not self.network}
        change |= {name: value.neg_() for name, value in g.dense.items() if self.network}
        return Fitted(user - rates["user"] * g.user, table, own), change

    def _by_epochs(
        self, chunk: Chunk, round: int, user: Tensor, table: Tensor, dense: Tensors, weight: Tensor | None
    ) -> tuple[Fitted, dict[str, Any]]:
        """K steps of local training: D_i = x_i,K - x_t."""
        # a sum that was formed on the fly could no longer be clipped client by client
        x = self.trainer.fit(chunk, round, user, table, dense, weight=weight, fold=not self.clip)
        change: dict[str, Any] = {"item": _since(x.table, table)}
        change |= {name: value - dense[name] for name, value in x.dense.items() if self.network}
        return x, change


def _since(value: Upload, start: Tensor) -> Upload:
    """How far tables have gone from a common start."""
    if isinstance(value, Rows):
        return replace(value, base=_nowhere(start), value=value.value - start[value.item])
    return value - start if isinstance(value, Tensor) else replace(value, base=_nowhere(start))


def _negate(gradient: Upload, start: Tensor) -> Upload:
    if isinstance(gradient, Rows):
        return replace(gradient, base=_nowhere(start), value=gradient.value.neg_())
    assert isinstance(gradient, Tensor)
    return gradient.neg_()


def _nowhere(table: Tensor) -> Tensor:
    """Zeros of the shape of a table that take no room."""
    # A table of real zeros per chunk would be as large as the model.
    return table.new_zeros(1, 1).expand(table.shape)
