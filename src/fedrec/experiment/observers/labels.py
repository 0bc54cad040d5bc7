"""How well CGFedRec's clusters survive noise on uploads."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from fedrec.errors import FedrecError
from fedrec.experiment.observers.observer import Observer
from fedrec.federation.simulator import Simulator
from fedrec.methods.cluster.cgfedrec import CLUSTERS, CGFedRec
from fedrec.methods.cluster.kmeans import adjusted_rand
from fedrec.random import fold


class LabelObserver(Observer):
    def __init__(self, method: CGFedRec) -> None:
        self.method = method

    def figures(self, simulator: Simulator, round: int) -> Mapping[str, float]:
        method = self.method
        compares = method.variant in CLUSTERS and method.upload == "full" and not method.warm_start
        return {"label_agreement": label_agreement(simulator, round)} if compares and simulator.wire.stages else {}


def label_agreement(simulator: Simulator, round: int) -> float:
    """The adjusted Rand index between the labels after `round` and those that uploads without noise would have given.

    For a simulation only: it looks at the tables of those who took part, which no server sees.
    """
    method = simulator.method
    if not isinstance(method, CGFedRec) or method.variant not in CLUSTERS or method.warm_start:
        raise FedrecError("labels can be compared for cgfedrec with variant=full or EC, without warm_start")
    clients = method.plan(simulator.world, simulator.server, round).uploads()
    own = simulator.cohorts[0].state.per_client["item"]
    total = torch.zeros_like(simulator.server["item"], dtype=torch.float64)
    for client in clients:
        total += own[client]
    clean, _ = method.cluster((total / len(clients)).to(own.dtype), fold(int(simulator.server["key"]), round))
    return adjusted_rand(clean, simulator.server["labels"])
