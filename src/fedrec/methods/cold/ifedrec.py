"""IFedRec: new items for federated clients; the server knows attributes, the clients know interactions.

Zhang et al., "When Federated Recommendation Meets Cold-Start Problem: Separating Item Attributes and User
Interactions" (WWW 2024), algorithm 1. The server learns r_v = tanh(W x_v + b) so that it meets the clients' mean item
table p (equations 3 to 6), and clients descend on their loss plus align * mean (p - r)^2 over the whole table
(equations 10, 11). A new item is scored by every client from r_v alone (section 4.3). Backbone ncf is IFedNCF (private:
user vector and network), linear IPFedRec (private: the linear scorer, which steps before the table does).

The table's rate is lr * items * rate_scale, because a row's gradient comes from few clients and is divided by all in
the mean. Every step then goes the share pull = 2 * rate * align / (items * dim) of the way to r: from 2 on rows swing
farther and farther. A short last batch moves each of its rows farther than a full one does, because the mean divides
by fewer samples, so it is left out. The released code keeps it; what bounds that code where steps overshoot is its
single-precision sigmoid, which has no gradient there. Both are variants (`saturate`, `last_batch`) of fedrec-studies.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from fedrec import method as fm
from fedrec.training.aligned_training import AlignedTrainer

NETWORK = ("weight", "bias")  # of the layer on attributes
MOMENTS = ("first", "second")  # what Adam remembers of each, as first_weight
STABLE = 2.0  # the pull at which untouched rows begin to swing farther and farther


def meta_gradients(attributes: Tensor, target: Tensor, weight: Tensor, bias: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return equation 5 over d, the mean of (tanh(W x_v + b) - p_v)^2 over all entries; its gradients for W and b."""
    r = torch.tanh(attributes @ weight.T + bias)
    away = r - target
    back = (2 / away.numel()) * away * (1 - r.square())
    return away.square().mean(), back.T @ attributes, back.sum(0)


@dataclass(frozen=True)
class IFedRec(fm.Method):
    info: ClassVar[fm.MethodInfo] = fm.MethodInfo(
        name="ifedrec",
        summary="new items: attributes stay on the server, aligned with the clients' item tables",
        paper="Zhang et al., WWW 2024",
        aliases={
            "IFedNCF": {"backbone": "ncf"},
            "IPFedRec": {"backbone": "linear"},
        },
        backbones={"ncf": {}, "linear": {"lr": 0.1, "align": 10.0}},
        # the gradient of the released code, a variant, has no slope where steps overshoot
        remedy=lambda method: "use --set saturate=released, or ",
    )

    backbone: str = "ncf"
    dim: fm.Count = 200
    lr: fm.Positive = 0.5
    rate_scale: fm.Positive = 80.0
    align: float = 1.0
    """Weight of the distance between a client's table and the server's representation of the attributes."""
    lr_server: fm.Positive = 0.005
    server_epochs: int = 1
    """Adam steps of the attribute network per round; 0: it stays as it was drawn."""
    epochs: fm.Count = 1
    batch: fm.Count = 256
    alternate: bool | None = None
    """Whether the private part steps before the table; none: with linear yes, with ncf no."""

    @property
    def disclosure(self) -> fm.Disclosure:
        return fm.Disclosure(private=("user", *self.model.dense_shapes()), attributes="server")

    @cached_property
    def model(self) -> fm.Backbone:
        return fm.NCF(self.dim, (self.dim,)) if self.backbone == "ncf" else fm.Linear(self.dim)

    # -- rates as released, the subtracted lr included --

    def rates(self, world: fm.World) -> dict[str, float]:
        whole = self.lr * world.items * self.rate_scale
        if self.backbone == "linear":
            return {"dense": self.lr, "item": whole}
        return {
            "dense": self.lr,
            # Less lr, because the released code has it so, and its figures were made with that.
            "user": self.lr * self.rate_scale / world.participation - self.lr,
            "item": whole - self.lr,
        }

    def pull(self, world: fm.World) -> float:
        """The share of the way to r that a row goes in one step."""
        return 2 * self.rates(world)["item"] * self.align / (world.items * self.dim)

    def trainer_for(self, world: fm.World) -> AlignedTrainer:
        in_turn = self.backbone == "linear" if self.alternate is None else self.alternate
        return AlignedTrainer(self.backbone, self.rates(world), self.pull(world), in_turn, self.batch, self.epochs)

    def remarks(self, world: fm.World) -> Sequence[str]:
        pull = self.pull(world)
        if pull < STABLE:
            return (f"one step goes {pull:.3g} of the way to the server's representation (stable below 2)",)
        most = self.align * STABLE / pull
        return (
            f"one step goes {pull:.3g} times the way to the server's representation: from 2 on, rows overshoot more "
            f"with every step and the run may diverge; align below {most:.3g} is stable",
        )

    # -- the federation --

    def init_server(self, world: fm.World, attributes: Tensor | None = None) -> fm.Tensors:
        x = self.require_attributes(attributes)
        meta = fm.draw_layers(world, "attributes", {"weight": (self.dim, x.shape[1]), "bias": (self.dim,)})
        # In the server's state and not in an optimiser, so that checkpoints have them.
        moments = {f"{moment}_{name}": torch.zeros_like(value) for name, value in meta.items() for moment in MOMENTS}
        table = fm.draw_rows(world, "item", world.items, self.dim)
        server = {"item": table, "attributes": x, **meta, **moments}
        return server | {"representation": self._represent(server, x[: world.items])}

    def init_clients(self, world: fm.World, chunk: fm.Chunk) -> fm.State:
        if not chunk.data.single:
            raise fm.FedrecError("ifedrec has one user per client; leave --silos out")
        common = fm.draw_layers(world, "network", self.model.dense_shapes())
        # One start for all users, as the released code has it.
        users = fm.draw_rows(world, "user", 1, self.dim if self.model.has_user else 0)
        count = len(chunk.clients)
        return fm.State(fm.replicate(common, count), {"user": users.repeat(count, 1)})

    def broadcast(self, server: fm.Tensors, clients: np.ndarray, round: int) -> fm.Down:
        return fm.Down(shared={name: server[name] for name in ("item", "representation")})

    def local(self, state: fm.State, down: fm.Down, chunk: fm.Chunk, round: int) -> tuple[fm.State, fm.Uploads]:
        table = down.shared["item"]
        private = state.per_client | (state.per_user if self.model.has_user else {})  # 80,000 numbers each: no copy
        rows = self.trainer_for(chunk.world).train(chunk, round, private, table, down.shared["representation"])
        # Watched, because swinging rows show here rounds before the loss is no longer finite.
        chunk.observe("largest", float(table.abs().max()), 1)
        return state, {"item": fm.Mean(rows)}

    def aggregate(self, server: fm.Tensors, ups: fm.Ups, round: int) -> fm.Tensors:
        """The mean of the clients' tables (equation 3) is what the attribute network is fitted to."""
        if "item" not in ups:
            return server
        return self._fit(server | {"item": ups["item"]}, round)

    def _fit(self, server: fm.Tensors, round: int) -> fm.Tensors:
        """Equations 5, 6, by Adam as in the code: the attribute network moves towards the mean table, full batch."""
        # Copies, because Adam works in place and the former server state may still be the best one.
        server = server | {name: value.clone() for name, value in server.items() if name.endswith(NETWORK)}
        x = server["attributes"][: len(server["item"])]
        for epoch in range(self.server_epochs):
            _, *gradients = meta_gradients(x, server["item"], server["weight"], server["bias"])
            for name, gradient in zip(NETWORK, gradients, strict=True):
                first, second = (server[f"{moment}_{name}"] for moment in MOMENTS)
                step = round * self.server_epochs + epoch + 1
                server[name] -= fm.adam_step(gradient, first, second, step, self.lr_server)
        return server | {"representation": self._represent(server, x)}

    def _represent(self, server: fm.Tensors, attributes: Tensor) -> Tensor:
        """Equation 4."""
        return torch.tanh(attributes @ server["weight"].T + server["bias"])

    # -- new items --

    def offer(self, server: fm.Tensors, clients: np.ndarray, round: int, items: Tensor) -> fm.Down:
        distinct, which = torch.unique(server["attributes"][items], dim=0, return_inverse=True)
        return fm.Down(shared={"representation": self._represent(server, distinct)[which]})

    def score(self, state: fm.State, down: fm.Down, chunk: fm.Chunk, items: Tensor) -> Tensor:
        # Each distinct row is scored once: equal items must tie to the last bit, wherever they stand.
        distinct, which = torch.unique(down.shared["representation"], dim=0, return_inverse=True)
        return self.model.scores(state.per_user["user"], distinct, state.per_client)[:, which]

    def footprint(self, world: fm.World) -> fm.Footprint:
        size = world.dtype.itemsize
        dense = sum(int(np.prod(shape)) for shape in self.model.dense_shapes().values())
        return fm.Footprint(
            client=4096 + 3 * dense * size,
            sample=200 + 8 * self.dim * size,
            score=super().footprint(world).score + 2 * self.dim * world.items * size,
        )
