"""FedAvg: everything that is not private is replaced by its mean over clients, weighted by sample counts.

McMahan et al. 2017; with backbone ncf it is FedNCF (Perifanis & Efraimidis 2022). User vectors never leave.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from torch import Tensor

from fedrec.federation.clients import Chunk
from fedrec.federation.contract import (
    Disclosure,
    Down,
    Footprint,
    Mean,
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
from fedrec.methods.average import choices
from fedrec.methods.average.choices import ScoreWith, Shares
from fedrec.methods.comparison import plan_part
from fedrec.training.local_training import LocalMethod, usual_backbones

HISTORY = "from which the sign attack recovers each user's entire history (AUC 1.000 on ml-100k after one round)"


@dataclass(frozen=True)
class FedAvg(LocalMethod):
    info: ClassVar[MethodInfo] = MethodInfo(
        name="fedavg",
        summary="sample-weighted mean of item table and network",
        paper="McMahan et al., AISTATS 2017",
        aliases={"WAA": {}, "fedncf": {"backbone": "ncf"}},
        backbones=usual_backbones("mf", "ncf", "sasrec"),
        **settings_beside(__file__),
        new_users=30,
    )

    aggregated_fraction: Share = 1.0
    shares: Shares = "samples"  # equal: the plain mean, FedMF's (FCF in FedCA's comparison)
    layers: Count = 2
    """ncf: hidden layers, the first dim wide and each half as wide as the one before."""
    score_with: ScoreWith = "received"  # local: the client's own model after training

    @property
    def disclosure(self) -> Disclosure:
        return Disclosure(
            private=("user",), reveals=HISTORY if self.backbone == "mf" else "", covered_with={"shares": "equal"}
        )

    def init_server(self, world: World, attributes: Tensor | None = None) -> Tensors:
        return self.trainer.init_model(world)

    def init_clients(self, world: World, chunk: Chunk) -> State:
        return choices.init_clients(self.trainer, self.score_with, world, chunk)

    def plan(self, world: World, server: Tensors, round: int) -> Plan:
        return plan_part(world, round, self.aggregated_fraction)

    def broadcast(self, server: Tensors, clients: np.ndarray, round: int) -> Down:
        return Down(shared=server)

    def local(self, state: State, down: Down, chunk: Chunk, round: int) -> tuple[State, dict[str, Reduction]]:
        weight, own = choices.client_weight(self.shares, chunk), state.per_client.get("item")
        shared = dict(down.shared)
        table = shared.pop("item")
        dense = replicate(shared, len(chunk.clients))
        fitted = self.trainer.fit(chunk, round, state.per_user["user"], table, dense, weight=weight, own=own)
        payload: dict[str, Reduction] = {"item": Mean(fitted.table, weight)}
        payload |= {name: Mean(value, weight) for name, value in fitted.dense.items()}
        kept = {} if own is None else {"item": own, **fitted.dense}
        return State(kept, {"user": fitted.user}), payload

    def aggregate(self, server: Tensors, ups: Ups, round: int) -> Tensors:
        return server | {name: ups[name] for name in server if name in ups}

    def score(self, state: State, down: Down, chunk: Chunk, items: Tensor) -> Tensor:
        return choices.score(self.trainer, self.score_with, state, down, chunk, items)

    def footprint(self, world: World) -> Footprint:
        return self.trainer.footprint(world, dense=8, tables=8 if self.score_with == "local" else 0)
