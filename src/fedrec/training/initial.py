"""Initial values: functions of the seed and of whom they are for, never of a batch."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from fedrec.federation.contract import Tensors, World
from fedrec.federation.secret import Secret
from fedrec.random import Purpose, fold, fold_tensor, normal, stream, uniform

USER, ITEM, DENSE = 0, 1, 2  # streams of initial values
Start = Literal["user", "item", "network", "attributes"]
STREAMS: dict[Start, int] = {"user": USER, "item": ITEM, "network": DENSE, "attributes": 3}


def initial_key(world: World, *where: int) -> int:
    return stream(world.seed, Purpose.INIT, *where)


def user_keys(world: World, users: np.ndarray, secret: Secret | None = None) -> Tensor:
    """One per user, in a column; without their `secret` from what everybody knows."""
    # With a secret the server cannot compute where a user vector began, and so not what an upload was trained from.
    key = initial_key(world, USER) if secret is None else secret.stream(Purpose.INIT, USER)
    return fold_tensor(key, torch.from_numpy(users.astype(np.int64)))[:, None]


def normal_values(world: World, key: Tensor | int, position: Tensor, std: float) -> Tensor:
    return (std * normal(key, position, world.dtype)).to(world.device)


def uniform_values(world: World, key: Tensor | int, position: Tensor, width: int) -> Tensor:
    """Within 1 / sqrt(width)."""
    draws = uniform(fold_tensor(key, position), world.dtype)
    return ((2 * draws - 1) / width**0.5).to(world.device)


def normal_rows(world: World, key: int, rows: int, dim: int, std: float = 1.0) -> Tensor:
    """[rows, dim] of N(0, std^2)."""
    return normal_values(world, key, torch.arange(rows * dim), std).reshape(rows, dim)


def draw_rows(world: World, what: Start, rows: int, dim: int, std: float = 1.0) -> Tensor:
    """Draw what a server starts from: [rows, dim] of N(0, std^2)."""
    return normal_rows(world, initial_key(world, STREAMS[what]), rows, dim, std)


def draw_layers(world: World, what: Start, shapes: Mapping[str, tuple[int, ...]]) -> Tensors:
    """Draw what a server starts from: the weights and biases of layers, as `fan_in_uniform` has them."""
    return fan_in_uniform(world, initial_key(world, STREAMS[what]), shapes)


def fan_in_uniform(world: World, key: int, shapes: Mapping[str, tuple[int, ...]], axis: int = -1) -> Tensors:
    """Weights within 1 / sqrt(fan-in), which is their size along `axis`; a bias has that of the weight before it."""
    made, fan_in = {}, 1
    for index, (name, shape) in enumerate(shapes.items()):
        fan_in = shape[axis] if len(shape) > 1 else fan_in
        made[name] = uniform_values(world, fold(key, index), torch.arange(math.prod(shape)), fan_in).reshape(shape)
    return made
