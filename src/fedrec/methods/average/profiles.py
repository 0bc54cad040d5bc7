"""Profiles of clients, by which servers cluster them without their user vectors."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from fedrec import method as fm
from fedrec.methods.cluster.kmeans import kmeans


def profiles(tables: Tensor, chunk: fm.Chunk) -> Tensor:
    """The mean row of every client's training items, in its own table; zero without items."""
    owner = chunk.tensor(np.repeat(np.arange(len(chunk.clients)), chunk.positives))
    rows = tables[owner, chunk.tensor(chunk.items)]
    total = tables.new_zeros(len(chunk.clients), tables.shape[-1]).index_add_(0, owner, rows)
    return total / chunk.tensor(chunk.positives).clamp(min=1)[:, None]


def cluster(points: Tensor, count: int, key: int) -> Tensor:
    """Return a label below `count` for every point."""
    # visited in an order of their values, so that the numbering of clients does not matter
    order = points[:, 0].argsort(stable=True)
    labels, _ = kmeans(points[order], min(count, len(points)), key)
    return torch.empty_like(labels).index_copy_(0, order, labels)
