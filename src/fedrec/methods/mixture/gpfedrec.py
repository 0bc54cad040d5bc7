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

from fedrec.errors import FedrecError
from fedrec.federation.clients import Chunk
from fedrec.federation.contract import (
    Disclosure,
    Down,
    Footprint,
    Gather,
    MethodInfo,
    Reduction,
    Rows,
    State,
    Tensors,
    Ups,
    World,
)
from fedrec.federation.ranges import ANY, Count, Interval, Positive
from fedrec.federation.settings_files import settings_beside
from fedrec.methods.mixture.aggregation import cosines
from fedrec.methods.mixture.neighbourhoods import Neighbourhoods
from fedrec.models import BACKBONES, NCF, Backbone
from fedrec.training.compiled import CompiledKernel, kernel_for, network_settings, packed, unpacked, work_of
from fedrec.training.descent import Descent, Fitted, Group
from fedrec.training.local_training import LocalMethod, LocalTrainer
from fedrec.training.samples import Batch


@dataclass(frozen=True)
class GPFedRec(LocalMethod):
    # the bare inner product: one rate for all, as the other methods have it
    info: ClassVar[MethodInfo] = MethodInfo(
        name="gpfedrec",
        summary="private network; item tables pulled towards the mean of their neighbours in a client graph",
        paper="Zhang et al., KDD 2024",
        aliases={"GGA": {}},
        backbones={"ncf": {}, "mf": {"lr": 10.0, "lr_user": 10.0, "lr_item": 10.0, "init_std": 0.01}},
        **settings_beside(__file__),
    )

    backbone: str = "ncf"
    init_std: float = 1.0
    lr: float = 0.1
    """Learning rate of the network."""
    lr_user: float | None = None
    """Learning rate of user vectors; none: lr * rate_scale / participation - lr."""
    rate_scale: Positive = 80.0
    """Without lr_item, rows of the item table move at lr * items * this - lr."""
    graph: Literal["paper", "released"] = "paper"
    """Neighbours are the most similar clients (paper), or those that differ most (released)."""
    neighbours: int = 0
    """So many nearest clients are neighbours; 0: all above the threshold."""
    threshold: Annotated[float, Interval(ANY)] = 1.0
    """Similarity from which clients are neighbours, in parts of its mean."""
    layers: Count = 1
    """Steps of message passing between neighbours."""
    regularisation: float = 1.0
    """gamma: weight of the distance between a client's table and that of its neighbourhood."""

    @property
    def disclosure(self) -> Disclosure:
        return Disclosure(private=("user", *self.model.dense_shapes()), gathers=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.optimiser != "sgd":
            raise FedrecError("gpfedrec works with optimiser=sgd only: rows without samples move in closed form")

    @cached_property
    def model(self) -> Backbone:
        """[p; q] through d, d/2, d/4: at d = 32 the network 64-32-16-8-1."""
        if self.backbone == "ncf":
            return NCF(self.dim, tuple(max(1, self.dim // part) for part in (1, 2, 4)))
        return BACKBONES[self.backbone](self.dim)

    def for_world(self, world: World) -> GPFedRec:
        """The same with the rates of user vectors and rows written out."""
        user, item = self.lr_user, self.lr_item
        if user is None:
            user = self.lr / world.participation * self.rate_scale - self.lr
        if item is None:
            item = self.lr * world.items * self.rate_scale - self.lr
        return replace(self, lr_user=user, lr_item=item)

    @cached_property
    def trainer(self) -> LocalTrainer:
        return LocalTrainer(self, rates={} if self.lr_user is None else {"user": self.lr_user})

    # -- start --

    def init_server(self, world: World, attributes: Tensor | None = None) -> Tensors:
        item = self.trainer.init_items(world)
        return {"item": item, "guide": item.repeat(world.clients, 1, 1)}

    def init_clients(self, world: World, chunk: Chunk) -> State:
        return self.trainer.init_state(world, chunk, self.trainer.init_model(world))

    # -- one round --

    def broadcast(self, server: Tensors, clients: np.ndarray, round: int) -> Down:
        """The common table to start from, and each client's own to stay near to."""
        everyone = np.array_equal(clients, np.arange(len(server["guide"])))  # then there is nothing to copy
        guide = server["guide"] if everyone else server["guide"][_places(clients, server)]
        return Down(shared={"item": server["item"]}, own={"guide": guide})

    def local(self, state: State, down: Down, chunk: Chunk, round: int) -> tuple[State, dict[str, Reduction]]:
        dense = {name: state.per_client[name] for name in self.model.dense_shapes()}
        trainer, user, start = self.for_world(chunk.world).trainer, state.per_user["user"], down.shared["item"]
        train = kernel_for("guided", chunk.world) if chunk.data.single and isinstance(self.model, NCF) else None
        if train is None:
            fitted = Guided(trainer, chunk, round, user, start, dense, down.own["guide"]).run()
        else:
            own = state.per_client["item"]
            fitted = fit_compiled(train, trainer, chunk, round, user, start, dense, down.own["guide"], own)
        assert isinstance(fitted.table, Tensor)
        return State({"item": fitted.table, **fitted.dense}, {"user": fitted.user}), {"item": Gather(fitted.table)}

    def aggregate(self, server: Tensors, ups: Ups, round: int) -> Tensors:
        """R = A^L Q, and the mean over clients; who was absent keeps the table it had."""
        if not len(ups.clients):
            return server
        stack, guide = ups.stack("item"), server["guide"]
        graph = Neighbourhoods(self.adjacency(cosines(stack)))
        everyone = len(stack) == len(guide)  # then they take the place of those that went down before
        mixed, mean = graph.means(stack, guide if everyone and self.layers == 1 else None)
        for _ in range(self.layers - 1):
            mixed, mean = graph.means(mixed)
        if not everyone:
            guide[_places(stack.clients, server)] = mixed
        return {"item": mean.to(mixed.dtype), "guide": mixed if everyone else guide}

    def adjacency(self, cosine: Tensor) -> Tensor:
        """Row u: the neighbours of u, which are u itself where there are none."""
        relation = cosine if self.graph == "paper" else 1 - cosine
        if self.neighbours:
            nearest = relation.sort(descending=True, stable=True).indices[:, : self.neighbours]
            near = torch.zeros_like(relation, dtype=torch.bool).scatter_(1, nearest, True)
        else:
            near = relation > self.threshold * relation.mean()
        itself = torch.eye(len(near), dtype=torch.bool, device=near.device)
        alone = near.sum(1, keepdim=True) == 0
        return near | (itself & (alone if self.graph == "released" else torch.ones_like(alone)))

    def score(self, state: State, down: Down, chunk: Chunk, items: Tensor) -> Tensor:
        return self.trainer.own_scores(state.per_user["user"], state.per_client, chunk, items)

    def footprint(self, world: World) -> Footprint:
        return self.trainer.footprint(world, dense=8, tables=5, scored=1)


def _places(clients: np.ndarray, server: Tensors) -> Tensor:
    return torch.from_numpy(clients).to(server["guide"].device)


def pull_strength(settings: GPFedRec, table: Tensor) -> float:
    """What a row's gradient has of its distance from the guide: gamma is divided by all numbers of the table."""
    return 2 * settings.regularisation / table.numel()


class Guided(Descent):
    """Descent in which every row of a client's table, with samples or without, is drawn towards its guide."""

    settings: GPFedRec

    def __init__(
        self,
        trainer: LocalTrainer,
        chunk: Chunk,
        round: int,
        user: Tensor,
        table: Tensor,
        dense: Tensors,
        guide: Tensor,
    ) -> None:
        super().__init__(trainer, chunk, round, user, table, dense)
        self.guide = guide
        self.towards = guide[self.clients, self.samples.item]
        self.strength = pull_strength(self.settings, table)
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


def fit_compiled(
    train: CompiledKernel,
    trainer: LocalTrainer,
    chunk: Chunk,
    round: int,
    user: Tensor,
    table: Tensor,
    dense: Tensors,
    guide: Tensor,
    own: Tensor,
) -> Fitted:
    """The same as `Guided`, compiled, from the common `table` into `own` [clients, items, d]."""
    settings, model, trained = trainer.settings, trainer.model, user.clone()
    assert isinstance(settings, GPFedRec)
    assert isinstance(model, NCF)
    work, (flat, net) = work_of(trainer, chunk, round, trained, table), packed(model, dense)
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
        pull_strength(settings, table),
        own,
        work.blocks,
        work.loss,
        work.seen,
    )
    work.observe()
    return Fitted(trained, own, unpacked(model, flat))
