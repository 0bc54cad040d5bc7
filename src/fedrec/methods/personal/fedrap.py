"""FedRAP: an item has a row that all share and a row of each client's own; what a client scores is their sum.

Li et al., "Federated Recommendation with Additive Personalization" (ICLR 2024). The shared table C is averaged, the
own table D_u and the scorer (w_u, b_u) never leave. A client descends, with the rows of its batch, on

    BCE(w_u . (D_u + C) + b_u) - lambda * mean((D_u - C)^2) + mu * mean(|C|)

so that the two tables differ and the shared one is sparse. Steps shrink with every batch and from round to round;
weight decay reaches all rows at every step, which has a closed form where no sample touches a row.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Annotated, ClassVar, Literal

import numpy as np
from torch import Tensor

from fedrec import method as fm
from fedrec.methods.personal.additive import OF_ROWS, Additive, fit_compiled
from fedrec.training.compiled import CompiledKernel, kernel_for

OWN = 3  # stream of the own table's initial values
CACHE = 1 << 26  # bytes: many steps on the same rows are four times as fast as in large chunks


@dataclass(frozen=True)
class FedRAP(fm.LocalMethod):
    info: ClassVar[fm.MethodInfo] = fm.MethodInfo(
        name="fedrap",
        summary="sum of a shared and a personal item table, kept distinct; only the shared one is averaged",
        paper="Li et al., ICLR 2024",
        backbones={"linear": {}},
    )

    backbone: str = "linear"
    init_std: float = 1.0
    lr: float = 0.5
    """Learning rate of the scorer."""
    lr_item: float | None = 200.0
    """Learning rate of both item tables; none: lr."""
    batch_decay: Annotated[float, "(0, 1]"] = 0.95
    """Factor on all learning rates after every batch of a round."""
    round_decay: Annotated[float, "(0, 1]"] = 0.97
    """Factor on the learning rates that a round starts with, from one round to the next."""
    weight_decay: float = 1e-4
    """Weight decay of everything that is trained."""
    epochs: fm.Count = 10
    early_exit: float = 1e-4
    batch: fm.Count = 2048
    apart: float = 0.1
    """lambda: reward of the distance between the shared table and the client's own."""
    sparse: float = 0.1
    """mu: penalty on the shared table."""
    # which price: the mean absolute or squared entry, or the nuclear norm or largest entry of a batch's rows
    regular: Literal["l1", "l2", "nuclear", "max", "none"] = "l1"
    """Norm of that penalty."""
    anneal: Literal["paper", "released"] = "paper"
    """Whether both weights grow as tanh(round / 10) (paper) or stay constant (released)."""

    @property
    def disclosure(self) -> fm.Disclosure:
        return fm.Disclosure(private=("own", *self.model.dense_shapes()))

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.optimiser != "sgd" or self.loss != "bce":
            raise fm.FedrecError("fedrap works with optimiser=sgd and loss=bce only")

    @cached_property
    def trainer(self) -> fm.LocalTrainer:
        return fm.LocalTrainer(self, phases=(("item", "own", "dense"),))

    def for_round(self, round: int) -> FedRAP:
        """The same with the rates and coefficients of a round."""
        rates, slower = self.trainer.rates, self.round_decay**round
        grown = math.tanh(round / 10) if self.anneal == "paper" else 1.0
        return replace(
            self,
            lr=rates["dense"] * slower,
            lr_dense=None,
            lr_item=rates["item"] * slower,
            apart=self.apart * grown,
            sparse=self.sparse * grown,
        )

    def init_server(self, world: fm.World, attributes: Tensor | None = None) -> fm.Tensors:
        return {"item": self.trainer.init_items(world)}

    def init_clients(self, world: fm.World, chunk: fm.Chunk) -> fm.State:
        # From a stream of its own: where both tables are equal, their distance has no slope to drive them apart.
        own = {"own": self.trainer.init_table(world, OWN), **self.trainer.init_dense(world)}
        return self.trainer.init_state(world, chunk, own)

    def broadcast(self, server: fm.Tensors, clients: np.ndarray, round: int) -> fm.Down:
        return fm.Down(shared=server)

    def local(self, state: fm.State, down: fm.Down, chunk: fm.Chunk, round: int) -> tuple[fm.State, fm.Uploads]:
        dense = dict(state.per_client)
        own = dense.pop("own")
        method, user, table = self.for_round(round), state.per_user["user"], down.shared["item"]
        kernel = self._find_kernel(chunk)
        if kernel is None:
            fitted = Additive(method.trainer, chunk, round, user, table, dense, own).run()
        else:
            fitted = fit_compiled(kernel, method, chunk, round, user, table, dense, own)
        return fm.State({"own": own, **fitted.dense}, {"user": fitted.user}), {"item": fm.Mean(fitted.table)}

    def _find_kernel(self, chunk: fm.Chunk) -> CompiledKernel | None:
        # Prices of a batch's rows together need their singular values or maximum, which the kernel does not compute.
        fits = self.regular not in OF_ROWS and chunk.data.single and chunk.foldable
        return kernel_for("fedrap", chunk.world) if fits else None

    def aggregate(self, server: fm.Tensors, ups: fm.Ups, round: int) -> fm.Tensors:
        return {"item": ups["item"]} if "item" in ups else server

    def score(self, state: fm.State, down: fm.Down, chunk: fm.Chunk, items: Tensor) -> Tensor:
        held = dict(state.per_client)
        held["item"] = held.pop("own") + down.shared["item"]
        return self.trainer.own_scores(state.per_user["user"], held, chunk, items)

    def footprint(self, world: fm.World) -> fm.Footprint:
        usual = self.trainer.footprint(world, dense=8, tables=2, scored=2)
        return replace(usual, sample=2 * usual.sample, cache=CACHE)
