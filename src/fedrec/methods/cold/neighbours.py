"""New items in the place of known ones: an item without a row is the mean of its nearest neighbours by attributes."""

from __future__ import annotations

import torch
from torch import Tensor

from fedrec.federation.contract import Tensors

AT_ONCE = 1024  # new items whose cosines with all others are held


def find_neighbours(attributes: Tensor, warm: int, items: Tensor, count: int) -> Tensor:
    """Return [items, count] warm items with the largest cosine of attributes, lower numbers first among equals."""
    unit = torch.nn.functional.normalize(attributes.double(), dim=1)
    best = [
        (unit[part] @ unit[:warm].T).sort(dim=1, descending=True, stable=True).indices[:, :count]
        for part in items.split(AT_ONCE)
    ]
    return torch.cat(best) if best else torch.zeros(0, count, dtype=torch.int64)


def neighbour_table(attributes: Tensor, warm: int, count: int) -> Tensors:
    """Return what a server needs to replace new items: `near` has a row for each item beyond the warm ones."""
    cold = torch.arange(warm, len(attributes), device=attributes.device)
    return {"attributes": attributes, "near": find_neighbours(attributes, warm, cold, min(count, warm))}


def rows_with_neighbours(table: Tensor, near: Tensor, items: Tensor) -> Tensor:
    """Return the rows of warm items as they are; of others the mean of their neighbours' rows."""
    rows, known = table.new_empty(len(items), table.shape[1]), items < len(table)
    rows[known] = table[items[known]]
    rows[~known] = table[near[items[~known] - len(table)]].mean(1)
    return rows
