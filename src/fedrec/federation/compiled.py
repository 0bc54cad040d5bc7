"""The bridge from tensors to the compiled kernels: which backbone has one, and how it is called."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from fedrec.federation.clients import Chunk
from fedrec.federation.contract import Folded, Tensors
from fedrec.models import MF, NCF, Backbone, Linear
from fedrec.random import Purpose, stream

if TYPE_CHECKING:
    from fedrec.federation.training import Fitted, LocalTraining

BLOCKS = 16  # parallel parts of a chunk, at most
SAMPLES_PER_ROW = 16  # samples that make up for a block's own copy of one table row


@dataclass
class Work:
    """What every kernel takes. `user`, `tables` where they are personal, `loss` and `seen` are written to."""

    method: LocalTraining
    chunk: Chunk
    user: np.ndarray
    tables: np.ndarray  # [clients, items, d], or [1, items, d] where the start is shared
    shared: bool
    weight: np.ndarray
    blocks: np.ndarray
    keys: np.ndarray
    loss: np.ndarray
    seen: np.ndarray
    own: np.ndarray  # [clients, items, d] for each client's table after a shared start, or empty

    def data(self) -> tuple[np.ndarray | bool, ...]:
        data = self.chunk.data
        return (self.chunk.clients, self.chunk.places, data.users, data.user_ptr, data.items, data.pool.indptr,
                data.pool.gap, data.unique == "user")  # fmt: skip


@dataclass(frozen=True)
class Kernel:
    """`train` returns the weighted sum of the changes of a shared table, and the dense weights that it trained."""

    train: Callable[[Work, Tensors], tuple[np.ndarray, Tensors]]
    pulls: tuple[str, ...] = ()  # optimisers with which it can pull rows back to the start: those that visit them all
    only: Callable[[LocalTraining], bool] = lambda method: True  # whether it knows these settings
    saturates: bool = False  # whether it knows scores that pass a sigmoid in single precision


def kernel_of(model: Backbone) -> Kernel | None:
    return KERNELS.get(type(model))


def fit_compiled(kernel: Kernel, method: LocalTraining, chunk: Chunk, round: int, user: Tensor, table: Tensor,
                 dense: Tensors, weight: Tensor | None, own: Tensor | None = None) -> Fitted:  # fmt: skip
    from fedrec.federation.training import Fitted

    shared, trained = table.dim() == 2, user.clone(memory_format=torch.contiguous_format)
    work = work_of(method, chunk, round, trained, table, weight, own)
    total, dense = kernel.train(work, dense)
    chunk.observe("loss", float(work.loss.sum()), int(work.seen.sum()))
    return Fitted(trained, Folded(table, torch.from_numpy(total), len(chunk.clients)) if shared else table, dense)


def work_of(method: LocalTraining, chunk: Chunk, round: int, user: Tensor, table: Tensor,
            weight: Tensor | None = None, own: Tensor | None = None) -> Work:  # fmt: skip
    """The work of a round on `user`, in place, and on `table`, in place where it is not shared."""
    world, count, shared = chunk.world, len(chunk.clients), table.dim() == 2
    return Work(
        method,
        chunk,
        user.numpy(),
        (table.unsqueeze(0) if shared else table).numpy(),
        shared,
        np.ones(count) if weight is None else weight.double().numpy(),
        _blocks(chunk.positives * (1 + chunk.data.negatives), world.items if shared else 0),
        np.array([stream(world.seed, purpose, round) for purpose in (Purpose.NEGATIVES, Purpose.ORDER)], np.uint64),
        np.zeros(count),
        np.zeros(count, dtype=np.int64),
        (table.new_empty(0, 0, 0) if own is None else own).numpy(),
    )


def _factors(work: Work, dense: Tensors) -> tuple[np.ndarray, Tensors]:
    from fedrec.federation.kernels import train_clients

    method, items, rates = work.method, work.chunk.world.items, work.method.rates()
    total = np.empty((items, method.dim) if work.shared else (0, 0))
    hyper = (float(rates["user"]), float(rates["item"]), method.batch, method.epochs, method.optimiser == "adam",
             method.reduction == "mean", float(method.early_exit), float(method.pull()),
             len(method.phases))  # fmt: skip
    train_clients(work.data(), items, work.chunk.data.negatives, method.loss == "bpr", work.keys, hyper, work.user,
                  work.tables, work.shared, work.own, work.weight, work.blocks, total, work.loss,
                  work.seen)  # fmt: skip
    return total, dense


def _network(work: Work, dense: Tensors) -> tuple[np.ndarray, Tensors]:
    from fedrec.federation.ncf_kernels import train_networks

    method, items, rates = work.method, work.chunk.world.items, work.method.rates()
    assert isinstance(method.model, NCF)
    shapes, widths = method.model.dense_shapes(), method.model.sizes()
    flat = torch.cat([dense[name].flatten(1) for name in shapes], 1)
    sizes = [int(np.prod(shape)) for shape in shapes.values()]
    starts = [0, *accumulate(sizes)][::2]  # a weight and its bias are one layer
    heights = [0, *accumulate([method.dim, *widths[1:]])]
    net = tuple(np.array(numbers, dtype=np.int64) for numbers in (widths, starts, heights))
    hyper = (float(rates["user"]), float(rates["item"]), float(rates["dense"]), float(method.weight_decay_dense),
             method.batch, method.epochs, method.optimiser == "adam", method.reduction == "mean",
             float(method.early_exit), len(method.phases))  # fmt: skip
    parts = np.empty((len(work.blocks) - 1, items if work.shared else 0, method.dim), dtype=work.tables.dtype)
    train_networks(work.data(), items, work.chunk.data.negatives, method.loss == "bpr", work.keys, hyper, net,
                   work.user, work.tables, flat.numpy(), work.shared, work.own, work.weight, work.blocks, parts,
                   work.loss, work.seen)  # fmt: skip
    split = zip(shapes.items(), flat.split(sizes, 1), strict=True)
    trained = {name: part.reshape(-1, *shape).contiguous() for (name, shape), part in split}
    return parts.sum(0, dtype=np.float64), trained


def _linear(work: Work, dense: Tensors) -> tuple[np.ndarray, Tensors]:
    from fedrec.federation.linear_kernels import train_linear

    method, items, rates = work.method, work.chunk.world.items, work.method.rates()
    head, bias = (dense[name].flatten(1).clone() for name in ("weight0", "bias0"))
    hyper = (float(rates["dense"]), float(rates["item"]), float(method.weight_decay_dense), method.batch, method.epochs,
             method.reduction == "mean", float(method.early_exit), len(method.phases) > 1,
             method.saturation() == "released")  # fmt: skip
    parts = np.empty((len(work.blocks) - 1, items if work.shared else 0, method.dim), dtype=work.tables.dtype)
    train_linear(work.data(), items, work.chunk.data.negatives, work.keys, hyper, head.numpy(), bias.numpy(),
                 work.tables, work.shared, work.own, work.weight, work.blocks, parts, work.loss, work.seen)  # fmt: skip
    return parts.sum(0, dtype=np.float64), {"weight0": head.view_as(dense["weight0"]), "bias0": bias}


def _steepest(method: LocalTraining) -> bool:
    return method.optimiser == "sgd" and method.loss == "bce"


KERNELS: dict[type, Kernel] = {
    MF: Kernel(_factors, pulls=("adam",)),
    NCF: Kernel(_network),
    Linear: Kernel(_linear, only=_steepest, saturates=True),
}


def _blocks(samples: np.ndarray, rows: int) -> np.ndarray:
    """Boundaries of runs of clients with about equal work, for tables of `rows` rows that every block has to copy.

    Depends on the data alone, so that sums do not depend on the number of cores.
    """
    done = np.cumsum(samples)
    worth = int(done[-1]) // (SAMPLES_PER_ROW * rows) if rows else BLOCKS
    count = min(BLOCKS, max(2, 1 << max(0, worth.bit_length() - 1)))  # powers of two spread evenly over cores
    inner = np.searchsorted(done, np.arange(1, count) * (done[-1] / count))
    return np.unique(np.concatenate([[0], inner, [len(samples)]]))
