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

from fedrec.errors import FedrecError
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
)
from fedrec.federation.ranges import Count, Interval
from fedrec.federation.settings_files import settings_beside
from fedrec.methods.personal.additive import OF_ROWS, Additive, fit_compiled
from fedrec.training.compiled import CompiledKernel, kernel_for
from fedrec.training.local_training import LocalMethod, LocalTrainer

OWN = 3  # stream of the own table's initial values
CACHE = 1 << 26  # bytes: many steps on the same rows are four times as fast as in large chunks


@dataclass(frozen=True)
class FedRAP(LocalMethod):
    info: ClassVar[MethodInfo] = MethodInfo(
        name="fedrap",
        summary="sum of a shared and a personal item table, kept distinct; only the shared one is averaged",
        paper="Li et al., ICLR 2024",
        backbones={"linear": {}},
        **settings_beside(__file__),
    )

    backbone: str = "linear"
    init_std: float = 1.0
    lr: float = 0.5
    """Learning rate of the scorer."""
    lr_item: float | None = 200.0
    """Learning rate of both item tables; none: lr."""
    batch_decay: Annotated[float, Interval("(0, 1]")] = 0.95
    """Factor on all learning rates after every batch of a round."""
    round_decay: Annotated[float, Interval("(0, 1]")] = 0.97
    """Factor on the learning rates that a round starts with, from one round to the next."""
    weight_decay: float = 1e-4
    """Weight decay of everything that is trained."""
    epochs: Count = 10
    early_exit: float = 1e-4
    batch: Count = 2048
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
    def disclosure(self) -> Disclosure:
        return Disclosure(private=("own", *self.model.dense_shapes()))

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.optimiser != "sgd" or self.loss != "bce":
            raise FedrecError("fedrap works with optimiser=sgd and loss=bce only")

    @cached_property
    def trainer(self) -> LocalTrainer:
        return LocalTrainer(self, phases=(("item", "own", "dense"),))

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

    def init_server(self, world: World, attributes: Tensor | None = None) -> Tensors:
        return {"item": self.trainer.init_items(world)}

    def init_clients(self, world: World, chunk: Chunk) -> State:
        own = {"own": self.trainer.init_table(world, OWN), **self.trainer.init_dense(world)}
        return self.trainer.init_state(world, chunk, own)

    def broadcast(self, server: Tensors, clients: np.ndarray, round: int) -> Down:
        return Down(shared=server)

    def local(self, state: State, down: Down, chunk: Chunk, round: int) -> tuple[State, dict[str, Reduction]]:
        dense = dict(state.per_client)
        own = dense.pop("own")
        method, user, table = self.for_round(round), state.per_user["user"], down.shared["item"]
        kernel = self._compiled_kernel(chunk)
        if kernel is None:
            fitted = Additive(method.trainer, chunk, round, user, table, dense, own).run()
        else:
            fitted = fit_compiled(kernel, method, chunk, round, user, table, dense, own)
        return State({"own": own, **fitted.dense}, {"user": fitted.user}), {"item": Mean(fitted.table)}

    def _compiled_kernel(self, chunk: Chunk) -> CompiledKernel | None:
        fits = self.regular not in OF_ROWS and chunk.data.single and chunk.foldable
        return kernel_for("fedrap", chunk.world) if fits else None

    def aggregate(self, server: Tensors, ups: Ups, round: int) -> Tensors:
        return {"item": ups["item"]} if "item" in ups else server

    def score(self, state: State, down: Down, chunk: Chunk, items: Tensor) -> Tensor:
        held = dict(state.per_client)
        held["item"] = held.pop("own") + down.shared["item"]
        return self.trainer.own_scores(state.per_user["user"], held, chunk, items)

    def footprint(self, world: World) -> Footprint:
        usual = self.trainer.footprint(world, dense=8, tables=2, scored=2)
        return replace(usual, sample=2 * usual.sample, cache=CACHE)
