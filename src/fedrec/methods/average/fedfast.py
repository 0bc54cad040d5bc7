"""FedFast: delegates of every cluster train, and rows that moved farther count for more.

Muhammad et al., "FedFast: Going Beyond Average for Faster Training of Federated Recommender Systems" (KDD 2020):
ActvSAMP (algorithm 2) draws delegates evenly from clusters of clients, ActvAGG (algorithm 3) merges what they learnt
and, if asked to, passes it on to their subordinates, the other members of their cluster.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from fedrec import method as fm
from fedrec.methods.average.profiles import cluster, profiles
from fedrec.methods.comparison import use_comparison

AGGREGATED = 1  # the stream that draws who is aggregated


@dataclass(frozen=True)
@use_comparison
class FedFast(fm.LocalMethod):
    info: ClassVar[fm.MethodInfo] = fm.MethodInfo(
        name="fedfast",
        summary="cluster delegates train; rows that moved farther weigh more",
        paper="Muhammad et al., KDD 2020",
        backbones={"mf": {}, "ncf": {}, "sasrec": {}},
        new_users=30,
    )
    gathers = True
    working_tables = 2

    aggregated_fraction: fm.Share = 1.0
    shares: fm.Shares = "samples"
    """How the network is averaged; rows of the item table are weighted by how far they moved."""
    score_with: fm.ScoreWith = "received"  # local: the client's own model after training
    clusters: fm.Count = 10
    """Clusters of users, from which the delegates of a round are drawn."""
    user_propagation: bool = False
    """Whether delegates send the changes of their user vectors, which their subordinates then follow."""
    propagation: float = 1.0
    """Share of the delegates' mean change that subordinates follow in the first round."""
    propagation_decay: float = 0.9
    """Factor on that share from one round to the next."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.user_propagation and not self.model.has_user:
            raise fm.FedrecError(
                f"user_propagation needs user vectors, which {self.backbone} does not have; use mf or ncf"
            )

    def init_server(self, world: fm.World, attributes: Tensor | None = None) -> fm.Tensors:
        return {
            **self.trainer.init_model(world),
            "profile": torch.zeros(world.clients, self.dim, dtype=world.dtype, device=world.device),
            "label": torch.full((world.clients,), self.clusters),  # those not heard of are a group of their own
            "user_step": torch.zeros(world.clients, self.dim, dtype=world.dtype, device=world.device),
            "key": fm.random.key_tensor(world.seed, fm.random.Purpose.CLUSTER),
        }

    def plan(self, world: fm.World, server: fm.Tensors, round: int) -> fm.Plan:
        """ActvSAMP draws who trains, and of these, should not all be aggregated, who is."""
        label, everyone = server["label"].numpy(), np.arange(world.clients)
        # The small number: a product that is whole in exact arithmetic can be slightly less in binary.
        wanted = max(1, int(world.participation * world.clients + 1e-9))
        train = evenly(everyone, label, wanted, fm.random.stream(world.seed, fm.random.Purpose.PARTICIPATION, round))
        key = fm.random.stream(world.seed, fm.random.Purpose.PARTICIPATION, round, AGGREGATED)
        upload = evenly(train, label[train], fm.part_of(len(train), self.aggregated_fraction), key)
        return fm.Plan(train, upload=upload)

    def local(self, state: fm.State, down: fm.Down, chunk: fm.Chunk, round: int) -> tuple[fm.State, fm.Uploads]:
        user, trained = self.trainer.fit_copies(chunk, round, state.per_user["user"], down.shared)
        table, weight = trained["item"], self.client_weight(chunk)
        payload: fm.Uploads = {"item": fm.Gather(table), "profile": fm.Gather(profiles(table, chunk))}
        payload |= {name: fm.Mean(value, weight) for name, value in trained.items() if name != "item"}
        if self.user_propagation:
            payload["user_change"] = fm.Gather(_mean_by_client(user - state.per_user["user"], chunk))
        return fm.State(trained if self.keeps_models else {}, {"user": user}), payload

    def aggregate(self, server: fm.Tensors, ups: fm.Ups, round: int) -> fm.Tensors:
        """ActvAGG, and new clusters of all whose profile is known."""
        new = server | {"user_step": torch.zeros_like(server["user_step"])}
        if not len(ups.clients):
            return new
        new |= {name: ups[name] for name in self.model.dense_shapes() if name in ups}
        new["item"] = merge_rows(server["item"], ups.stacked("item")[1])
        if self.user_propagation:
            new["user_step"] = self._steps(server["label"], ups, round)
        clients, profile = ups.stacked("profile")
        place = torch.from_numpy(clients)
        new["profile"] = server["profile"].index_copy(0, place.to(profile.device), profile)
        # Only those heard of are clustered: a profile of zeros would draw all others into one cluster.
        known = server["label"] < self.clusters
        known[place] = True
        label = cluster(new["profile"][known], self.clusters, fm.random.fold(int(server["key"]), round))
        new["label"] = server["label"].masked_scatter(known, label.cpu())
        return new

    def _steps(self, label: Tensor, ups: fm.Ups, round: int) -> Tensor:
        """Every client's share in the mean change of the delegates of its cluster."""
        clients, change = ups.stacked("user_change")
        delegate = label[torch.from_numpy(clients)].to(change.device)
        total = change.new_zeros(self.clusters + 1, self.dim).index_add_(0, delegate, change)
        count = torch.bincount(delegate, minlength=self.clusters + 1).clamp(min=1)
        return self.propagation * self.propagation_decay**round * (total / count[:, None])[label]

    def answer(self, server: fm.Tensors, plan: fm.Plan, arrived: np.ndarray, round: int) -> fm.Answer | None:
        """To clustered clients that did not train: their share in what the delegates of their cluster changed."""
        if not self.user_propagation:
            return None
        followers = np.setdiff1d(np.flatnonzero(server["label"].numpy() < self.clusters), plan.train)
        return fm.Answer(
            followers, lambda some: fm.Down(own={"user_step": server["user_step"][torch.from_numpy(some)]})
        )

    def receive(self, state: fm.State, down: fm.Down, chunk: fm.Chunk, round: int) -> fm.State:
        return fm.State(state.per_client, {"user": state.per_user["user"] + down.own["user_step"][chunk.owner]})


def evenly(clients: np.ndarray, label: np.ndarray, wanted: int, key: int) -> np.ndarray:
    """The same number from every group, as far as it has them; all where all are wanted."""
    if wanted >= len(clients):
        return clients
    draws = fm.random.fold_array(key, clients)
    groups = [np.flatnonzero(label == k) for k in np.unique(label)]
    each = -(-wanted // len(groups))
    chosen = [group[np.argsort(draws[group], kind="stable")[:each]] for group in groups]
    # Sorted, because who takes part is a set: its order must not depend on the labels.
    return clients[np.sort(np.concatenate(chosen))]


def merge_rows(table: Tensor, tables: Tensor) -> Tensor:
    """Row by row the mean of the delegates', weighted by the L1 distance each has moved; as it was if none moved."""
    total = torch.zeros_like(table, dtype=torch.float64)
    mass = total.new_zeros(len(table), 1)
    # One delegate after another: all changes at once would be a second stack of tables.
    for theirs in tables:
        change = (theirs - table).double()
        distance = change.abs().sum(1, keepdim=True)
        total += distance * change
        mass += distance
    return (table + total / torch.where(mass > 0, mass, torch.ones_like(mass))).to(table.dtype)


def _mean_by_client(change: Tensor, chunk: fm.Chunk) -> Tensor:
    total = change.new_zeros(len(chunk.clients), change.shape[1]).index_add_(0, chunk.owner, change)
    return total / chunk.tensor(np.diff(chunk.client_ptr)).clamp(min=1)[:, None]
