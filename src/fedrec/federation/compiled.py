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

BLOCKS = 16  # parallel parts of a chunk; fixed, so that sums do not depend on the number of cores


def fit_compiled(method: LocalTraining, chunk: Chunk, round: int, user: Tensor, table: Tensor,
                 weight: Tensor | None) -> Fitted:  # fmt: skip
    from fedrec.federation.training import Fitted

    data, world, count = chunk.data, chunk.world, len(chunk.clients)
    shared = table.dim() == 2
    tables = table.unsqueeze(0) if shared else table
    trained = user.clone(memory_format=torch.contiguous_format)
    blocks = _blocks(chunk.positives)
    total = np.zeros((len(blocks) - 1, world.items, method.dim) if shared else (1, 1, 1), dtype=tables.numpy().dtype)
    loss = np.zeros(count)
    rates = method.rates()
    hyper = (float(rates["user"]), float(rates["item"]), method.batch, method.epochs, method.optimiser == "adam",
             method.reduction == "mean")  # fmt: skip
    keys = np.array(
        [stream(world.seed, Purpose.NEGATIVES, round), stream(world.seed, Purpose.ORDER, round)], dtype=np.uint64
    )
    weights = np.ones(count) if weight is None else weight.double().numpy()
    train_clients(chunk.clients, chunk.places, data.users, data.user_ptr, data.items, data.pool.indptr, data.pool.gap,
                  world.items, data.negatives, method.loss == "bpr", keys, hyper, trained.numpy(), tables.numpy(),
                  shared, weights, blocks, total, loss)  # fmt: skip
    per_positive = data.negatives + (1 if method.loss == "bce" else 0)
    chunk.observe("loss", float(loss.sum()), int(chunk.positives.sum()) * per_positive * method.epochs)
    if not shared:
        return Fitted(trained, table)
    return Fitted(trained, Folded(table, torch.from_numpy(total.sum(0, dtype=np.float64)), count))


def _blocks(work: np.ndarray) -> np.ndarray:
    """Boundaries of at most BLOCKS runs of clients with about equal work."""
    done = np.cumsum(work)
    targets = np.arange(1, BLOCKS) * (done[-1] / BLOCKS)
    inner = np.searchsorted(done, targets)
    return np.unique(np.concatenate([[0], inner, [len(work)]]))
