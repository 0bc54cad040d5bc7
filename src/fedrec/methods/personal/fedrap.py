"""FedRAP: an item has a row that all share and a row of each client's own; what a client scores is their sum.

Li et al., "Federated Recommendation with Additive Personalization" (ICLR 2024). The shared table C is averaged, the
own table D_u and the scorer (w_u, b_u) never leave. A client descends, with the rows of its batch, on

    BCE(w_u . (D_u + C) + b_u) - lambda * mean((D_u - C)^2) + mu * mean(|C|)

so that the two tables differ and the shared one is sparse. Steps shrink with every batch and from round to round;
weight decay reaches all rows at every step, which has a closed form where no sample touches a row.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Annotated, ClassVar, Literal

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from fedrec.errors import FedrecError
from fedrec.federation.clients import Chunk
from fedrec.federation.contract import (
    Disclosure,
    Down,
    Footprint,
    Mean,
    MethodInfo,
    PartialSum,
    Reduction,
    Rows,
    State,
    Tensors,
    Ups,
    World,
)
from fedrec.federation.ranges import Count, Interval
from fedrec.training.compiled import AdditiveSettings, CompiledKernel, kernel_for, summed, work_of
from fedrec.training.descent import Descent, Fitted, Group
from fedrec.training.local_training import LocalMethod, LocalTrainer
from fedrec.training.samples import Batch

OWN = 3  # stream of the own table's initial values


CACHE = 1 << 26  # bytes: many steps on the same rows are four times as fast as in large chunks


@dataclass(frozen=True)
class FedRAP(LocalMethod):
    info: ClassVar[MethodInfo] = MethodInfo(
        name="fedrap",
        summary="the sum of a shared and an own item table, held apart; only the shared one is averaged",
        paper="Li et al., ICLR 2024",
        backbones={"linear": {}},
        presets={
            "paper": {"anneal": "paper"},
            "released": {"anneal": "released"},
            # what the released code recommends for ml-100k
            "ml-100k": {"anneal": "released", "sparse": 1e-3, "weight_decay": 1e-6, "lr": 1e-4, "lr_item": 1000.0},
            # as compared in the papers of these names; CGFedRec's code gives all methods its own epochs, batches and l2
            "cgfedrec": {
                "anneal": "released",
                "lr_item": 100.0,
                "round_decay": 1.0,
                "epochs": 2,
                "batch": 256,
                "weight_decay": 0.0,
            },
            "fedrkg": {"anneal": "paper"},
        },
    )  # fmt: skip

    backbone: str = "linear"
    init_std: float = 1.0
    lr: float = 0.5  # of the scorer
    lr_item: float | None = 200.0  # of both tables
    batch_decay: Annotated[float, Interval("(0, 1]")] = 0.95  # of all rates, after every batch of a round
    round_decay: Annotated[float, Interval("(0, 1]")] = 0.97  # of the rates that a round starts with
    weight_decay: float = 1e-4  # of everything
    epochs: Count = 10
    early_exit: float = 1e-4
    batch: Count = 2048
    apart: float = 0.1  # lambda: reward of the distance between the two tables
    sparse: float = 0.1  # mu: price of the shared table
    # which price: the mean absolute or squared entry, or the nuclear norm or largest entry of a batch's rows
    regular: Literal["l1", "l2", "nuclear", "max", "none"] = "l1"
    anneal: Literal["paper", "released"] = "paper"  # paper: both grow as tanh(round / 10); released: constant

    @property
    def disclosure(self) -> Disclosure:
        return Disclosure(private=("own", *self.model.dense_shapes()))

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.optimiser != "sgd" or self.loss != "bce":
            raise FedrecError("fedrap descends by optimiser=sgd on loss=bce only")

    @cached_property
    def trainer(self) -> LocalTrainer:
        return LocalTrainer(self, phases=(("item", "own", "dense"),))

    def for_round(self, round: int) -> FedRAP:
        """The same with the rates and coefficients of a round."""
        rates, slower = self.trainer.rates, self.round_decay**round
        grown = math.tanh(round / 10) if self.anneal == "paper" else 1.0
        return replace(
            self, lr=rates["dense"] * slower, lr_dense=None, lr_item=rates["item"] * slower,
            apart=self.apart * grown, sparse=self.sparse * grown,
        )  # fmt: skip

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
        trainer, user, table = self.for_round(round).trainer, state.per_user["user"], down.shared["item"]
        kernel = self._compiled_kernel(chunk)
        if kernel is None:
            fitted = Additive(trainer, chunk, round, user, table, dense, own).run()
        else:
            fitted = fit_compiled(kernel, trainer, chunk, round, user, table, dense, own)
        return State({"own": own, **fitted.dense}, {"user": fitted.user}), {"item": Mean(fitted.table)}

    def _compiled_kernel(self, chunk: Chunk) -> CompiledKernel | None:
        fits = self.regular not in WHOLE and chunk.data.single and chunk.foldable
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


def fit_compiled(train: CompiledKernel, trainer: LocalTrainer, chunk: Chunk, round: int, user: Tensor, table: Tensor,
                 dense: Tensors, own: Tensor) -> Fitted:  # fmt: skip
    """The same as `Additive`, compiled: only the sum of the shared tables comes out."""
    method, rates = trainer.settings, trainer.rates
    assert isinstance(method, FedRAP)
    work, left = work_of(trainer, chunk, round, user, table), np.ones(len(chunk.clients))
    head, bias = (dense[name + "0"].flatten(1).clone() for name in ("weight", "bias"))
    parts = work.parts()
    priced = method.sparse if method.regular != "none" else 0.0
    decay = float(method.weight_decay)
    settings = AdditiveSettings(
        rate_head=float(rates["dense"]),
        rate_row=float(rates["item"]),
        decay_head=decay + method.weight_decay_dense,
        decay=decay,
        apart=float(method.apart),
        sparse=float(priced),
        lasso=method.regular == "l1",
        batch=method.batch,
        epochs=method.epochs,
        mean=method.reduction == "mean",
        early_exit=float(method.early_exit),
        slower=float(method.batch_decay),
    )
    train(work.data(), chunk.world.items, chunk.data.negatives, work.keys, settings, work.tables[0], own, head, bias,
          work.blocks, parts, left, work.loss, work.seen)  # fmt: skip
    work.observe()
    change = summed(parts) + table.double() * float((left - 1).sum())
    trained = {"weight0": head.view_as(dense["weight0"]), "bias0": bias}
    return Fitted(user, PartialSum(table, change, len(chunk.clients)), trained)


def nuclear(rows: Tensor) -> Tensor:
    """The sum of singular values of every client's rows [clients, rows, d], from the small matrix of their products."""
    square = torch.linalg.eigvalsh((rows.mT @ rows).double())
    there = square > 1e-12 * square.amax(1, keepdim=True)  # a root has no slope at zero
    return torch.where(there, torch.where(there, square, 1.0).sqrt(), 0.0).sum(1).to(rows.dtype)


WHOLE: dict[str, Callable[[Tensor], Tensor]] = {"nuclear": nuclear, "max": lambda rows: rows.abs().amax((1, 2))}


class Additive(Descent):
    """Descent on two tables at once: the shared one, and `own` [clients, items, d], which is updated in place."""

    settings: FedRAP

    def __init__(self, trainer: LocalTrainer, chunk: Chunk, round: int, user: Tensor, table: Tensor, dense: Tensors,
                 own: Tensor) -> None:  # fmt: skip
        super().__init__(trainer, chunk, round, user, table, dense)
        item = self.groups["item"]
        self.own = own
        self.groups["own"] = Group(own[self.clients, self.samples.item], item.owner, item.end, item.rate)
        for group in self.groups.values():
            group.decay += self.settings.weight_decay
        self.left = torch.ones(len(self.step_count), dtype=table.dtype, device=table.device)  # of untouched rows

    def _phase(self, batch: Batch, kinds: tuple[str, ...]) -> Tensor:
        """Row by row instead of sample by sample: all samples of a row have its logit and its regularisers."""
        names = [name for name in self.groups if name.split(".")[0] in kinds]
        leaves = {name: self.groups[name].value[: self.groups[name].end[batch.clients]].detach() for name in names}
        loss = self._by_client({name: leaf.requires_grad_() for name, leaf in leaves.items()}, batch)
        for name, gradient in zip(leaves, torch.autograd.grad(loss.sum(), list(leaves.values())), strict=True):
            self.update(self.groups[name], gradient)
        return loss.detach().double() * (batch.size if self.settings.reduction == "mean" else 1)

    def _by_client(self, leaves: Tensors, batch: Batch) -> Tensor:
        """The loss of every client on its batch. Means over entries are means over samples and coordinates."""
        method, own, shared = self.settings, leaves["own"], leaves["item"]
        owner = self.groups["item"].owner[: len(own)]
        share = batch.valid.to(own.dtype) / (batch.size[:, None] if method.reduction == "mean" else 1)
        seen, liked = own.new_zeros(len(own)), own.new_zeros(len(own))  # samples of a row, and those with label 1
        seen.index_add_(0, batch.pos.flatten(), share.flatten())
        liked.index_add_(0, batch.pos.flatten(), (share * batch.label).flatten())
        weight, bias = (leaves[f"dense.{name}0"].flatten(1).index_select(0, owner) for name in ("weight", "bias"))
        logit = ((own + shared) * weight).sum(1) + bias.squeeze(1)
        price = -method.apart * (own - shared).square().mean(1)
        if method.regular in ("l1", "l2"):
            price = price + method.sparse * (shared.abs() if method.regular == "l1" else shared.square()).mean(1)
        entries = seen * (F.softplus(logit) + price) - liked * logit  # BCE of logit l, label y: softplus(l) - y l
        loss = own.new_zeros(batch.clients).index_add(0, owner, entries)
        if method.regular not in WHOLE:
            return loss
        norm = WHOLE[method.regular](shared[batch.pos] * batch.valid[..., None])
        return loss + method.sparse * norm * (1 if method.reduction == "mean" else batch.size)

    def _step(self, batch: Batch) -> Tensor:
        loss = super()._step(batch)
        some = slice(batch.clients)
        shrink = 1 - self.groups["item"].rate * self.settings.weight_decay * self._pace()[some]
        self.left[some] = torch.where(self.going[some], self.left[some] * shrink, self.left[some])
        return loss

    def _pace(self) -> Tensor:
        """What is left of every client's rates at its present step."""
        return self.settings.batch_decay ** (self.step_count - 1).to(self.left.dtype)

    def _move(self, group: Group, value: Tensor, step: Tensor) -> None:
        pace = self._pace()[group.owner[: len(step)]]
        super()._move(group, value, step * pace.reshape(-1, *[1] * (step.dim() - 1)))

    def _result(self) -> Fitted:
        fitted = super()._result()
        rows, left = fitted.table, torch.empty_like(self.left)
        assert isinstance(rows, Rows)
        left[self.samples.order] = self.left
        if self.settings.weight_decay:
            self.own *= left[:, None, None]
            rows = replace(rows, shift=1 - left, towards=torch.zeros_like(rows.base))
        self.own[self.clients, self.samples.item] = self.groups["own"].value
        return Fitted(fitted.user, rows, fitted.dense)
