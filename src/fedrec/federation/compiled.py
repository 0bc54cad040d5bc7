"""The bridge from tensors to the compiled kernels."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from fedrec.federation.clients import Chunk
from fedrec.federation.contract import Folded
from fedrec.federation.kernels import train_clients
from fedrec.random import Purpose, stream

if TYPE_CHECKING:
    from fedrec.federation.training import Fitted, LocalTraining

BLOCKS = 16  # parallel parts of a chunk, at most
SAMPLES_PER_ROW = 16  # samples that make up for a block's own copy of one table row


def fit_compiled(method: LocalTraining, chunk: Chunk, round: int, user: Tensor, table: Tensor,
                 weight: Tensor | None) -> Fitted:  # fmt: skip
    from fedrec.federation.training import Fitted

    data, world, count = chunk.data, chunk.world, len(chunk.clients)
    shared = table.dim() == 2
    tables = table.unsqueeze(0) if shared else table
    trained = user.clone(memory_format=torch.contiguous_format)
    blocks = _blocks(chunk.positives * (1 + data.negatives), world.items if shared else 0)
    total = np.empty((world.items, method.dim) if shared else (0, 0))
    loss, seen = np.zeros(count), np.zeros(count, dtype=np.int64)
    rates = method.rates()
    hyper = (float(rates["user"]), float(rates["item"]), method.batch, method.epochs, method.optimiser == "adam",
             method.reduction == "mean", float(method.early_exit), float(method.pull()))  # fmt: skip
    keys = np.array(
        [stream(world.seed, Purpose.NEGATIVES, round), stream(world.seed, Purpose.ORDER, round)], dtype=np.uint64
    )
    weights = np.ones(count) if weight is None else weight.double().numpy()
    train_clients(chunk.clients, chunk.places, data.users, data.user_ptr, data.items, data.pool.indptr, data.pool.gap,
                  world.items, data.negatives, method.loss == "bpr", keys, hyper, trained.numpy(), tables.numpy(),
                  shared, weights, blocks, total, loss, seen)  # fmt: skip
    chunk.observe("loss", float(loss.sum()), int(seen.sum()))
    if not shared:
        return Fitted(trained, table)
    return Fitted(trained, Folded(table, torch.from_numpy(total), count))


def _blocks(samples: np.ndarray, rows: int) -> np.ndarray:
    """Boundaries of runs of clients with about equal work, for tables of `rows` rows that every block has to copy.

    Depends on the data alone, so that sums do not depend on the number of cores.
    """
    done = np.cumsum(samples)
    worth = int(done[-1]) // (SAMPLES_PER_ROW * rows) if rows else BLOCKS
    count = min(BLOCKS, max(2, 1 << max(0, worth.bit_length() - 1)))  # powers of two spread evenly over cores
    inner = np.searchsorted(done, np.arange(1, count) * (done[-1] / count))
    return np.unique(np.concatenate([[0], inner, [len(samples)]]))
