"""FedCA: every client has its own item table and gets its own mixture of the others' tables.

Zhang et al., TOIS 2026. In every round

    each client u:   trains p_u and Q_u, and uploads Q_u, a picture X_u of its rows, and N_u samples
    server:          s_uv = 1 / (1 + |Q_u - Q_v|^2)                                                            (6)
                     c_uv = cos of the mean angle between X_u and X_v                                          (7)
                     w_u = argmin over the simplex of |w - pi|^2 + alpha |w - s_u|^2 - beta w.c_u              (5)
                     Q_u^g = sum_v w_uv Q_v
    client u:        Q_u <- rho Q_u + (1 - rho) Q_u^g                                                  (section 5.1.3)

with pi_v the share of client v in all samples. What the paper's figures were made with, and what its released code does
otherwise, are variants in the package fedrec-studies.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, ClassVar

import numpy as np
import torch
from torch import Tensor

from fedrec import method as fm
from fedrec.methods.comparison import use_comparison
from fedrec.methods.mixture.aggregation import Mixtures, simplex_project
from fedrec.methods.mixture.fedca_terms import complementarity, sampled_axes, similarity


@dataclass(frozen=True)
@use_comparison
class FedCA(fm.LocalMethod):
    info: ClassVar[fm.MethodInfo] = fm.MethodInfo(
        name="fedca",
        summary="personal mixture of tables by data share, similarity and complementarity",
        paper="Zhang et al., ACM TOIS 44(2), 2026",
        backbones={"mf": {}, "ncf": {}, "sasrec": {}},
    )
    models = "own"
    gathers = True
    working_tables = 4

    aggregated_fraction: fm.Share = 0.6
    table_dtype: fm.TableDtype = "full"
    alpha: float = 0.5
    """Pull of a mixture towards similar clients."""
    beta: float = 0.2
    """Reward of complementary clients."""
    interpolation: Annotated[float, "[0, 1]"] = 0.9
    """Share of a client's own table in its mixture with the aggregate."""
    shares: fm.Shares = "samples"
    components: fm.Count = 4
    """Vectors in the compact representation of a client's rows."""

    def __post_init__(self) -> None:
        super().__post_init__()
        # vectors that a table is too narrow for would be sent as zeros
        if self.components > max(self.dim, 64):
            raise fm.FedrecError(f"components={self.components} does not fit fedca: it must be at most dim, or 64")

    @cached_property
    def mixtures(self) -> Mixtures:
        return Mixtures(self.trainer.names)

    def init_server(self, world: fm.World, attributes: Tensor | None = None) -> fm.Tensors:
        return self.mixtures.init(world, self.trainer.init_model(world), self.aggregated_fraction)

    # -- clients --

    def local(self, state: fm.State, down: fm.Down, chunk: fm.Chunk, round: int) -> tuple[fm.State, fm.Uploads]:
        user, own = self.train(state, chunk, round)
        payload: fm.Uploads = {name: fm.Gather(value) for name, value in own.items()}
        if self.rewards_complements:
            payload |= self.represent(own["item"], chunk, round)
        if self.shares == "samples":
            payload["samples"] = fm.Gather(chunk.sample_counts()[:, None])
        return fm.State(self.trainer.narrow(own), {"user": user}), payload

    def train(self, state: fm.State, chunk: fm.Chunk, round: int) -> tuple[Tensor, fm.Tensors]:
        return self.trainer.fit_own(chunk, round, state.per_user["user"], state.per_client)

    def represent(self, tables: Tensor, chunk: fm.Chunk, round: int) -> fm.Uploads:
        """X_u (section 5.1.1): the first principal axes of the rows of all samples of this round."""
        return {"picture": fm.Gather(sampled_axes(tables, chunk, round, self.components))}

    def receive(self, state: fm.State, down: fm.Down, chunk: fm.Chunk, round: int) -> fm.State:
        """rho Q_u + (1 - rho) Q_u^g, as section 5.1.3 has it in words; its formula has the last mixture for Q_u."""
        own = self.trainer.widen(state.per_client, chunk.world)
        mixed = {name: value.lerp(own[name], self.interpolation) for name, value in down.own.items()}
        return fm.State(state.per_client | self.trainer.narrow(mixed), state.per_user)

    # -- server --

    def aggregate(self, server: fm.Tensors, ups: fm.Ups, round: int) -> fm.Tensors:
        return server | self.mixtures.store(server, ups, self.weigh_clients(server, ups))

    def weigh_clients(self, server: fm.Tensors, ups: fm.Ups) -> Tensor:
        """w_u in one row for every aggregated client; one row for all where all have the same."""
        pi = self._data_shares(ups)
        if not (self.pulls_to_similar or self.rewards_complements):
            return pi[:1]  # shares lie on the simplex already
        nothing = torch.zeros_like(pi)  # a term without influence is not computed
        s = self.compare_tables(server, ups.stack("item")) if self.pulls_to_similar else nothing
        c = self.compare_pictures(ups) if self.rewards_complements else nothing
        return self.solve(pi, s, c)

    def _data_shares(self, ups: fm.Ups) -> Tensor:
        """pi, in one row for every client."""
        tables = ups.stack("item")
        size = torch.ones(len(tables), dtype=torch.float64, device=tables.device)
        if self.shares == "samples":
            counted = ups.stacked("samples")[1][:, 0].double()
            size = torch.where(counted.sum() > 0, counted, size)
        return (size / size.sum()).expand(len(tables), -1)

    @property
    def pulls_to_similar(self) -> bool:
        return self.alpha != 0

    @property
    def rewards_complements(self) -> bool:
        """Whether complementarity has an influence; otherwise nobody sends a picture."""
        return self.beta != 0

    def compare_tables(self, server: fm.Tensors, tables: fm.Stack) -> Tensor:
        return similarity(tables)  # (6)

    def compare_pictures(self, ups: fm.Ups) -> Tensor:
        return complementarity(ups.stacked("picture")[1])  # (7)

    def solve(self, pi: Tensor, s: Tensor, c: Tensor) -> Tensor:
        """(5): completing the square, the minimum is a projection onto the simplex."""
        return simplex_project((2 * pi + 2 * self.alpha * s + self.beta * c) / (2 * (1 + self.alpha)))

    def answer(self, server: fm.Tensors, plan: fm.Plan, arrived: np.ndarray, round: int) -> fm.Answer | None:
        return self.mixtures.answer(server, arrived)
