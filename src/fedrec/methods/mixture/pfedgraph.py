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
    participants,
)
from fedrec.federation.ranges import Positive, Share
from fedrec.federation.settings_files import settings_beside
from fedrec.methods.comparison import compared
from fedrec.methods.mixture.aggregation import NOBODY, in_room, inner_products, mix, scaled, simplex_project
from fedrec.training.local_training import LocalMethod, LocalTrainer
from fedrec.training.participation import part_of, plan_part
from fedrec.training.precision import TableDtype


@dataclass(frozen=True)
@compared
class PFedGraph(LocalMethod):
    info: ClassVar[MethodInfo] = MethodInfo(
        name="pfedgraph",
        summary="a personal mixture for each client, by similarity of model updates and data size",
        paper="Ye et al., ICML 2023",
        backbones={"mf": {}, "ncf": {}},
        **settings_beside(__file__),
    )

    aggregated_fraction: Share = 1.0
    table_dtype: TableDtype = "full"
    size_weight: Positive = 0.8
    """lambda: how much shares of the data count against similarity."""
    same_above: float = 0.9
    """Similarities above this count as 1."""
    proximal: float = 0.0  # weight of the squared distance to the received mixture in the local loss

    @property
    def disclosure(self) -> Disclosure:
        return Disclosure(private=("user",), gathers=True)

    @cached_property
    def trainer(self) -> LocalTrainer:
        return LocalTrainer(self, pull=self.proximal)

    def init_server(self, world: World, attributes: Tensor | None = None) -> Tensors:
        """The common start, and room for one mixture per participant: a checkpoint has the same shapes at any time."""
        initial = self.trainer.init_model(world)
        count = part_of(len(participants(world, 0, world.participation)), self.aggregated_fraction)
        server = {f"initial.{name}": value for name, value in initial.items()}
        server |= {f"own.{name}": value.new_zeros(count, *value.shape) for name, value in initial.items()}
        return server | {"clients": torch.full((count,), NOBODY)}

    def init_clients(self, world: World, chunk: Chunk) -> State:
        return self.trainer.init_state(world, chunk, self.trainer.init_model(world))

    def plan(self, world: World, server: Tensors, round: int) -> Plan:
        return plan_part(world, round, self.aggregated_fraction)

    def local(self, state: State, down: Down, chunk: Chunk, round: int) -> tuple[State, dict[str, Reduction]]:
        user, own = self.trainer.fit_own(chunk, round, state.per_user["user"], state.per_client)
        payload: dict[str, Reduction] = {name: Gather(value) for name, value in own.items()}
        payload["samples"] = Gather(chunk.sample_counts().int())
        return State(self.trainer.narrow(own), {"user": user}), payload

    def aggregate(self, server: Tensors, ups: Ups, round: int) -> Tensors:
        names = [name.removeprefix("initial.") for name in server if name.startswith("initial.")]
        clients, samples = ups.stacked("samples")
        models = {name: ups.stack(name) for name in names}
        inner = [inner_products(models[name], less=server[f"initial.{name}"]) for name in names]
        similarity = self.similarity(torch.stack(inner).sum(0) if len(inner) > 1 else inner[0])
        weights = self.graph(samples, similarity)
        own = {f"own.{name}": mix(weights, model) for name, model in models.items()}
        rooms = {name: in_room(value, server[name]) for name, value in own.items()}
        return server | rooms | {"clients": in_room(torch.from_numpy(clients), server["clients"], NOBODY)}

    def similarity(self, inner: Tensor) -> Tensor:
        """Cosines of the clients' changes since the common start, in place of their inner products; 0 with a client
        that has not moved."""
        cosine = scaled(inner)
        return cosine.masked_fill_(cosine > self.same_above, 1.0)

    def graph(self, samples: Tensor, similarity: Tensor) -> Tensor:
        """Row u: argmin over the simplex of lambda |w - share|^2 - similarity_u . w, which is a projection."""
        share = samples.double() / samples.sum().clamp(min=1)
        return simplex_project(share + similarity / (2 * self.size_weight))

    def answer(self, server: Tensors, plan: Plan, arrived: np.ndarray, round: int) -> Answer | None:
        return Answer(arrived, lambda some: self._mixture_of(server, some))

    def _mixture_of(self, server: Tensors, clients: np.ndarray) -> Down:
        place = torch.searchsorted(server["clients"], torch.from_numpy(clients))
        mixed = {name: value for name, value in server.items() if name.startswith("own.")}
        return Down(own={name.removeprefix("own."): value[place] for name, value in mixed.items()})

    def receive(self, state: State, down: Down, chunk: Chunk, round: int) -> State:
        return State(self.trainer.narrow(down.own), state.per_user)

    def score(self, state: State, down: Down, chunk: Chunk, items: Tensor) -> Tensor:
        return self.trainer.own_scores(state.per_user["user"], state.per_client, chunk, items)

    def footprint(self, world: World) -> Footprint:
        return self.trainer.footprint(world, dense=8, tables=3)
