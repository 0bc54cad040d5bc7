"""FedVBPR: item rows and a projection of attributes, both averaged, with a pairwise loss; user vectors are private.

He & McAuley, "VBPR: Visual Bayesian Personalized Ranking from Implicit Feedback" (AAAI 2016), federated as a baseline
of IFedRec (WWW 2024): s_ui = b_i + gamma_u . gamma_i + theta_u . (E x_i) + beta . x_i. A new item has no b and gamma.
Half of `dim` is gamma, half is theta. Attributes go to every client.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import ClassVar, Literal

import numpy as np
import torch
from torch import Tensor

from fedrec import method as fm
from fedrec.methods.cold.content_model import ContentTrainer
from fedrec.training.descent import Descent
from fedrec.training.lookup import look_up
from fedrec.training.samples import Batch


@dataclass(frozen=True)
class VBPR:
    """An item is [gamma_i, b_i, x_i]; x_i is given, not learned."""

    dim: int
    has_user = True

    def dense_shapes(self) -> dict[str, tuple[int, ...]]:
        return {}  # E and beta are as wide as the attributes, which the method knows

    def _split(self, item: Tensor, dense: fm.Tensors) -> tuple[Tensor, Tensor]:
        """Return the vector that meets [gamma_u, theta_u], and what is the same for all users."""
        half = self.dim // 2
        x = item[..., half + 1 :].detach()
        vector = torch.cat([item[..., :half], x @ dense["visual"].mT], -1)
        return vector, item[..., half] + (x @ dense["beta"].mT).squeeze(-1)

    def logits(self, user: Tensor, item: Tensor, dense: fm.Tensors) -> Tensor:
        vector, common = self._split(item, dense)
        return (user * vector).sum(-1) + common

    def scores(self, user: Tensor, item: Tensor, dense: fm.Tensors) -> Tensor:
        vector, common = self._split(item, dense)
        return user @ vector.mT + common


class Regularised(Descent):
    """Adds to the loss of every pair l2 times the squares of the vectors in it."""

    settings: FedVBPR

    def _losses(self, leaves: fm.Tensors, batch: Batch) -> Tensor:
        losses = super()._losses(leaves, batch)
        assert batch.neg is not None
        free = leaves["item"][:, : self.settings.dim // 2 + 1].square().sum(-1)
        read = ((leaves["user"].square().sum(-1), batch.user), (free, batch.pos), (free, batch.neg))
        return losses + self.settings.l2 * sum(look_up(values, rows) for values, rows in read)


@dataclass(frozen=True)
class FedVBPR(fm.LocalMethod):
    info: ClassVar[fm.MethodInfo] = fm.MethodInfo(
        name="fedvbpr",
        summary="new items: BPR on item rows and attributes, which all clients see",
        paper="He & McAuley, AAAI 2016; federated in Zhang et al., WWW 2024",
    )

    attributes = "clients"

    backbone: str = "ncf"
    dim: fm.Count = 200
    init_std: float = 0.1
    lr: float = 1.0
    loss: Literal["bpr"] = "bpr"
    l2: float = 1e-4
    weight_decay_dense: float = 1e-4

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.dim < 2 or self.dim % 2:
            raise fm.FedrecError(f"dim={self.dim} does not fit fedvbpr: gamma and theta share it, so it must be even")

    @cached_property
    def model(self) -> fm.Backbone:
        return VBPR(self.dim)

    @cached_property
    def trainer(self) -> ContentTrainer:
        return ContentTrainer(self, phases=fm.TOGETHER, descent=Regularised)

    def init_server(self, world: fm.World, attributes: Tensor | None = None) -> fm.Tensors:
        known = self.trainer.keep(world, self.require_attributes(attributes))
        width = known["attributes"].shape[1]
        shapes = {"visual": (self.dim // 2, width), "beta": (1, width)}
        rows = fm.draw_rows(world, "item", world.items, self.dim // 2 + 1, self.init_std)
        rows[:, -1] = 0  # biases
        return {"item": rows, **known, **fm.draw_layers(world, "attributes", shapes)}

    def init_clients(self, world: fm.World, chunk: fm.Chunk) -> fm.State:
        return self.trainer.init_state(world, chunk)

    def broadcast(self, server: fm.Tensors, clients: np.ndarray, round: int) -> fm.Down:
        return self.trainer.send(server)

    def local(self, state: fm.State, down: fm.Down, chunk: fm.Chunk, round: int) -> tuple[fm.State, fm.Uploads]:
        shared = dict(down.shared)
        table = torch.cat([shared.pop("item"), shared.pop("attributes")], 1)
        dense = fm.replicate(shared, len(chunk.clients))
        fitted = self.trainer.fit(chunk, round, state.per_user["user"], table, dense, fold=False)
        assert isinstance(fitted.table, fm.Rows)
        free = self.dim // 2 + 1
        rows = replace(fitted.table, base=down.shared["item"], value=fitted.table.value[:, :free].contiguous())
        payload: fm.Uploads = {"item": fm.Mean(rows)}
        payload |= {name: fm.Mean(value) for name, value in fitted.dense.items()}
        return fm.State({}, {"user": fitted.user}), payload

    def aggregate(self, server: fm.Tensors, ups: fm.Ups, round: int) -> fm.Tensors:
        return server | {name: ups[name] for name in server if name in ups}

    def offer(self, server: fm.Tensors, clients: np.ndarray, round: int, items: Tensor) -> fm.Down:
        """Give new items zeros for what is learned of an item by itself."""
        table, known = server["item"], items < len(server["item"])
        rows = table.new_zeros(len(items), table.shape[1])
        rows[known] = table[items[known]]
        return fm.Down(shared=self.trainer.send(server, items).shared | {"item": rows})

    def score(self, state: fm.State, down: fm.Down, chunk: fm.Chunk, items: Tensor) -> Tensor:
        dense = dict(down.shared)
        # each distinct row is scored once: equal items must tie to the last bit, wherever they stand
        distinct, which = torch.unique(
            torch.cat([dense.pop("item"), dense.pop("attributes")], 1), dim=0, return_inverse=True
        )
        return self.model.scores(state.per_user["user"], distinct, dense)[:, which]
