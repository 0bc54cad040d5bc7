"""What methods for new items share: initial values, one layer on attributes, neighbours by attributes."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

from fedrec.errors import FedrecError
from fedrec.federation.contract import Tensors, World
from fedrec.random import Purpose, fold, fold_tensor, normal, stream, uniform

USER, ITEM, DENSE, META = 0, 1, 2, 3  # streams of initial values
WIDE = 300  # columns of attributes that memory is planned for


def require_attributes(attributes: Tensor | None, name: str) -> Tensor:
    if attributes is None:
        raise FedrecError(f"{name} needs item attributes; use --protocol ifedrec with data that has some")
    return attributes


def normal_rows(world: World, kind: int, rows: int, dim: int, std: float = 1.0) -> Tensor:
    """[rows, dim] of N(0, std^2)."""
    draws = normal(stream(world.seed, Purpose.INIT, kind), torch.arange(rows * dim), world.dtype)
    return (std * draws).reshape(rows, dim).to(world.device)


def uniform_layers(world: World, kind: int, shapes: Mapping[str, tuple[int, ...]]) -> Tensors:
    """Weights uniform within 1 / sqrt(fan-in); a bias has the fan-in of the weight before it."""
    layers, fan_in = {}, 1
    for index, (name, shape) in enumerate(shapes.items()):
        fan_in = shape[-1] if len(shape) > 1 else fan_in
        key = fold(stream(world.seed, Purpose.INIT, kind), index)
        draws = uniform(fold_tensor(key, torch.arange(int(np.prod(shape)))), world.dtype)
        layers[name] = ((2 * draws - 1) / fan_in**0.5).reshape(shape).to(world.device)
    return layers


def meta_gradients(attributes: Tensor, target: Tensor, weight: Tensor, bias: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The mean of (tanh(W x_v + b) - target_v)^2 over all entries, and its gradients for W and b."""
    r = torch.tanh(attributes @ weight.T + bias)
    away = r - target
    back = (2 / away.numel()) * away * (1 - r.square())
    return away.square().mean(), back.T @ attributes, back.sum(0)


def adam(value: Tensor, gradient: Tensor, first: Tensor, second: Tensor, step: int, rate: float) -> None:
    """One step in place, moments included."""
    first.mul_(0.9).add_(gradient, alpha=0.1)
    second.mul_(0.999).addcmul_(gradient, gradient, value=0.001)
    value -= rate * (first / (1 - 0.9**step)) / ((second / (1 - 0.999**step)).sqrt() + 1e-8)


def scored_once(rows: Tensor) -> tuple[Tensor, Tensor]:
    """The distinct rows and which of them each row is: equal items must tie to the last bit, wherever they stand."""
    distinct, which = torch.unique(rows, dim=0, return_inverse=True)
    return distinct, which


def neighbours(attributes: Tensor, warm: int, items: Tensor, count: int) -> Tensor:
    """[items, count] the warm items with the largest cosine of attributes, lower numbers first among equals."""
    unit = torch.nn.functional.normalize(attributes.double(), dim=1)
    best = [(unit[part] @ unit[:warm].T).sort(dim=1, descending=True, stable=True).indices[:, :count]
            for part in items.split(1024)]  # fmt: skip
    return torch.cat(best) if best else torch.zeros(0, count, dtype=torch.int64)


def with_neighbours(attributes: Tensor | None, warm: int, count: int, name: str) -> Tensors:
    """What a server keeps that replaces new items by known ones: `near` has a row for each item beyond the warm."""
    x = require_attributes(attributes, name)
    cold = torch.arange(warm, len(x), device=x.device)
    return {"attributes": x, "near": neighbours(x, warm, cold, min(count, warm))}


def neighbour_rows(table: Tensor, near: Tensor, items: Tensor) -> Tensor:
    """The rows of warm items as they are; of others the mean of their neighbours' rows."""
    rows, known = table.new_empty(len(items), table.shape[1]), items < len(table)
    rows[known] = table[items[known]]
    rows[~known] = table[near[items[~known] - len(table)]].mean(1)
    return rows
