"""CoFedRec: items are clustered for all, and each round one group of like-minded clients shares its mean table.

He et al., "Co-clustering for Federated Recommender System" (WWW 2024). The server clusters the rows of the mean table;
the labels come down, and a client draws the rows of its own table together that share one, by a supervised contrastive
loss. A drawn client and a drawn cluster of items define who is alike: clients are sorted by the similarity of their
rows in this cluster, and those up to the elbow of that curve are the group. All others keep the tables they have.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, ClassVar

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from fedrec import method as fm
from fedrec.methods.cluster.contrastive import fit_aligned
from fedrec.methods.cluster.kmeans import kmeans
from fedrec.methods.cluster.repulsion import Form
from fedrec.methods.rates import with_row_rate

CLIENT, CLUSTER = 1, 2  # streams of who and what is drawn


def elbow(curve: Tensor) -> int:
    """The point of a falling curve that is farthest from the chord between its ends, the first of several."""
    if len(curve) < 2:
        return 0
    last = len(curve) - 1
    step = torch.arange(len(curve), device=curve.device, dtype=curve.dtype)
    # as a product: a division would round, and rounding would decide between equal distances
    return int(((curve - curve[0]) * last - step * (curve[-1] - curve[0])).abs().argmax())


@dataclass(frozen=True)
class CoFedRec(fm.LocalMethod):
    info: ClassVar[fm.MethodInfo] = fm.MethodInfo(
        name="cofedrec",
        summary="item cluster labels align personal tables; each round averages a group of similar clients",
        paper="He et al., WWW 2024",
        backbones={"linear": {}},
    )
    models = "own"
    private_network = True
    gathers = True
    working_tables = 7

    backbone: str = "linear"
    init_std: float = 1.0
    lr: float = 0.1
    item_rate_scale: fm.Positive = 80.0
    epochs: fm.Count = 2
    clusters: Annotated[int, "[1, 32768]"] = 30
    """Clusters of items, by k-means."""
    temperature: fm.Positive = 0.1
    contrast_weight: float = 0.005
    supcon: Form = "released"

    @cached_property
    def trainer(self) -> fm.LocalTrainer:
        return fm.LocalTrainer(self, phases=fm.IN_TURN)

    def for_world(self, world: fm.World) -> CoFedRec:
        return with_row_rate(self, self.item_rate_scale, world)

    # -- start --

    def init_server(self, world: fm.World, attributes: Tensor | None = None) -> fm.Tensors:
        """Labels take one byte each up to 256 clusters, two beyond. The key of all draws stays on the server."""
        kind = torch.uint8 if self.clusters <= 256 else torch.int16
        return {
            "labels": torch.zeros(world.items, dtype=kind, device=world.device),
            "group": torch.zeros(world.clients, dtype=torch.bool),
            "item": self.trainer.init_items(world),  # of the group
            "key": fm.random.key_tensor(world.seed, fm.random.Purpose.CLUSTER),
        }

    # -- one round --

    def broadcast(self, server: fm.Tensors, clients: np.ndarray, round: int) -> fm.Down:
        """Labels, from the second round on: before, there is no mean to cluster."""
        return fm.Down(shared={"labels": server["labels"]} if round > 0 else {})

    def local(self, state: fm.State, down: fm.Down, chunk: fm.Chunk, round: int) -> tuple[fm.State, fm.Uploads]:
        trainer, user = self.for_world(chunk.world).trainer, state.per_user["user"]
        user, own = fit_aligned(trainer, self, chunk, round, user, state.per_client, down.shared.get("labels"))
        return fm.State(own, {"user": user}), {"item": fm.Gather(own["item"])}

    def aggregate(self, server: fm.Tensors, ups: fm.Ups, round: int) -> fm.Tensors:
        """Cluster the items; draw a client and a cluster; average the clients that are alike there."""
        group = torch.zeros_like(server["group"])
        if "item" not in ups:
            return server | {"group": group}
        tables, key = ups.gathered["item"], fm.random.fold(int(server["key"]), round)
        clients = np.concatenate([some for some, _ in tables])
        mean = torch.stack([fm.sum_in_double(part) for _, part in tables]).sum(0) / len(clients)
        labels, _ = kmeans(mean, self.clusters, key)
        # From the sorted clients: they arrive in any order, and the draw must not depend on it.
        drawn = np.sort(clients)[fm.random.fold(key, CLIENT) % len(clients)]
        # Only clusters that have items: similarity in an empty one would be zero for everybody.
        used = labels.unique()
        rows = (labels == used[fm.random.fold(key, CLUSTER) % len(used)]).nonzero().squeeze(1)
        group[torch.from_numpy(alike(tables, int(drawn), rows))] = True
        # Part by part and in double, so that the mean does not depend on how clients were grouped.
        total, item = torch.zeros_like(mean), server["item"]
        for some, part in tables:
            mine = group[torch.from_numpy(some)].to(part.device)
            total += fm.sum_in_double(part[mine])
        item = (total / int(group.sum())).to(item.dtype)
        return server | {"labels": labels.to(server["labels"].dtype), "group": group, "item": item}

    def answer(self, server: fm.Tensors, plan: fm.Plan, arrived: np.ndarray, round: int) -> fm.Answer | None:
        """To the group alone."""
        group = server["group"].nonzero().squeeze(1).numpy()
        return fm.Answer(group, lambda clients: fm.Down(shared={"item": server["item"]}))

    def receive(self, state: fm.State, down: fm.Down, chunk: fm.Chunk, round: int) -> fm.State:
        mean = down.shared["item"].expand_as(state.per_client["item"])
        return fm.State(state.per_client | {"item": mean}, state.per_user)


def alike(tables: list[tuple[np.ndarray, Tensor]], drawn: int, rows: Tensor) -> np.ndarray:
    """The clients up to and including the elbow of sim_v = sum over these rows of cos(q_drawn, q_v), sorted."""
    clients = np.concatenate([some for some, _ in tables])
    # In double, because the order of clients, and with it the elbow, hangs on small differences.
    parts = [F.normalize(part[:, rows].double(), dim=-1) for _, part in tables]
    mine = torch.cat([part[torch.from_numpy(some == drawn)] for (some, _), part in zip(tables, parts, strict=True)])
    similarity = torch.cat([(part * mine).sum((1, 2)) for part in parts]).cpu()
    ascending = torch.from_numpy(np.argsort(clients))
    # Stable over ascending numbers, so that of equally similar clients the lowest comes first.
    curve, order = similarity[ascending].sort(descending=True, stable=True)
    found: np.ndarray = clients[ascending[order[: elbow(curve) + 1]].numpy()]
    return found
