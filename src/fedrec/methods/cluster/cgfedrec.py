"""CGFedRec: the server clusters the items and sends nothing but the labels; tables stay as their owners made them.

Tu et al. 2026, "Learning to Collaborate via Structures: Cluster-Guided Item Alignment for Federated Recommendation".
Clients upload their item tables, the server averages them, clusters the rows of the mean by k-means and broadcasts one
label per item. A client draws together the rows of its own table that share a label, by a supervised contrastive loss
(`contrast.py`).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Annotated, ClassVar, Literal

import numpy as np
import torch
from torch import Tensor

from fedrec import method as fm
from fedrec.methods.cluster.contrastive import fit_aligned
from fedrec.methods.cluster.kmeans import kmeans, random_labels
from fedrec.methods.cluster.repulsion import Form
from fedrec.methods.rates import with_row_rate

Variant = Literal["full", "E", "EC", "ERC", "RC", "local"]

SHARES_TABLE = ("E", "EC", "ERC")  # the mean table comes down and replaces the own one
CLUSTERS = ("full", "EC")  # labels from k-means
DRAWS = ("ERC", "RC")  # labels at random


@dataclass(frozen=True)
class CGFedRec(fm.LocalMethod):
    info: ClassVar[fm.MethodInfo] = fm.MethodInfo(
        name="cgfedrec",
        summary="the server sends back cluster labels of the mean table, which align personal tables",
        paper="Tu et al., arXiv:2602.21957, 2026",
        backbones={"linear": {}, "scorer": {}},
    )
    models = "own"
    private_network = True

    backbone: str = "linear"
    init_std: float = 1.0
    lr: float = 0.1
    item_rate_scale: fm.Positive = 80.0
    epochs: fm.Count = 2
    update: Literal["sequential", "simultaneous"] = "sequential"
    """Whether the scorer steps before the rows of the table, or both at once."""
    variant: Variant = "full"
    """Which parts of the method are on; the letters are those of its ablation, local: none."""
    upload: Literal["full", "interacted"] = "full"
    """interacted: only rows of the client's own items, which tells the server what these are."""
    clusters: Annotated[int, "[1, 32768]"] = 50
    """Clusters of items, by k-means on the mean table."""
    temperature: fm.Positive = 0.1
    contrast_weight: float = 0.005
    supcon: Form = "released"
    con_every: Literal["batch", "epoch"] = "batch"
    """Whether the contrastive loss joins every batch or the first of each epoch."""
    warm_start: bool = False
    """Whether k-means starts from the centres of the round before."""
    normalise: bool = False
    """Whether rows of the mean table are scaled to length 1 before k-means."""

    @property
    def disclosure(self) -> fm.Disclosure:
        return replace(super().disclosure, gathers=self.upload != "full", covered_with={"upload": "full"})

    @property
    def working_tables(self) -> int:  # type: ignore[override]
        return 7 if self.aligns() else 3  # with a contrast: working copy, gradient of each part, step

    @cached_property
    def trainer(self) -> fm.LocalTrainer:
        return fm.LocalTrainer(self, phases=fm.TOGETHER if self.update == "simultaneous" else fm.IN_TURN)

    def for_world(self, world: fm.World) -> CGFedRec:
        return with_row_rate(self, self.item_rate_scale, world)

    def aligns(self) -> bool:
        return self.variant in (*CLUSTERS, *DRAWS)

    # -- start --

    def init_server(self, world: fm.World, attributes: Tensor | None = None) -> fm.Tensors:
        """Labels take one byte each up to 256 clusters, two beyond. The key of k-means stays on the server."""
        kind = torch.uint8 if self.clusters <= 256 else torch.int16
        server = {"item": self.trainer.init_items(world)}
        if self.aligns():
            server["labels"] = torch.zeros(world.items, dtype=kind, device=world.device)
            server["key"] = fm.random.key_tensor(world.seed, fm.random.Purpose.CLUSTER)
        if self.warm_start:
            shape = (self.clusters, self.dim)
            server["centres"] = torch.zeros(shape, dtype=torch.float64, device=world.device)
        return server

    # -- one round --

    def broadcast(self, server: fm.Tensors, clients: np.ndarray, round: int) -> fm.Down:
        """Labels, from the second round on: before, there is no mean to cluster (6)."""
        shared = {"item": server["item"]} if self.variant in SHARES_TABLE else {}
        if self.aligns() and round > 0:
            shared["labels"] = server["labels"]
        return fm.Down(shared=shared)

    def local(self, state: fm.State, down: fm.Down, chunk: fm.Chunk, round: int) -> tuple[fm.State, fm.Uploads]:
        """Minimise the loss of recommendations plus weight * contrast (12, 13)."""
        own, trainer = state.per_client, self.for_world(chunk.world).trainer
        if "item" in down.shared:
            own["item"].copy_(down.shared["item"].expand_as(own["item"]))
        labels, once = down.shared.get("labels"), self.con_every == "epoch"
        user, own = fit_aligned(trainer, self, chunk, round, state.per_user["user"], own, labels, once)
        return fm.State(own, {"user": user}), {} if self.variant == "local" else self._upload(own["item"], chunk)

    def _upload(self, tables: Tensor, chunk: fm.Chunk) -> fm.Uploads:
        if self.upload == "full":
            return {"item": fm.Mean(tables)}
        owner = chunk.tensor(np.repeat(np.arange(len(chunk.clients)), chunk.positives))
        # A byte per item: which rows count is sent along, because a row of zeros could also be a trained one.
        held = torch.zeros(tables.shape[:2], dtype=torch.uint8, device=tables.device)
        held[owner, chunk.tensor(chunk.items)] = 1
        return {"item": fm.Gather(tables * held[..., None]), "held": fm.Gather(held)}

    def aggregate(self, server: fm.Tensors, ups: fm.Ups, round: int) -> fm.Tensors:
        """The mean table (4), its clusters (5), their labels (6)."""
        if "item" not in ups:
            return server
        new = server | {"item": ups["item"] if self.upload == "full" else _mean_of_holders(server["item"], ups)}
        if self.variant in DRAWS:
            labels = random_labels(len(new["item"]), self.clusters, fm.random.fold(int(server["key"]), round))
            new["labels"] = labels.to(server["labels"])
        elif self.variant in CLUSTERS:
            # In the first round there are no centres yet, only the zeros that keep their place in the state.
            centres = server["centres"] if self.warm_start and round > 0 else None
            labels, centres = self.cluster(new["item"], fm.random.fold(int(server["key"]), round), centres)
            new |= {"labels": labels.to(server["labels"].dtype)} | ({"centres": centres} if self.warm_start else {})
        return new

    def cluster(self, mean: Tensor, key: int, centres: Tensor | None = None) -> tuple[Tensor, Tensor]:
        # The floor is for rows that nobody has moved from zero.
        rows = mean / mean.norm(dim=1, keepdim=True).clamp(min=1e-12) if self.normalise else mean
        return kmeans(rows, self.clusters, key, centres=centres)


def _mean_of_holders(old: Tensor, ups: fm.Ups) -> Tensor:
    """Row i: the mean over clients that hold item i; a row that nobody holds stays."""
    total, count = torch.zeros_like(old, dtype=torch.float64), torch.zeros(len(old), device=old.device)
    for (_, tables), (_, held) in zip(ups.gathered["item"], ups.gathered["held"], strict=True):
        for table, mine in zip(tables, held, strict=True):
            total += table.double() * mine[:, None]
            count += mine
    return torch.where(count[:, None] > 0, (total / count.clamp(min=1)[:, None]).to(old.dtype), old)
