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

from fedrec import method as fm
from fedrec.methods.average.profiles import cluster, profiles
from fedrec.methods.comparison import use_comparison

CLUSTER = "cluster."  # prefix of a cluster's tensors


@dataclass(frozen=True)
@use_comparison
class PerFedRec(fm.LocalMethod):
    info: ClassVar[fm.MethodInfo] = fm.MethodInfo(
        name="perfedrec",
        summary="k-means clusters; scores combine the local, the cluster and the global model",
        paper="Luo et al., CIKM 2022",
        backbones={"mf": {}, "ncf": {}, "sasrec": {}},
    )
    gathers = True
    working_tables = 4

    aggregated_fraction: fm.Share = 1.0
    clusters: fm.Count = 10
    """Clusters of clients, each of which gets a model of its own."""
    cluster_on: Literal["profile", "table"] = "profile"
    """What clients are clustered by: a profile that they send, or their whole item table."""

    def init_server(self, world: fm.World, attributes: Tensor | None = None) -> fm.Tensors:
        common = self.trainer.init_model(world)
        start = {CLUSTER + name: value for name, value in fm.replicate(common, self.clusters).items()}
        label = torch.full((world.clients,), -1)  # the cluster of those who are answered
        return common | start | {"label": label, "key": fm.random.key_tensor(world.seed, fm.random.Purpose.CLUSTER)}

    def init_clients(self, world: fm.World, chunk: fm.Chunk) -> fm.State:
        common = self.trainer.init_model(world)
        return self.trainer.init_state(world, chunk, common | {CLUSTER + name: value for name, value in common.items()})

    def local(self, state: fm.State, down: fm.Down, chunk: fm.Chunk, round: int) -> tuple[fm.State, fm.Uploads]:
        """Train from the model of the cluster; the global one, which came down, is only scored with."""
        # Copies, because the model of the cluster is still scored with after the own one has been trained from it.
        start = {name: state.per_client[CLUSTER + name].clone() for name in self.trainer.names}
        user, own = self.trainer.fit_own(chunk, round, state.per_user["user"], start)
        payload: fm.Uploads = {name: fm.Gather(value) for name, value in own.items()}
        if self.cluster_on == "profile":
            payload["profile"] = fm.Gather(profiles(own["item"], chunk))
        return fm.State(state.per_client | own, {"user": user}), payload

    def aggregate(self, server: fm.Tensors, ups: fm.Ups, round: int) -> fm.Tensors:
        """Cluster the clients, then average all models, and those of every cluster."""
        new = server | {"label": torch.full_like(server["label"], -1)}
        if not len(ups.clients):
            return new
        clients, points = ups.stacked("profile" if self.cluster_on == "profile" else "item")
        label = cluster(points.flatten(1), self.clusters, fm.random.fold(int(server["key"]), round))
        new["label"][torch.from_numpy(clients)] = label.cpu()
        for name in self.trainer.names:
            models = ups.stacked(name)[1]
            new[name] = _mean(models)
            # An empty cluster gets the mean of all: a mean of nobody would be NaN, and its old model would age.
            members = [models[label == k] for k in range(self.clusters)]
            new[CLUSTER + name] = torch.stack([_mean(some) if len(some) else new[name] for some in members])
        return new

    def answer(self, server: fm.Tensors, plan: fm.Plan, arrived: np.ndarray, round: int) -> fm.Answer | None:
        """To each that was aggregated the model of its cluster."""

        def make(clients: np.ndarray) -> fm.Down:
            label = server["label"][torch.from_numpy(clients)]
            return fm.Down(own={CLUSTER + name: server[CLUSTER + name][label] for name in self.trainer.names})

        return fm.Answer(arrived, make)

    def receive(self, state: fm.State, down: fm.Down, chunk: fm.Chunk, round: int) -> fm.State:
        return fm.State(state.per_client | down.own, state.per_user)

    def score(self, state: fm.State, down: fm.Down, chunk: fm.Chunk, items: Tensor) -> Tensor:
        """The mean of three logits."""
        user = state.per_user["user"]
        total = self.trainer.common_scores(user, down.shared, chunk, items)
        for prefix in ("", CLUSTER):
            own = {name: state.per_client[prefix + name] for name in self.trainer.names}
            total = total + self.trainer.own_scores(user, own, chunk, items)
        return total / 3


def _mean(models: Tensor) -> Tensor:
    return (fm.sum_in_double(models) / len(models)).to(models.dtype)
