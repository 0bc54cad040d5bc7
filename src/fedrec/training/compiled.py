"""Access to compiled kernels: which exist for a world, which backbone has one, and how it is called."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import accumulate
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from fedrec.federation.clients import Chunk
from fedrec.federation.contract import PartialSum, Tensors, World
from fedrec.kernels import Kernel as CompiledKernel
from fedrec.kernels import find as find_kernel
from fedrec.kernels.arguments import (
    AdditiveSettings,
    AlignedSettings,
    ContrastSettings,
    ContrastTerms,
    Data,
    FactorSettings,
    GateSettings,
    HeadSettings,
    Keys,
    Layers,
    NetworkSettings,
)
from fedrec.kernels.bounds import TILE
from fedrec.kernels.device import beside, to_device
from fedrec.models import MF, NCF, Backbone, Linear
from fedrec.random import Purpose
from fedrec.training.descent import Fitted

if TYPE_CHECKING:
    from fedrec.training.local_training import LocalMethod, LocalTrainer

__all__ = [
    "BLOCKS",
    "TILE",
    "AdditiveSettings",
    "AlignedSettings",
    "CompiledKernel",
    "ContrastSettings",
    "ContrastTerms",
    "GateSettings",
    "Kernel",
    "Work",
    "blocks_of",
    "data_of",
    "find_kernel",
    "fit_compiled",
    "head_settings",
    "heads_of",
    "kernel_for",
    "kernel_of",
    "keys_of",
    "network_settings",
    "pack",
    "sample_moments",
    "samples_of",
    "steepest",
    "sum_blocks",
    "to_device",
    "unpack",
    "work_of",
]

# A fixed number and not that of the cores: sums would otherwise differ in their last digits between machines.
BLOCKS = 16  # parallel parts of a chunk, at most
# Few samples over a large catalogue would otherwise spend their time on copying tables and adding them up.
SAMPLES_PER_ROW = 16  # samples that make up for a block's own copy of one table row


@dataclass
class Work:
    """What every kernel takes. `user`, `tables` where they are personal, `loss` and `seen` are written to."""

    trainer: LocalTrainer
    chunk: Chunk
    user: Tensor
    tables: Tensor  # [clients, items, d], or [1, items, d] where the start is shared
    shared: bool
    weight: Tensor
    blocks: np.ndarray
    keys: Keys
    loss: Tensor
    seen: Tensor
    own: Tensor  # [clients, items, d] for each client's table after a shared start, or empty
    changed: Tensor  # [clients, items]: rows of `own` that were written, where the others can wait; or empty

    def data(self) -> Data:
        return data_of(self.chunk)

    def parts(self) -> Tensor:
        """Room for every block's sum of the changes of a shared table; an accelerator makes one sum, in double."""
        # Blocks run side by side on a processor and must not write to the same rows, so each has a table of its own.
        rows, width = self.tables.shape[1:]
        if self.tables.device.type == "cpu":
            return self.tables.new_empty(len(self.blocks) - 1, rows if self.shared else 0, width)
        return self.tables.new_empty(1, rows if self.shared else 0, width, dtype=torch.float64)

    def observe(self) -> None:
        self.chunk.observe("loss", self.loss.sum(), self.seen.sum())

    def leave(self) -> None:
        """For later: the rows of clients' own tables that training did not change."""
        complete, later = kernel_for("own_tables", self.chunk.world), self.chunk.later
        # Left until somebody looks at the state: writing all rows of all clients can take longer than their training.
        if len(self.changed) and complete is not None and later is not None:
            later.append(UnchangedRows(complete, self.own, self.tables[0].clone(), self.changed))


@dataclass(frozen=True)
class UnchangedRows:
    """Of clients' `own` tables: where nothing is `changed` they are to have the rows of `table`, a copy, because the
    server may change in place what it sent."""

    complete: CompiledKernel
    own: Tensor
    table: Tensor
    changed: Tensor

    def __call__(self) -> None:
        self.complete(self.own, self.table, self.changed)

    @property
    def nbytes(self) -> int:
        return int((~self.changed).sum()) * self.table[0].nbytes


@dataclass(frozen=True)
class Kernel:
    """Of a backbone. `train` hands the work to the kernel of this name; it returns the weighted sum of the changes of
    a shared table, and the dense weights that were trained."""

    name: str
    train: Callable[[CompiledKernel, Work, Tensors], tuple[Tensor, Tensors]]
    pulls: tuple[str, ...] = ()  # optimisers with which it can pull rows back to the start: those that visit them all
    only: Callable[[LocalMethod], bool] = lambda settings: True  # whether it supports these settings
    saturates: bool = False  # whether it supports scores that pass a sigmoid in single precision


def kernel_for(name: str, world: World, fits: bool = True) -> CompiledKernel | None:
    """Return the kernel that clients of this world may use, if what is asked of it `fits`; None: torch does it."""
    return find_kernel(name, world.device, world.compiled and fits)


def kernel_of(model: Backbone) -> Kernel | None:
    return KERNELS.get(type(model))


def fit_compiled(
    kernel: Kernel,
    trainer: LocalTrainer,
    chunk: Chunk,
    round: int,
    user: Tensor,
    table: Tensor,
    dense: Tensors,
    weight: Tensor | None,
    own: Tensor | None = None,
) -> Fitted:
    shared, trained = table.dim() == 2, user.clone(memory_format=torch.contiguous_format)
    # On a copy of the user vectors: whether the trained ones replace those of the state is for the method to say.
    work = work_of(trainer, chunk, round, trained, table, weight, own)
    compiled = kernel_for(kernel.name, chunk.world)
    assert compiled is not None
    total, dense = kernel.train(compiled, work, dense)
    work.observe()
    work.leave()
    return Fitted(trained, PartialSum(table, total, len(chunk.clients)) if shared else table, dense)


def sample_moments(chunk: Chunk, round: int, tables: Tensor) -> tuple[Tensor, Tensor] | None:
    """Of the rows of every client's samples of a round, in its own table: their scatter around their mean [clients, d,
    d] and their summed squares [clients], both in float64. None where no kernel can."""
    kernel = kernel_for("moments", chunk.world) if chunk.data.single and chunk.data.negatives else None
    if kernel is None:
        return None
    clients, _, d = tables.shape
    scatter, size = torch.empty(clients, d, d, dtype=torch.float64), torch.empty(clients, dtype=torch.float64)
    key = np.uint64(chunk.secret.stream(Purpose.NEGATIVES, round))
    blocks = blocks_of(samples_of(chunk), 0)
    kernel(data_of(chunk), chunk.data.negatives, key, tables, blocks, scatter, size)
    return scatter, size


def data_of(chunk: Chunk) -> Data:
    data = chunk.data
    return Data(
        chunk.clients,
        chunk.places,
        data.users,
        data.user_ptr,
        data.items,
        data.pool.indptr,
        data.pool.gap,
        data.unique == "user",
    )


def keys_of(chunk: Chunk, round: int) -> Keys:
    return Keys(*(np.uint64(chunk.secret.stream(purpose, round)) for purpose in (Purpose.NEGATIVES, Purpose.ORDER)))


def work_of(
    trainer: LocalTrainer,
    chunk: Chunk,
    round: int,
    user: Tensor,
    table: Tensor,
    weight: Tensor | None = None,
    own: Tensor | None = None,
) -> Work:
    """The work of a round on `user`, in place, and on `table`, in place where it is not shared."""
    world, shared = chunk.world, table.dim() == 2
    waits = shared and own is not None and chunk.later is not None and kernel_for("own_tables", world) is not None
    each = partial(torch.zeros, len(chunk.clients), device=world.device)
    return Work(
        trainer,
        chunk,
        user,
        table.unsqueeze(0) if shared else table,
        shared,
        # In double, as the sums that weights enter: rounded ones would not agree with the total that divides them.
        each(dtype=torch.float64) + 1 if weight is None else beside(weight.double(), world.device),
        blocks_of(samples_of(chunk), world.items if shared else 0),
        keys_of(chunk, round),
        each(dtype=torch.float64),
        each(dtype=torch.int64),
        table.new_empty(0, 0, 0) if own is None else own,
        table.new_empty((len(chunk.clients), world.items) if waits else (0, 0), dtype=torch.bool),
    )


def sum_blocks(parts: Tensor) -> Tensor:
    """Of all blocks, one after another in double precision."""
    if parts.device.type == "cpu":  # on the core that is awake: waking another one takes longer than the sum
        return torch.from_numpy(parts.numpy().sum(0, dtype=np.float64))
    return parts.sum(0, dtype=torch.float64)


def _factors(train: CompiledKernel, work: Work, dense: Tensors) -> tuple[Tensor, Tensors]:
    settings, items, rates = work.trainer.settings, work.chunk.world.items, work.trainer.rates
    total = work.tables.new_empty((items, settings.dim) if work.shared else (0, 0), dtype=torch.float64)
    arguments = FactorSettings(
        rate_user=float(rates["user"]),
        rate_item=float(rates["item"]),
        batch=settings.batch,
        epochs=settings.epochs,
        adam=settings.optimiser == "adam",
        mean=settings.reduction == "mean",
        early_exit=float(settings.early_exit),
        pull=float(work.trainer.pull),
        phases=len(work.trainer.phases),
    )
    train(
        work.data(),
        items,
        work.chunk.data.negatives,
        settings.loss == "bpr",
        work.keys,
        arguments,
        work.user,
        work.tables,
        work.shared,
        work.own,
        work.changed,
        work.weight,
        work.blocks,
        total,
        work.loss,
        work.seen,
    )
    return total, dense


def pack(model: NCF, dense: Tensors) -> tuple[Tensor, Layers]:
    """The weights of every client in one run, and where its layers lie there."""
    shapes, widths = model.dense_shapes(), model.sizes()
    # One run of numbers per client, so that a kernel needs a single pointer and a client's weights lie side by side.
    flat = torch.cat([dense[name].flatten(1) for name in shapes], 1)
    starts = [0, *accumulate(math.prod(shape) for shape in shapes.values())][::2]  # a weight and its bias are one layer
    heights = [0, *accumulate([model.dim, *widths[1:]])]
    return flat, Layers(*(np.array(numbers, dtype=np.int64) for numbers in (widths, starts, heights)))


def unpack(model: NCF, flat: Tensor) -> Tensors:
    shapes = model.dense_shapes()
    split = zip(shapes.items(), flat.split([math.prod(shape) for shape in shapes.values()], 1), strict=True)
    return {name: part.reshape(-1, *shape).contiguous() for (name, shape), part in split}


def network_settings(trainer: LocalTrainer) -> NetworkSettings:
    settings, rates = trainer.settings, trainer.rates
    return NetworkSettings(
        rate_user=float(rates["user"]),
        rate_item=float(rates["item"]),
        rate_dense=float(rates["dense"]),
        decay=float(settings.weight_decay_dense),
        batch=settings.batch,
        epochs=settings.epochs,
        adam=settings.optimiser == "adam",
        mean=settings.reduction == "mean",
        early_exit=float(settings.early_exit),
        phases=len(trainer.phases),
    )


def _network(train: CompiledKernel, work: Work, dense: Tensors) -> tuple[Tensor, Tensors]:
    model, data = work.trainer.model, work.chunk.data
    assert isinstance(model, NCF)
    flat, net = pack(model, dense)
    parts = work.parts()
    train(
        work.data(),
        work.chunk.world.items,
        data.negatives,
        work.trainer.settings.loss == "bpr",
        work.keys,
        network_settings(work.trainer),
        net,
        work.user,
        work.tables,
        flat,
        work.shared,
        work.own,
        work.changed,
        work.weight,
        work.blocks,
        parts,
        work.loss,
        work.seen,
    )
    return sum_blocks(parts), unpack(model, flat)


def heads_of(dense: Tensors) -> tuple[Tensor, Tensor]:
    """Of a linear scorer, to be trained in place."""
    weight, bias = (dense[name].flatten(1).clone() for name in ("weight0", "bias0"))
    return weight, bias


def head_settings(trainer: LocalTrainer) -> HeadSettings:
    settings, rates = trainer.settings, trainer.rates
    return HeadSettings(
        rate_head=float(rates["dense"]),
        rate_row=float(rates["item"]),
        decay=float(settings.weight_decay_dense),
        batch=settings.batch,
        epochs=settings.epochs,
        mean=settings.reduction == "mean",
        early_exit=float(settings.early_exit),
        in_turn=len(trainer.phases) > 1,
        saturate=trainer.saturation == "released",
    )


def _linear(train: CompiledKernel, work: Work, dense: Tensors) -> tuple[Tensor, Tensors]:
    (head, bias), parts = heads_of(dense), work.parts()
    train(
        work.data(),
        work.chunk.world.items,
        work.chunk.data.negatives,
        work.keys,
        head_settings(work.trainer),
        head,
        bias,
        work.tables,
        work.shared,
        work.own,
        work.changed,
        work.weight,
        work.blocks,
        parts,
        work.loss,
        work.seen,
    )
    return sum_blocks(parts), {"weight0": head.view_as(dense["weight0"]), "bias0": bias}


def steepest(settings: LocalMethod) -> bool:
    return settings.optimiser == "sgd" and settings.loss == "bce"


KERNELS: dict[type, Kernel] = {
    MF: Kernel("mf", _factors, pulls=("adam",)),
    NCF: Kernel("ncf", _network),
    Linear: Kernel("linear", _linear, only=steepest, saturates=True),
}


def samples_of(chunk: Chunk) -> np.ndarray:
    """How many each client has in an epoch."""
    return chunk.positives * (1 + chunk.data.negatives)


def blocks_of(samples: np.ndarray, rows: int) -> np.ndarray:
    """Boundaries of runs of clients with about equal work, for tables of `rows` rows that every block has to copy.

    Depends on the data alone, so that sums do not depend on the number of cores.
    """
    # By samples and not by clients: a few clients have most of the work, and the slowest block decides.
    done = np.cumsum(samples)
    worth = int(done[-1]) // (SAMPLES_PER_ROW * rows) if rows else BLOCKS
    count = min(BLOCKS, max(2, 1 << max(0, worth.bit_length() - 1)))  # powers of two spread evenly over cores
    inner = np.searchsorted(done, np.arange(1, count) * (done[-1] / count))
    # A client larger than a block's share gives the same boundary twice, which would be a block of nobody.
    return np.unique(np.concatenate([[0], inner, [len(samples)]]))
