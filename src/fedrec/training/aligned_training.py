"""Local training in which the whole item table is drawn to a target, beside binary cross-entropy on the samples.

So IFedRec's clients train (its equations 10, 11).

Gradients are written out, because a client's step is a handful of matrix products, and clients of similar size share
them. Rows that no sample of the round touches move by the pull alone, (1 - pull) p + pull r at every step, so they are
never built: all of a client's such rows have gone the same share of the way from p to r.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from fedrec.federation.clients import Chunk
from fedrec.federation.contract import PartialSum, Rows, Tensors
from fedrec.training.compiled import (
    AlignedSettings,
    CompiledKernel,
    blocks_of,
    data_of,
    kernel_for,
    keys_of,
    samples_of,
    sum_blocks,
)
from fedrec.training.losses import Saturate, bce, bce_slope
from fedrec.training.samples import Batch, Samples

BLOCK = 8192  # samples of a block of clients: what its matrix products need stays near the processor
LastBatch = Literal["drop", "keep", "scale"]

Gradients = tuple[Tensor, Tensor, Tensors]
"""Logits, gradient of the item rows, gradients of the private parameters."""
Model = Callable[[Tensors, Tensor, Callable[[Tensor], Tensor]], Gradients]


def differentiate_linear(private: Tensors, rows: Tensor, error: Callable[[Tensor], Tensor]) -> Gradients:
    """x = w . p_v + b; `error` gives dloss/dx."""
    weight = private["weight0"]
    logits = torch.bmm(rows, weight.mT).squeeze(-1) + private["bias0"]
    e = error(logits)
    own = {"weight0": torch.bmm(e.unsqueeze(1), rows), "bias0": e.sum(1, keepdim=True)}
    return logits, e.unsqueeze(-1) * weight, own


def differentiate_ncf(private: Tensors, rows: Tensor, error: Callable[[Tensor], Tensor]) -> Gradients:
    """x = w . relu(W [q; p_v] + c) + b. The user's part of the first layer is the same for all samples."""
    user, weight = private["user"], private["weight1"]
    of_user, of_item = private["weight0"].split(rows.shape[-1], -1)
    left = torch.bmm(of_user, user.unsqueeze(-1)).squeeze(-1) + private["bias0"]
    hidden = torch.relu_(torch.baddbmm(left.unsqueeze(1), rows, of_item.mT))
    logits = torch.bmm(hidden, weight.mT).squeeze(-1) + private["bias1"]
    e = error(logits)
    # In place, factor by factor: it is the largest tensor of a step.
    back = (hidden > 0).to(rows.dtype).mul_(weight).mul_(e.unsqueeze(-1))
    total = back.sum(1)
    own = {
        "user": torch.bmm(total.unsqueeze(1), of_user).squeeze(1),
        "weight0": torch.cat([total.unsqueeze(-1) * user.unsqueeze(1), torch.bmm(back.mT, rows)], -1),
        "bias0": total,
        "weight1": torch.bmm(e.unsqueeze(1), hidden),
        "bias1": e.sum(1, keepdim=True),
    }
    return logits, torch.bmm(back, of_item), own


MODELS: dict[str, Model] = {"linear": differentiate_linear, "ncf": differentiate_ncf}


@dataclass(frozen=True)
class AlignedTrainer:
    """How clients descend. `pull` is the share of the way to the target that one step goes."""

    backbone: str  # linear or ncf
    rates: Mapping[str, float]  # of `item`, `user`, and `dense` for all others
    pull: float
    in_turn: bool  # first the private parameters, then with a new forward pass the table
    batch: int
    epochs: int
    last_batch: LastBatch = "drop"
    """What happens to a short last batch: it is left out, kept, or its loss divided by the size of a full one."""
    saturation: Saturate = "none"

    @property
    def model(self) -> Model:
        return MODELS[self.backbone]

    def train(self, chunk: Chunk, round: int, private: Tensors, table: Tensor, target: Tensor) -> Rows | PartialSum:
        """Train from the common `table`; `private` (leading axis: clients) is updated in place."""
        kernel = kernel_for("aligned", chunk.world, chunk.foldable)
        if kernel is not None:
            return self._train_compiled(kernel, chunk, round, private, table, target)
        samples = Samples(chunk, round, "bce", self.batch)
        rows, steps = table[samples.item], torch.zeros(len(samples.order), dtype=table.dtype, device=table.device)
        ends = torch.searchsorted(samples.owner, torch.arange(len(steps) + 1, device=table.device)).tolist()
        for epoch in range(self.epochs):
            for number, batch in enumerate(samples.epoch(epoch)):
                clients = self._count_clients(batch, number)
                steps[samples.order[:clients]] += 1
                for lo, hi in _blocks(batch.size[:clients]):
                    who, mine = samples.order[lo:hi], slice(ends[lo], ends[hi])
                    own = {name: value[who] for name, value in private.items()}
                    rows_of = _Block(rows, mine, target[samples.item[mine]])
                    loss = self._step(own, rows_of, _part(batch, lo, hi), number)
                    for name, value in private.items():
                        value[who] = own[name]
                    chunk.observe("loss", *loss)
        # of a row that no sample touched, after so many steps p <- (1 - pull) p + pull r
        # Closed form, because these rows are nearly the whole table and would be written at every step.
        shift = 1 - (1 - self.pull) ** steps
        return Rows(table, samples.order[samples.owner], samples.item, rows, len(steps), shift, target)

    def _train_compiled(
        self, train: CompiledKernel, chunk: Chunk, round: int, private: Tensors, table: Tensor, target: Tensor
    ) -> PartialSum:
        """Do the same in a kernel, which forms the sum over clients on the fly."""
        settings = AlignedSettings(
            rate_user=self.rates.get("user", 0.0),
            rate_item=self.rates["item"],
            rate_dense=self.rates["dense"],
            pull=self.pull,
            batch=self.batch,
            epochs=self.epochs,
            in_turn=self.in_turn,
            drop=self.last_batch == "drop",
            nominal=self.last_batch == "scale",
            saturate=self.saturation == "released",
        )
        count, blocks = len(chunk.clients), blocks_of(samples_of(chunk), len(table))
        parts = table.new_empty(len(blocks) - 1, *table.shape)
        steps, seen = torch.zeros(2, count, dtype=torch.int64)
        loss = torch.zeros(count, dtype=torch.float64)
        train(
            data_of(chunk),
            chunk.data.negatives,
            keys_of(chunk, round),
            settings,
            *_layers(private, table),
            table,
            target,
            blocks,
            parts,
            steps,
            loss,
            seen,
        )
        chunk.observe("loss", loss.sum(), seen.sum())
        # Start and target are common to all clients, so that in the sum one number stands for all their pulls.
        gone = float((1 - (1 - self.pull) ** steps.double()).sum())
        return PartialSum(table, sum_blocks(parts).add_((target - table).double(), alpha=gone), count)

    def _count_clients(self, batch: Batch, number: int) -> int:
        """Return how many take this step: short batches move rows far, so they may be left out."""
        # Never the first batch: a client with fewer samples than one batch would not train at all.
        if number and self.last_batch == "drop":
            return int((batch.size == self.batch).sum())
        return batch.clients

    def _step(self, own: Tensors, rows: _Block, batch: Batch, number: int) -> tuple[float, float]:
        size = torch.full_like(batch.size, self.batch) if number and self.last_batch == "scale" else batch.size
        weight = batch.valid / size[:, None].to(batch.label.dtype)

        def error(logits: Tensor) -> Tensor:
            return bce_slope(logits, batch.label, self.saturation) * weight

        x = rows.values[batch.pos]
        logits, of_rows, of_own = self.model(own, x, error)
        for name, gradient in of_own.items():
            own[name] -= self.rates["user" if name == "user" else "dense"] * gradient
        if self.in_turn:
            of_rows = self.model(own, x, error)[1]
        inside = rows.values[rows.where]
        # Before the samples' gradients are added, which were taken at these rows: after that it would shrink them too.
        inside.lerp_(rows.target, self.pull)
        rows.values.index_add_(0, batch.pos.flatten(), of_rows.flatten(0, 1), alpha=-self.rates["item"])
        losses = bce(logits, batch.label, self.saturation) * batch.valid
        return float(losses.sum()), float(batch.size.sum())


@dataclass(frozen=True)
class _Block:
    """The working set, which part of it belongs to a block of clients, and where that part is pulled."""

    values: Tensor
    where: slice
    target: Tensor


def _layers(private: Tensors, table: Tensor) -> tuple[Tensor, ...]:
    """Return user, first layer, second layer for the kernel; without a hidden layer the first two are empty."""
    if "user" in private:
        return (
            *(private[name] for name in ("user", "weight0", "bias0")),
            private["weight1"].squeeze(1),
            private["bias1"],
        )
    head = private["weight0"].squeeze(1)
    return head[:, :0], table.new_empty(len(head), 0, 0), head[:, :0], head, private["bias0"]


def _part(batch: Batch, lo: int, hi: int) -> Batch:
    """Return some clients' part of a batch, as wide as the largest of them."""
    n = int(batch.size[lo:hi].max())
    pos, label, valid = (value[lo:hi, :n] for value in (batch.pos, batch.label, batch.valid))
    return Batch(hi - lo, batch.user[lo:hi, :n], pos, None, label, valid, batch.size[lo:hi])


def _blocks(size: Tensor) -> Iterator[tuple[int, int]]:
    """Yield runs of clients of similar size with at most BLOCK samples together (at least one client each)."""
    sizes, lo = size.tolist(), 0
    while lo < len(sizes):
        hi = lo + max(1, BLOCK // max(1, sizes[lo]))
        yield lo, min(hi, len(sizes))
        lo = hi
