"""pFedGraph: the server infers who should learn from whom, and gives every client its own mixture of all models.

Ye et al., "Personalized Federated Learning with Inferred Collaboration Graphs" (ICML 2023). The graph weighs how much
data a client has against how alike two clients' changes since the common start are. User vectors never leave.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from fedrec import method as fm
from fedrec.methods.comparison import use_comparison
from fedrec.methods.mixture.aggregation import Mixtures, inner_products, simplex_project, to_cosines

START = "initial."  # on the server: the common start


@dataclass(frozen=True)
@use_comparison
class PFedGraph(fm.LocalMethod):
    info: ClassVar[fm.MethodInfo] = fm.MethodInfo(
        name="pfedgraph",
        summary="a personal mixture for each client, by similarity of model updates and data size",
        paper="Ye et al., ICML 2023",
        backbones={"mf": {}, "ncf": {}},
    )
    models = "own"
    gathers = True
    working_tables = 3

    aggregated_fraction: fm.Share = 1.0
    table_dtype: fm.TableDtype = "full"
    size_weight: fm.Positive = 0.8
    """lambda: how much shares of the data count against similarity."""
    same_above: float = 0.9
    """Similarities above this count as 1."""
    proximal: float = 0.0  # weight of the squared distance to the received mixture in the local loss

    @cached_property
    def trainer(self) -> fm.LocalTrainer:
        return fm.LocalTrainer(self, pull=self.proximal)

    @cached_property
    def mixtures(self) -> Mixtures:
        return Mixtures(self.trainer.names, prefix="own.")

    def init_server(self, world: fm.World, attributes: Tensor | None = None) -> fm.Tensors:
        model = self.trainer.init_model(world)
        start = {START + name: value for name, value in model.items()}
        return start | self.mixtures.init(world, model, self.aggregated_fraction)

    def local(self, state: fm.State, down: fm.Down, chunk: fm.Chunk, round: int) -> tuple[fm.State, fm.Uploads]:
        user, own = self.trainer.fit_own(chunk, round, state.per_user["user"], state.per_client)
        payload: fm.Uploads = {name: fm.Gather(value) for name, value in own.items()}
        payload["samples"] = fm.Gather(chunk.sample_counts().int())
        return fm.State(self.trainer.narrow(own), {"user": user}), payload

    def aggregate(self, server: fm.Tensors, ups: fm.Ups, round: int) -> fm.Tensors:
        # Less the common start: whole tables resemble each other by what nobody has changed.
        inner = [inner_products(ups.stack(name), less=server[START + name]) for name in self.trainer.names]
        similarity = self.similarity(torch.stack(inner).sum(0) if len(inner) > 1 else inner[0])
        return server | self.mixtures.store(server, ups, self.graph(ups.stacked("samples")[1], similarity))

    def similarity(self, inner: Tensor) -> Tensor:
        """Cosines of the clients' changes since the common start, in place of their inner products; 0 with a client
        that has not moved."""
        cosine = to_cosines(inner)
        return cosine.masked_fill_(cosine > self.same_above, 1.0)

    def graph(self, samples: Tensor, similarity: Tensor) -> Tensor:
        """Row u: argmin over the simplex of lambda |w - share|^2 - similarity_u . w, which is a projection."""
        # The floor is for a round of clients without samples, whose shares are then all zero.
        share = samples.double() / samples.sum().clamp(min=1)
        return simplex_project(share + similarity / (2 * self.size_weight))

    def answer(self, server: fm.Tensors, plan: fm.Plan, arrived: np.ndarray, round: int) -> fm.Answer | None:
        return self.mixtures.answer(server, arrived)

    def receive(self, state: fm.State, down: fm.Down, chunk: fm.Chunk, round: int) -> fm.State:
        return fm.State(self.trainer.narrow(down.own), state.per_user)
