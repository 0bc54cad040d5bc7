"""FedCIA: silos share which items are alike, not what their item tables look like. Han et al., SIGIR 2025.

Every round (algorithm 1) a silo k trains on its own users (equation 5), then

    C_k = E_k E_k' + Laplace noise          goes up                 (sections 5.2.2, 5.2.5)
    C_s = 1/K sum_k C_k                     comes down              (section 5.2.3, where 1/N is printed)
    E_k <- gradient steps on |E_k E_k' - C_s|, user vectors and networks left alone   (equation 6)

C_s travels as its eigenvectors and eigenvalues, in whose coordinates a step costs least: all of them (`dense_gram`), or
the leading ones. Silos of different width or architecture can work together (`blocks`). With the filter of GF-CF in the
place of C_k there is nothing to train: one exchange, and scores A_k F_k + beta A_k F_s.

The paper writes the squared error of all entries; its released code descends the norm, unsquared and not averaged, and
trains matrix factorisation on products of single coordinates. Defaults follow the code, preset `paper` the text's
losses (the rate of the second rescaled), with new triples every round, of which the text says nothing. No sensitivity
is bounded, so the noise claims no epsilon. A factor of full rank tells the server as much as C_k itself: E_k up to a
rotation.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import ClassVar

import numpy as np
from torch import Tensor

from fedrec import method as fm
from fedrec.methods.silo.filter_exchange import FilterExchange
from fedrec.methods.silo.similarity import Distance
from fedrec.methods.silo.table_exchange import KEY, TableExchange
from fedrec.methods.silo.upload_form import Mode, UploadForm
from fedrec.models.gfcf import GFCF
from fedrec.training.silo_method import silo_backbones


@dataclass(frozen=True)
class FedCIA(fm.SiloMethod):
    info: ClassVar[fm.MethodInfo] = fm.MethodInfo(
        name="fedcia",
        summary="average of item-item similarities, to which each silo aligns its own table",
        paper="Han et al., SIGIR 2025",
        aliases={"CIA": {}},
        backbones=silo_backbones("mf", "mlp", "lightgcn", "gfcf"),
        scores_together=True,
    )

    mode: Mode = "auto"
    """What silos exchange: dense Gram matrices, factors of low rank, or subspaces; auto: dense up to 4,000 items."""
    distance: Distance = "fro_norm"
    """Loss of the alignment; mse and mse_literal differ in the length of the first step."""
    align_lr: float = 0.1
    """Learning rate of the alignment with the global similarity."""
    align_steps: int = 100
    """Steps of that alignment in a round."""
    noise: float | None = None
    """Laplace scale on uploads; none: 0.001 on whole matrices, nothing on factors."""
    noise_symmetric: bool = False
    """Whether noise on a matrix is symmetric, as the matrix is."""
    rank: int = 0
    """Columns of a shortened upload; 0: whole matrices in dense_gram, exact factors elsewhere (gfcf deployed: 128)."""
    server_rank: int = 0
    """Columns of the factor that comes down; 0: twice the widest table, at least 512."""
    beta: float = 60.0
    """gfcf: weight of the global filter."""

    @property
    def disclosure(self) -> fm.Disclosure:
        short = self.rank > 0 and isinstance(self.exchange, TableExchange)
        return fm.Disclosure(
            private=("user", "item"),
            gathers=short or self.mode in ("lowrank", "subspace"),
            own_noise=() if self.noise == 0 else ("similarity",),
        )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.mode in ("lowrank", "subspace") and self.noise:
            raise fm.FedrecError(f"noise={self.noise} needs full matrices: use mode=dense_gram, or noise=0")

    @cached_property
    def form(self) -> UploadForm:
        return UploadForm(self.mode, self.rank, self.noise, self.noise_symmetric)

    @cached_property
    def exchange(self) -> TableExchange | FilterExchange:
        """Return what becomes of item tables, or of the filters of GF-CF."""
        if not self.blocks and isinstance(self.trainer.model, GFCF):
            return FilterExchange(self.form, self.trainer.model, self.beta)
        return TableExchange(self.form, self.server_rank, self.align_steps, self.align_lr, self.distance)

    # -- start: all silos of an architecture from one model --

    def init_server(self, world: fm.World, attributes: Tensor | None = None) -> fm.Tensors:
        widths = {cohort.name: self.parts[cohort.name].trainer.model.dim for cohort in self.cohorts(world)}
        return self.exchange.start(world, [widths[c.name] for c in self.cohorts(world) for _ in c.clients])

    def init_clients(self, world: fm.World, chunk: fm.Chunk) -> fm.State:
        trainer = self.part(chunk).trainer
        return trainer.start(world, chunk, fm.replicate(trainer.init_model(world), len(chunk.clients)))

    # -- one round --

    def local(self, state: fm.State, down: fm.Down, chunk: fm.Chunk, round: int) -> tuple[fm.State, fm.Uploads]:
        """Train by equation 5 on the silo's own users; then C_k goes up (sections 5.2.2, 5.2.5)."""
        trained = self.part(chunk).trainer.train(state, chunk, round)
        return trained, self.exchange.upload(trained.per_client["item"], chunk, round)

    def aggregate(self, server: fm.Tensors, ups: fm.Ups, round: int) -> fm.Tensors:
        """Return C_s = 1/K sum_k C_k (section 5.2.3, where 1/N is printed)."""
        return self.exchange.mean(server, ups, round)

    def answer(self, server: fm.Tensors, plan: fm.Plan, arrived: np.ndarray, round: int) -> fm.Answer | None:
        """Send C_s to those who trained."""
        return fm.Answer(plan.train, lambda clients: _without_key(server))

    def receive(self, state: fm.State, down: fm.Down, chunk: fm.Chunk, round: int) -> fm.State:
        """Align by equation 6. Only the item table moves; Adam's moments stay as they are."""
        decay = self.part(chunk).weight_decay
        return fm.State({"item": self.exchange.align(state.per_client["item"], down.shared, chunk, decay)})

    # -- scores --

    def offer(self, server: fm.Tensors, clients: np.ndarray, round: int, items: Tensor) -> fm.Down:
        """Send what clients have from the last answer: the simulator keeps it once, not once for every client."""
        return _without_key(server)

    def score(self, state: fm.State, down: fm.Down, chunk: fm.Chunk, items: Tensor) -> Tensor:
        own = self.part(chunk).trainer.scores(state, chunk, items)
        return self.exchange.scores(own, down.shared, chunk, items)

    # -- what it says of itself --

    def remarks(self, world: fm.World) -> Sequence[str]:
        scale = self.form.noise_scale(world)
        noise = f"Laplace noise of scale {scale:g} on every entry, without a privacy claim" if scale else "no noise"
        return (f"fedcia exchanges similarities by mode {self.form.mode_in(world)}, {noise}",)

    def footprint(self, world: fm.World) -> fm.Footprint:
        entries = self.parameters_of(world) * 3
        if self.form.forms_matrices(world):
            entries += 2 * world.items**2  # the matrix and its float64 copy on the way into the sum
        usual = super().footprint(world)
        return replace(usual, client=usual.client + 2 * entries * world.dtype.itemsize)


def _without_key(server: fm.Tensors) -> fm.Down:
    return fm.Down(shared={name: value for name, value in server.items() if name != KEY})
