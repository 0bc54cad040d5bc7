"""PerFedRec: clients are clustered by what they like; each combines its own, its cluster's and the global model.

Luo et al., "Personalized Federated Recommendation via Joint Representation Learning, User Clustering, and Model
Adaptation" (CIKM 2022), for backbones with an item table in place of the paper's graph network. The paper clusters
user embeddings; here these stay private, and a client sends its profile, the mean of the rows of its items.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np
import torch
from torch import Tensor

from fedrec.federation.accumulator import sum_in_double
from fedrec.federation.clients import Chunk
from fedrec.federation.contract import (
    Answer,
    Disclosure,
    Down,
    Footprint,
    Gather,
    MethodInfo,
    Plan,
    Reduction,
    State,
    Tensors,
    Ups,
    World,
    replicate,
)
from fedrec.federation.ranges import Count, Share
from fedrec.federation.settings_files import settings_beside
from fedrec.methods.cluster.kmeans import kmeans
from fedrec.methods.comparison import compared, plan_part
from fedrec.random import Purpose, fold, signed, stream
from fedrec.training.local_training import LocalMethod

CLUSTER = "cluster."  # prefix of a cluster's tensors


def profiles(tables: Tensor, chunk: Chunk) -> Tensor:
    """The mean row of every client's training items, in its own table; zero without items."""
    owner = chunk.tensor(np.repeat(np.arange(len(chunk.clients)), chunk.positives))
    rows = tables[owner, chunk.tensor(chunk.items)]
    total = tables.new_zeros(len(chunk.clients), tables.shape[-1]).index_add_(0, owner, rows)
    return total / chunk.tensor(chunk.positives).clamp(min=1)[:, None]


def cluster(points: Tensor, count: int, key: int) -> Tensor:
    """A label below `count` for every point, visited in an order of their values: their numbering does not matter."""
    order = points[:, 0].argsort(stable=True)
    labels, _ = kmeans(points[order], min(count, len(points)), key)
    return torch.empty_like(labels).index_copy_(0, order, labels)


@dataclass(frozen=True)
@compared
class PerFedRec(LocalMethod):
    info: ClassVar[MethodInfo] = MethodInfo(
        name="perfedrec",
        summary="k-means clusters; scores combine the local, the cluster and the global model",
        paper="Luo et al., CIKM 2022",
        backbones={"mf": {}, "ncf": {}, "sasrec": {}},
        **settings_beside(__file__),
    )

    aggregated_fraction: Share = 1.0
    clusters: Count = 10
    """Clusters of clients, each of which gets a model of its own."""
    cluster_on: Literal["profile", "table"] = "profile"
    """What clients are clustered by: a profile that they send, or their whole item table."""

    @property
    def disclosure(self) -> Disclosure:
        return Disclosure(private=("user",), gathers=True)

    def init_server(self, world: World, attributes: Tensor | None = None) -> Tensors:
        common = self.trainer.init_model(world)
        of_cluster = {CLUSTER + name: value for name, value in replicate(common, self.clusters).items()}
        label = torch.full((world.clients,), -1)  # the cluster of those who are answered
        return {
            **common,
            **of_cluster,
            "label": label,
            "key": torch.tensor(signed(stream(world.seed, Purpose.CLUSTER))),
        }

    def init_clients(self, world: World, chunk: Chunk) -> State:
        common = self.trainer.init_model(world)
        held = common | {CLUSTER + name: value for name, value in common.items()}
        return self.trainer.init_state(world, chunk, held)

    def _names(self) -> list[str]:
        return ["item", *self.model.dense_shapes()]

    def plan(self, world: World, server: Tensors, round: int) -> Plan:
        return plan_part(world, round, self.aggregated_fraction)

    def broadcast(self, server: Tensors, clients: np.ndarray, round: int) -> Down:
        """The global model, which a client only scores with."""
        return Down(shared={name: server[name] for name in self._names()})

    def local(self, state: State, down: Down, chunk: Chunk, round: int) -> tuple[State, dict[str, Reduction]]:
        start = {name: state.per_client[CLUSTER + name].clone() for name in self._names()}
        user, own = self.trainer.fit_own(chunk, round, state.per_user["user"], start)
        payload: dict[str, Reduction] = {name: Gather(value) for name, value in own.items()}
        if self.cluster_on == "profile":
            payload["profile"] = Gather(profiles(own["item"], chunk))
        return State(state.per_client | own, {"user": user}), payload

    def aggregate(self, server: Tensors, ups: Ups, round: int) -> Tensors:
        new = server | {"label": torch.full_like(server["label"], -1)}
        if not len(ups.clients):
            return new
        clients, points = ups.stacked("profile" if self.cluster_on == "profile" else "item")
        label = cluster(points.flatten(1), self.clusters, fold(int(server["key"]), round))
        new["label"][torch.from_numpy(clients)] = label.cpu()
        for name in self._names():
            models = ups.stacked(name)[1]
            new[name] = _mean(models)
            members = [models[label == k] for k in range(self.clusters)]
            new[CLUSTER + name] = torch.stack([_mean(some) if len(some) else new[name] for some in members])
        return new

    def answer(self, server: Tensors, plan: Plan, arrived: np.ndarray, round: int) -> Answer | None:
        return Answer(arrived, lambda some: self._of_cluster(server, some))

    def _of_cluster(self, server: Tensors, clients: np.ndarray) -> Down:
        label = server["label"][torch.from_numpy(clients)]
        return Down(own={CLUSTER + name: server[CLUSTER + name][label] for name in self._names()})

    def receive(self, state: State, down: Down, chunk: Chunk, round: int) -> State:
        return State(state.per_client | down.own, state.per_user)

    def score(self, state: State, down: Down, chunk: Chunk, items: Tensor) -> Tensor:
        """The mean of three logits."""
        user = state.per_user["user"]
        total = self.trainer.common_scores(user, down.shared, chunk, items)
        for prefix in ("", CLUSTER):
            own = {name: state.per_client[prefix + name] for name in self._names()}
            total = total + self.trainer.own_scores(user, own, chunk, items)
        return total / 3

    def footprint(self, world: World) -> Footprint:
        return self.trainer.footprint(world, dense=8, tables=4)


def _mean(models: Tensor) -> Tensor:
    return (sum_in_double(models) / len(models)).to(models.dtype)
