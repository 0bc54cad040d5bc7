"""FedAvg: everything that is not private is replaced by its mean over clients, weighted by sample counts.

McMahan et al. 2017; with backbone ncf it is FedNCF (Perifanis & Efraimidis 2022). User vectors never leave.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import numpy as np
from torch import Tensor

from fedrec.federation.clients import Chunk
from fedrec.federation.contract import (
    Disclosure,
    Down,
    Footprint,
    Mean,
    MethodInfo,
    Reduction,
    State,
    Tensors,
    Ups,
    World,
    replicate,
)
from fedrec.methods.comparison import TOGETHER, Aggregating
from fedrec.training.local_training import usual_backbones


@dataclass(frozen=True)
class FedAvg(Aggregating):
    info: ClassVar[MethodInfo] = MethodInfo(
        name="fedavg",
        summary="sample-weighted mean of item table and network",
        paper="McMahan et al., AISTATS 2017",
        aliases={"WAA": {}, "fedncf": {"backbone": "ncf"}},
        backbones=usual_backbones("mf", "ncf", "sasrec"),
        presets={
            "fedca": TOGETHER,
            # Adam's moments start afresh every round and a mean over clients dilutes rows that few of them have, so
            # rows need larger steps than the network. By NDCG@10 on the validation items of ml-100k, honest, after
            # 100 rounds.
            "sasrec": {"backbone": "sasrec", "dim": 50, "lr_item": 1.0},
        },
        new_users=30,
    )  # fmt: skip

    shares: Literal["samples", "equal"] = "samples"  # equal: the plain mean, which FedCA's comparison calls FCF
    score_with: Literal["received", "local"] = "received"  # local: the client's own model after training

    @property
    def disclosure(self) -> Disclosure:
        return Disclosure(private=("user",), covered_with={"shares": "equal"})

    def init_server(self, world: World, attributes: Tensor | None = None) -> Tensors:
        return {"item": self.init_items(world), **self.init_dense(world)}

    def init_clients(self, world: World, chunk: Chunk) -> State:
        state = State(per_user={"user": self.init_users(world, chunk.users)})
        if self.score_with == "local":
            state.per_client = replicate(self.init_server(world), len(chunk.clients))
        return state

    def broadcast(self, server: Tensors, clients: np.ndarray, round: int) -> Down:
        return Down(shared=server)

    def weight(self, chunk: Chunk) -> Tensor | None:
        """N_u: positives and sampled negatives of the client; None: all clients alike."""
        return chunk.sample_counts() if self.shares == "samples" else None

    def local(self, state: State, down: Down, chunk: Chunk, round: int) -> tuple[State, dict[str, Reduction]]:
        weight, own = self.weight(chunk), state.per_client.get("item")
        shared = dict(down.shared)
        table = shared.pop("item")
        dense = replicate(shared, len(chunk.clients))
        fitted = self.fit(chunk, round, state.per_user["user"], table, dense, weight=weight, own=own)
        payload: dict[str, Reduction] = {"item": Mean(fitted.table, weight)}
        payload |= {name: Mean(value, weight) for name, value in fitted.dense.items()}
        kept = {} if own is None else {"item": own, **fitted.dense}
        return State(kept, {"user": fitted.user}), payload

    def aggregate(self, server: Tensors, ups: Ups, round: int) -> Tensors:
        return server | {name: ups[name] for name in server if name in ups}

    def score(self, state: State, down: Down, chunk: Chunk, items: Tensor) -> Tensor:
        if self.score_with == "local":
            return self.own_scores(state.per_user["user"], state.per_client, chunk, items)
        return self.common_scores(state.per_user["user"], down.shared, chunk, items)

    def footprint(self, world: World) -> Footprint:
        tables = 8 if self.score_with == "local" else 0
        return replace(super().footprint(world), client=self.model_bytes(world, dense=8, tables=tables))
