"""GPFedRec: the server links alike clients in a graph; each is drawn towards the mean table of its neighbours.

Zhang et al., "GPFedRec: Graph-Guided Personalization for Federated Recommendation" (KDD 2024). From the tables Q_u
that come in, the server makes a graph A of clients, every client's own table R_u = (A^L Q)_u and the common one, their
mean. A client starts from the common table, keeps its user vector and network to itself, and descends on

    BCE + gamma * mean((Q_u - R_u)^2)

over all rows of the table. Where no sample touches a row, k steps of that descent have a closed form.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Annotated, ClassVar, Literal

import numpy as np
import torch
from torch import Tensor

from fedrec import method as fm
from fedrec.methods.mixture.aggregation import cosines
from fedrec.methods.mixture.neighbourhoods import Neighbourhoods
from fedrec.training.guided import fit_guided


@dataclass(frozen=True)
class GPFedRec(fm.LocalMethod):
    # the bare inner product: one rate for all, as the other methods have it
    info: ClassVar[fm.MethodInfo] = fm.MethodInfo(
        name="gpfedrec",
        summary="private network; item tables pulled towards the mean of their neighbours in a client graph",
        paper="Zhang et al., KDD 2024",
        aliases={"GGA": {}},
        backbones={"ncf": {}, "mf": {"lr": 10.0, "lr_user": 10.0, "lr_item": 10.0, "init_std": 0.01}},
    )
    models = "own"
    private_network = True
    gathers = True
    working_tables = 5

    backbone: str = "ncf"
    init_std: float = 1.0
    lr: float = 0.1
    """Learning rate of the network."""
    lr_user: float | None = None
    """Learning rate of user vectors; none: lr * rate_scale / participation - lr."""
    rate_scale: fm.Positive = 80.0
    """Without lr_item, rows of the item table move at lr * items * this - lr."""
    graph: Literal["paper", "released"] = "paper"
    """Neighbours are the most similar clients (paper), or those that differ most (released)."""
    neighbours: int = 0
    """So many nearest clients are neighbours; 0: all above the threshold."""
    threshold: Annotated[float, "(-inf, inf)"] = 1.0
    """Similarity from which clients are neighbours, in parts of its mean."""
    layers: fm.Count = 1
    """Steps of message passing between neighbours."""
    regularisation: float = 1.0
    """gamma: weight of the distance between a client's table and that of its neighbourhood."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.optimiser != "sgd":
            raise fm.FedrecError("gpfedrec works with optimiser=sgd only: rows without samples move in closed form")

    @cached_property
    def model(self) -> fm.Backbone:
        """[p; q] through d, d/2, d/4: at d = 32 the network 64-32-16-8-1."""
        if self.backbone == "ncf":
            return fm.NCF(self.dim, tuple(max(1, self.dim // part) for part in (1, 2, 4)))
        return fm.MF(self.dim)

    def for_world(self, world: fm.World) -> GPFedRec:
        """The same with the rates of user vectors and rows written out."""
        user, item = self.lr_user, self.lr_item
        if user is None:
            user = self.lr / world.participation * self.rate_scale - self.lr
        if item is None:
            item = self.lr * world.items * self.rate_scale - self.lr
        return replace(self, lr_user=user, lr_item=item)

    @cached_property
    def trainer(self) -> fm.LocalTrainer:
        return fm.LocalTrainer(self, rates={} if self.lr_user is None else {"user": self.lr_user})

    # -- start --

    def init_server(self, world: fm.World, attributes: Tensor | None = None) -> fm.Tensors:
        item = self.trainer.init_items(world)
        return {"item": item, "guide": item.repeat(world.clients, 1, 1)}

    # -- one round --

    def broadcast(self, server: fm.Tensors, clients: np.ndarray, round: int) -> fm.Down:
        """The common table to start from, and each client's own to stay near to."""
        everyone = np.array_equal(clients, np.arange(len(server["guide"])))  # then there is nothing to copy
        guide = server["guide"] if everyone else server["guide"][_places(clients, server)]
        return fm.Down(shared={"item": server["item"]}, own={"guide": guide})

    def local(self, state: fm.State, down: fm.Down, chunk: fm.Chunk, round: int) -> tuple[fm.State, fm.Uploads]:
        """Descend on BCE + gamma * mean((Q_u - R_u)^2) from the common table."""
        start, guide, user = down.shared["item"], down.own["guide"], state.per_user["user"]
        trainer = self.for_world(chunk.world).trainer
        strength = 2 * self.regularisation / start.numel()  # the mean is over all numbers of the table
        fitted = fit_guided(trainer, chunk, round, user, start, state.per_client, guide, strength)
        return fm.State(fitted.own, {"user": fitted.user}), {"item": fm.Gather(fitted.own["item"])}

    def aggregate(self, server: fm.Tensors, ups: fm.Ups, round: int) -> fm.Tensors:
        """R = A^L Q, and the mean over clients; who was absent keeps the table it had."""
        if not len(ups.clients):
            return server
        stack, guide = ups.stack("item"), server["guide"]
        graph = Neighbourhoods(self.adjacency(cosines(stack)))
        everyone = len(stack) == len(guide)  # then they take the place of those that went down before
        mixed, mean = graph.means(stack, guide if everyone and self.layers == 1 else None)
        for _ in range(self.layers - 1):
            mixed, mean = graph.means(mixed)
        # Those who are absent keep what they had, so the arrived are written into the old tensor.
        if not everyone:
            guide[_places(stack.clients, server)] = mixed
        return {"item": mean.to(mixed.dtype), "guide": mixed if everyone else guide}

    def adjacency(self, cosine: Tensor) -> Tensor:
        """Row u: the neighbours of u, which are u itself where there are none."""
        relation = cosine if self.graph == "paper" else 1 - cosine
        if self.neighbours:
            # A stable sort, because `topk` leaves open which of equal ones it takes.
            nearest = relation.sort(descending=True, stable=True).indices[:, : self.neighbours]
            near = torch.zeros_like(relation, dtype=torch.bool).scatter_(1, nearest, True)
        else:
            near = relation > self.threshold * relation.mean()
        itself = torch.eye(len(near), dtype=torch.bool, device=near.device)
        alone = near.sum(1, keepdim=True) == 0
        return near | (itself & (alone if self.graph == "released" else torch.ones_like(alone)))

    def footprint(self, world: fm.World) -> fm.Footprint:
        return self.trainer.footprint(world, dense=8, tables=5, scored=1)


def _places(clients: np.ndarray, server: fm.Tensors) -> Tensor:
    return torch.from_numpy(clients).to(server["guide"].device)
