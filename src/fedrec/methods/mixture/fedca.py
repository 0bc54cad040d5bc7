"""FedCA: every client has its own item table and gets its own mixture of the others' tables.

Zhang et al., TOIS 2026. The weights of a mixture come from three wishes: near the shares of the data (FedAvg), near the
similarity of the tables, and large where a client complements another. Together they are a projection onto the
simplex. What the paper says and what its released code does differ; each difference is a parameter here.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Annotated, ClassVar, Literal

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from fedrec.errors import FedrecError
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
from fedrec.federation.ranges import Count, Interval, Share
from fedrec.federation.settings_files import settings_beside
from fedrec.federation.stack import Stack
from fedrec.methods.comparison import compared
from fedrec.methods.mixture.aggregation import NOBODY, in_room, mix
from fedrec.methods.mixture.fedca_weights import (
    LEFT,
    Complementarity,
    Outer,
    Similarity,
    Weights,
    complementarity,
    composite_weights,
    first_scores,
    principal_axes,
    represent_all,
    similarity,
    spread,
)
from fedrec.methods.mixture.proximal import Proximal, ProximalSequences
from fedrec.models import Sequential
from fedrec.training.compiled import handed, sample_moments
from fedrec.training.descent import threads_for
from fedrec.training.local_training import LocalMethod, LocalTrainer
from fedrec.training.participation import part_of, plan_part
from fedrec.training.precision import TableDtype
from fedrec.training.samples import negatives

SERVED = "served."  # what a client scores with, where that is not what its next training starts from
RECEIVED = "received.item"  # the aggregate that arrived last, where training does not start from it
MIXED = "mixed."  # on the server: the aggregates of the last round, one per aggregated client


@dataclass(frozen=True)
@compared
class FedCA(LocalMethod):
    info: ClassVar[MethodInfo] = MethodInfo(
        name="fedca",
        summary="personal mixture of tables by data share, similarity and complementarity",
        paper="Zhang et al., ACM TOIS 44(2), 2026",
        backbones={"mf": {}, "ncf": {}, "sasrec": {}},
        **settings_beside(__file__),
    )

    aggregated_fraction: Share = 0.6
    table_dtype: TableDtype = "full"
    alpha: float = 0.5
    """Pull of a mixture towards similar clients (with weights=released: reward of complementary ones)."""
    beta: float = 0.2
    """Reward of complementary clients (with weights=released: pull towards similar ones)."""
    interpolation: Annotated[float, Interval("[0, 1]")] = 0.9
    """Share of a client's own table in its mixture with the aggregate."""
    interpolate: Literal["both", "inference"] = "both"
    """inference: the mixture is only scored with, and training starts from the aggregate alone."""
    # weight of the squared distance to the aggregate that arrived last; with inference, to where the round began
    proximal: float = 0.0
    shares: Literal["samples", "equal"] = "samples"
    similarity: Similarity = "paper"
    """How alike two tables are: by their distance, or by scores on their first principal axis."""
    complementarity: Complementarity = "right-greedy"
    """What two clients are compared by: left or right singular vectors of their rows, and how these are matched."""
    outer: Outer = "cos"
    """Whether angles between the compared vectors enter by cosine or sine."""
    weights: Weights = "eq5"
    """Mixture weights by the paper's equation 5 or 8, or as the released code computes them."""
    components: Count = 4
    """Vectors in the compact representation of a client's rows."""

    @property
    def disclosure(self) -> Disclosure:
        covered = {"shares": "equal", "complementarity": "right-greedy"}
        return Disclosure(private=("user",), gathers=True, covered_with=covered)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.components > max(self.dim, 64):  # what is not there is sent as zeros
            raise FedrecError(f"components={self.components} does not fit fedca: it must be at most dim, or 64")

    @cached_property
    def trainer(self) -> LocalTrainer:
        return LocalTrainer(self, pull=self.proximal, pulled=("item",))

    def compares(self) -> bool:
        """Whether the similarity has any influence."""
        return (self.beta if self.weights == "released" else self.alpha) != 0

    def complements(self) -> bool:
        """Whether the complementarity has any: otherwise nobody sends a representation."""
        return (self.alpha if self.weights == "released" else self.beta) != 0

    def _names(self) -> list[str]:
        """What a client trains and shares."""
        return ["item", *self.model.dense_shapes()]

    # -- start --

    def init_server(self, world: World, attributes: Tensor | None = None) -> Tensors:
        """Room for the aggregates of a round (a checkpoint has the same shapes whenever it is taken)."""
        count = part_of(len(participants(world, 0, world.participation)), self.aggregated_fraction)
        common = self.trainer.init_model(world)
        server = {MIXED + name: value.new_zeros(count, *value.shape) for name, value in common.items()}
        server["clients"] = torch.zeros(count, dtype=torch.int64)  # of the host, which looks them up
        if self.compares() and self.similarity == "pca1":
            server["reference"] = first_scores(common["item"][None])[0]
        return server

    def init_clients(self, world: World, chunk: Chunk) -> State:
        common = self.trainer.init_model(world)
        if self.interpolate == "inference":
            common |= {SERVED + name: value for name, value in common.items()}
        elif self.proximal:
            common[RECEIVED] = common["item"]
        return self.trainer.init_state(world, chunk, common)

    # -- one round --

    def plan(self, world: World, server: Tensors, round: int) -> Plan:
        return plan_part(world, round, self.aggregated_fraction)

    def local(self, state: State, down: Down, chunk: Chunk, round: int) -> tuple[State, dict[str, Reduction]]:
        held = self._opened({name: state.per_client[name] for name in self._names()}, chunk)
        kept = {name: state.per_client[name] for name in (RECEIVED,) if name in state.per_client}
        if kept:
            user, own = self._fit_near(self._opened(kept, chunk)[RECEIVED], state.per_user["user"], held, chunk, round)
        else:
            user, own = self.trainer.fit_own(chunk, round, state.per_user["user"], held)
        payload: dict[str, Reduction] = {name: Gather(value) for name, value in own.items()}
        if self.complements():
            payload |= self.pictures(own["item"], chunk, round)
        if self.shares == "samples":
            payload["samples"] = Gather(chunk.sample_counts()[:, None])
        if self.interpolate == "inference":  # until an aggregate arrives, a client serves what it trained
            own |= {SERVED + name: value.clone() for name, value in own.items()}
        return State(kept | self.trainer.narrow(own), {"user": user}), payload

    def _fit_near(
        self, aggregate: Tensor, user: Tensor, held: Tensors, chunk: Chunk, round: int
    ) -> tuple[Tensor, Tensors]:
        """Train from the own tables, drawn to the aggregate."""
        kind = ProximalSequences if isinstance(self.model, Sequential) else Proximal
        dense = {name: held[name] for name in self.model.dense_shapes()}
        fitted = kind(self.trainer, chunk, round, user, held["item"], dense, aggregate).run()
        assert isinstance(fitted.table, Tensor)
        return fitted.user, {"item": fitted.table, **fitted.dense}

    def _opened(self, tensors: Tensors, chunk: Chunk) -> Tensors:
        return self.trainer.widen(tensors, chunk.world)

    def pictures(self, tables: Tensor, chunk: Chunk, round: int) -> dict[str, Reduction]:
        """What every client shows of its rows: of its items, or (right-greedy) of all samples of this round.

        A left vector has an entry per item of the client; left-global says which these are.
        """
        moments = sample_moments(chunk, round, tables) if self.complementarity == "right-greedy" else None
        if moments is not None:
            return {"picture": Gather(self._axes(*moments).to(tables.dtype))}
        items, client = chunk.world.items, np.repeat(np.arange(len(chunk.clients)), chunk.positives)
        key, counts = client * items + chunk.items, chunk.positives
        if self.complementarity == "right-greedy":
            drawn = chunk.tensor(client * items)[:, None] + negatives(chunk, round)
            item = torch.cat([chunk.tensor(key), drawn.flatten()]).sort().values % items
            counts = counts * (1 + chunk.data.negatives)
        else:
            if not chunk.data.single:  # users of one client may have items in common
                key = np.unique(key)
                counts = np.bincount(key // items, minlength=len(tables))
            item = chunk.tensor(key % items)
        with threads_for(0):  # many small steps: a second thread would only be waited for
            found = represent_all(tables, item, counts, self.components, self.complementarity).to(tables.dtype)
        if self.complementarity not in LEFT:
            return {"picture": Gather(found)}
        lengths = chunk.tensor(counts)
        sent: dict[str, Reduction] = {"picture": Gather(found, lengths)}
        if self.complementarity == "left-global":
            listed = pad_sequence(item.int().split(counts.tolist()), batch_first=True)
            sent["picture_items"] = Gather(listed, lengths)
        return sent

    def _axes(self, scatter: Tensor, size: Tensor) -> Tensor:
        """As many as `components` says; those that a row has too few factors for are zero."""
        with threads_for(0):
            found = principal_axes(scatter, size, self.components)
        return torch.nn.functional.pad(found, (0, 0, 0, self.components - found.shape[1]))

    def received(self, ups: Ups, tables: Tensor | Stack) -> Tensor:
        picture = ups.stacked("picture")[1]
        if self.complementarity != "left-global":
            return picture
        return spread(picture, ups.stacked("picture_items")[1], tables.shape[1])

    def aggregate(self, server: Tensors, ups: Ups, round: int) -> Tensors:
        """Every client's own mixture of the tables (section 5.1.3)."""
        tables = ups.stack("item")
        weights = self._weights(server, ups, tables)
        mixed = {MIXED + name: self._mixtures(weights, ups.stack(name)) for name in self._names()}
        rooms = {name: in_room(value, server[name]) for name, value in mixed.items()}
        return server | rooms | {"clients": in_room(torch.from_numpy(tables.clients), server["clients"], NOBODY)}

    def _mixtures(self, weights: Tensor, stack: Stack) -> Tensor:
        """One per client; where there is one row of weights all are the same."""
        return mix(weights, stack).expand(stack.shape)

    def _weights(self, server: Tensors, ups: Ups, tables: Stack) -> Tensor:
        """One row per aggregated client, or one for all. Where a term has no influence it is not computed."""
        share = self._shares(ups, tables)
        if not (self.compares() or self.complements()):
            return share[:1]  # they lie on the simplex already
        nothing = torch.zeros(len(tables), len(tables), dtype=torch.float64, device=tables.device)
        alike, complement = nothing, nothing
        if self.compares():
            alike = similarity(tables, self.similarity, server.get("reference"))
        if self.complements():
            complement = complementarity(self.received(ups, tables), self.complementarity, self.outer)
        return composite_weights(share, alike, complement, self.alpha, self.beta, self.weights)

    def _shares(self, ups: Ups, tables: Stack) -> Tensor:
        size = torch.ones(len(tables), dtype=torch.float64, device=tables.device)
        if self.shares == "samples":
            counted = ups.stacked("samples")[1][:, 0].double()
            size = torch.where(counted.sum() > 0, counted, size)
        return (size / size.sum()).expand(len(tables), -1)

    def answer(self, server: Tensors, plan: Plan, arrived: np.ndarray, round: int) -> Answer | None:
        return Answer(arrived, lambda some: self._mixture_of(server, some))

    def _mixture_of(self, server: Tensors, clients: np.ndarray) -> Down:
        rows = np.searchsorted(server["clients"].cpu().numpy(), clients)
        at = handed(rows, next(server[MIXED + name].device for name in self._names()))
        return Down(own={name: server[MIXED + name][at] for name in self._names()})

    def receive(self, state: State, down: Down, chunk: Chunk, round: int) -> State:
        """Section 5.1.3: the mixture and the client's own table, as its words have it; its formula has last round's
        mixture in the place of the own table."""
        held = self._opened(state.per_client, chunk)
        mixed = {name: value.lerp(held[name], self.interpolation) for name, value in down.own.items()}
        if self.interpolate == "inference":
            mixed = {SERVED + name: value for name, value in mixed.items()} | down.own
        elif self.proximal:
            mixed[RECEIVED] = down.own["item"]
        return State(state.per_client | self.trainer.narrow(mixed), state.per_user)

    def score(self, state: State, down: Down, chunk: Chunk, items: Tensor) -> Tensor:
        """With the mixture of those that received an aggregate since they trained, with their own table otherwise."""
        mark = SERVED if self.interpolate == "inference" else ""
        own = {name: state.per_client[mark + name] for name in self._names()}
        return self.trainer.own_scores(state.per_user["user"], self._opened(own, chunk), chunk, items)

    def footprint(self, world: World) -> Footprint:
        picture = 2 * self.components * world.items * world.dtype.itemsize  # left vectors are as long as the table
        near = 8 if self.proximal and self.interpolate == "both" else 0
        usual = self.trainer.footprint(world, dense=4, tables=4 + near)
        return replace(usual, client=usual.client + picture, training_only=(RECEIVED,))
