"""FedRKG's gate: a private number for every item that says how much of the mean table's row comes into the own one.

With P the own table, P_g the mean of all and the gate g_i = sigmoid(W . [P_i; P_gi; P_i - P_gi] + b) (5), a commit is

    P_i <- beta P_i + 2 (1 - beta) g_i P_gi   (4, 6)

and the gate is trained just before, on the loss of the rows that a commit with it would give (7, 8).
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor

from fedrec.federation.clients import Chunk
from fedrec.federation.contract import Tensors, World
from fedrec.random import Purpose, fold_tensor, uniform
from fedrec.training.compiled import CompiledKernel, GateSettings, kernel_for, work_of
from fedrec.training.descent import Descent, Fitted, Group
from fedrec.training.local_training import LocalTrainer
from fedrec.training.lookup import look_up
from fedrec.training.samples import Batch

if TYPE_CHECKING:
    from fedrec.methods.personal.fedrkg import FedRKG

GATE = ("gate", "gate_bias")  # W [clients, 3 d] and b [clients, 1] in the state
STREAM = 3  # of initial gates
ON_GPU = 1 << 27  # numbers of tables that are guided at a time


def init_gates(world: World, chunk: Chunk, dim: int, start: Literal["zero", "linear"]) -> Tensors:
    """Zero is a gate of 1/2 everywhere; linear is within 1 / sqrt(3 d)."""
    width = 3 * dim
    values = torch.zeros(len(chunk.clients), width + 1, dtype=world.dtype)
    if start == "linear":
        key = fold_tensor(chunk.secret.stream(Purpose.INIT, STREAM), torch.from_numpy(chunk.clients))
        values = (2 * uniform(fold_tensor(key[:, None], torch.arange(width + 1)), world.dtype) - 1) / width**0.5
    values = values.to(world.device)
    return dict(zip(GATE, (values[:, :-1].contiguous(), values[:, -1:].contiguous()), strict=True))


def gate_logits(tables: Tensor, common: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """The logit of (5), W . [P; P_g; P - P_g] + b, for tables [clients, rows, d] and common rows [rows, d] or
    [clients, rows, d]."""
    own, shared, difference = weight.chunk(3, -1)
    # W is regrouped by what it meets, so that the three-fold vectors are never laid out.
    mine = (tables @ (own + difference).unsqueeze(-1)).squeeze(-1)
    return mine + (common @ (shared - difference).unsqueeze(-1)).squeeze(-1) + bias


def guide_(tables: Tensor, common: Tensor, weight: Tensor, bias: Tensor, beta: float) -> None:
    """Commit (6, 9) in place, some clients at a time: a temporary of the size of all tables is never needed."""
    # One table stays in the cache of a processor; a GPU would mostly wait for its own starts.
    some = 1 if tables.device.type == "cpu" else max(1, ON_GPU // tables[0].numel())
    for table, w, b in zip(*(part.split(some) for part in (tables, weight, bias)), strict=True):
        gate = torch.sigmoid(gate_logits(table, common, w, b))
        table.mul_(beta).add_(common * gate.unsqueeze(-1), alpha=2 * (1 - beta))


def commit_with_gate(method: FedRKG, chunk: Chunk, round: int, user: Tensor, held: Tensors, common: Tensor) -> Tensors:
    """Train the gates through the fused table (7, 8), then commit with them (9); `held` is updated in place."""
    fits = method.backbone == "mf" and method.loss == "bce" and chunk.data.single
    kernel = kernel_for("gate", chunk.world) if fits else None
    if kernel is not None:
        _guide_compiled(kernel, method, chunk, round, user, held, common)
        return held
    gate = {name: held[name] for name in GATE}
    if method.gate_epochs:
        dense = {name: held[name] for name in method.model.dense_shapes()}
        trainer = _gate_trainer(method)
        gate = GateDescent(trainer, chunk, round, user, held["item"], dense, gate, common).run().dense
    guide_(held["item"], common, gate["gate"], gate["gate_bias"], method.beta)
    return {"item": held["item"], **gate}


def _gate_trainer(method: FedRKG) -> LocalTrainer:
    """Of the gates alone, by plain steps."""
    # Of the method's settings only these differ: the gate has epochs of its own, and always takes all its steps.
    plain = replace(method, epochs=method.gate_epochs, optimiser="sgd", early_exit=0.0)
    return LocalTrainer(plain, phases=(("gate",),), rates={"gate": method.lr_gate})


class GateDescent(Descent):
    """Descent on the gates alone (7, 8). `gate` holds them, `common` is the mean table."""

    settings: FedRKG

    def __init__(
        self,
        trainer: LocalTrainer,
        chunk: Chunk,
        round: int,
        user: Tensor,
        table: Tensor,
        dense: Tensors,
        gate: Tensors,
        common: Tensor,
    ) -> None:
        super().__init__(trainer, chunk, round, user, table, dense)
        order = self.samples.order
        each, ends = torch.arange(len(order), device=order.device), list(range(len(order) + 1))
        for name in GATE:
            self.groups["gate." + name] = Group(gate[name][order], each, ends, trainer.rates["gate"])
        self.common = common[self.samples.item]

    def _losses(self, leaves: Tensors, batch: Batch) -> Tensor:
        """With the fused rows of the batch in place of the own ones."""
        at = batch.pos if batch.neg is None else torch.cat([batch.pos, batch.neg], 1)
        fused = self._fuse(leaves, at)
        # Fused rows are laid out one per sample, so a sample's place is its row; nothing is fused that no batch reads.
        place = torch.arange(at.numel(), device=at.device).view_as(at)
        width = batch.pos.shape[1]
        pair = replace(batch, pos=place[:, :width], neg=None if batch.neg is None else place[:, width:])
        return super()._losses(leaves | {"item": fused.flatten(0, 1)}, pair)

    def _fuse(self, leaves: Tensors, at: Tensor) -> Tensor:
        """Rows of the working set as a commit with the present gate would leave them."""
        own, common, beta = look_up(leaves["item"], at), self.common[at], self.settings.beta
        gate = torch.sigmoid(gate_logits(own, common, *(leaves["gate." + name] for name in GATE)))
        return beta * own + 2 * (1 - beta) * gate.unsqueeze(-1) * common

    def _result(self) -> Fitted:
        gates = {name: torch.empty_like(self.groups["gate." + name].value) for name in GATE}
        for name, value in gates.items():
            value[self.samples.order] = self.groups["gate." + name].value
        return Fitted(torch.empty(0), self.table, gates)


def _guide_compiled(
    kernel: CompiledKernel, method: FedRKG, chunk: Chunk, round: int, user: Tensor, held: Tensors, common: Tensor
) -> None:
    """Training and commit in one, compiled: gates and tables in place."""
    work = work_of(method.trainer, chunk, round, user, held["item"])
    settings = GateSettings(
        rate=float(method.lr_gate),
        batch=method.batch,
        epochs=method.gate_epochs,
        mean=method.reduction == "mean",
        keep=float(method.beta),
    )
    kernel(
        work.data(),
        chunk.world.items,
        chunk.data.negatives,
        work.keys,
        settings,
        work.user,
        work.tables,
        common,
        *(held[name] for name in GATE),
        work.blocks,
        work.loss,
        work.seen,
    )
    work.observe()
