"""What methods for new items share: one layer on attributes, neighbours by attributes."""

from __future__ import annotations

import torch
from torch import Tensor

from fedrec.federation.contract import Tensors

META = 3  # stream of initial values, beside those of users, items and networks
WIDE = 300  # columns of attributes that memory is planned for


def meta_gradients(attributes: Tensor, target: Tensor, weight: Tensor, bias: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """IFedRec's (5) over d: the mean of (tanh(W x_v + b) - target_v)^2 over all entries; its gradients for W and b."""
    r = torch.tanh(attributes @ weight.T + bias)
    away = r - target
    back = (2 / away.numel()) * away * (1 - r.square())
    return away.square().mean(), back.T @ attributes, back.sum(0)


def scored_once(rows: Tensor) -> tuple[Tensor, Tensor]:
    """The distinct rows and which of them each row is: equal items must tie to the last bit, wherever they stand."""
    distinct, which = torch.unique(rows, dim=0, return_inverse=True)
    return distinct, which


def neighbours(attributes: Tensor, warm: int, items: Tensor, count: int) -> Tensor:
    """[items, count] the warm items with the largest cosine of attributes, lower numbers first among equals."""
    unit = torch.nn.functional.normalize(attributes.double(), dim=1)
    best = [
        (unit[part] @ unit[:warm].T).sort(dim=1, descending=True, stable=True).indices[:, :count]
        for part in items.split(1024)
    ]
    return torch.cat(best) if best else torch.zeros(0, count, dtype=torch.int64)


def with_neighbours(attributes: Tensor, warm: int, count: int) -> Tensors:
    """What a server keeps that replaces new items by known ones: `near` has a row for each item beyond the warm."""
    cold = torch.arange(warm, len(attributes), device=attributes.device)
    return {"attributes": attributes, "near": neighbours(attributes, warm, cold, min(count, warm))}


def neighbour_rows(table: Tensor, near: Tensor, items: Tensor) -> Tensor:
    """The rows of warm items as they are; of others the mean of their neighbours' rows."""
    rows, known = table.new_empty(len(items), table.shape[1]), items < len(table)
    rows[known] = table[items[known]]
    rows[~known] = table[near[items[~known] - len(table)]].mean(1)
    return rows
