"""What personalised aggregation is made of: inner products and distances of whole tables, the simplex, mixtures.

Pure functions of tensors. The leading axis of a stack is the client. Whole tables are multiplied in their own type,
everything else is float64 whatever comes in.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from fedrec import method as fm
from fedrec.training.compiled import to_device

# Bounds what is held beside the stack, however many clients there are.
BLOCK = 1 << 21  # float64 numbers held at once by an operation that goes in blocks (16 MiB)
BLOCK_ON_GPU = 1 << 26  # where many small blocks would be more launches than work
# Larger than other blocks, because products of matrices gain by size.
PRODUCTS = 1 << 23  # numbers whose inner products are formed at once
STRIPS = 4  # of rows, of a matrix of which half is needed


def simplex_project(points: Tensor) -> Tensor:
    """The nearest point of the probability simplex to every row, by sorting."""
    found = torch.empty_like(points, dtype=torch.float64)
    for some in blocks_of(len(points), points.shape[-1], block_on(points.device)):
        found[some] = _project(points[some].double())
    return found


def _project(x: Tensor) -> Tensor:
    x = x - x.amax(-1, keepdim=True)  # a constant changes nothing, and this one keeps sums small
    ordered = x.sort(-1, descending=True).values
    rank = torch.arange(1, x.shape[-1] + 1, dtype=x.dtype, device=x.device)
    threshold = (ordered.cumsum(-1) - 1) / rank
    support = (ordered > threshold).sum(-1, keepdim=True).clamp(min=1)  # of numbers that are not finite it is empty
    return (x - threshold.gather(-1, support - 1)).clamp(min=0)


def inner_products(tables: Tensor | fm.Stack, centred: bool = False, less: Tensor | None = None) -> Tensor:
    """Of all pairs of clients, multiplied in the type they have; block sums in float64.

    `centred`: of what they are beyond their mean; `less`: beyond this table. The matrix is symmetric: about half of it
    is computed.
    """
    stack = fm.Stack.wrap(tables)
    # In double across blocks: distances between tables are small differences of these sums.
    gram = torch.zeros(len(stack), len(stack), dtype=torch.float64, device=stack.device)
    for columns in blocks_of(stack.width, len(stack), PRODUCTS):
        part = stack.columns(columns)
        if centred or less is not None:
            part = part - (part.mean(0) if less is None else less.flatten()[columns])
        _add_products(part, gram)
    return gram if gram.device.type == "cpu" else _mirror(gram)


def _add_products(part: Tensor, gram: Tensor) -> None:
    """Of all pairs of rows; on an accelerator little more than the half below the diagonal."""
    if gram.device.type == "cpu":  # numpy knows a product with its own transpose, and computes half of it
        gram += torch.from_numpy(part.numpy() @ part.numpy().T)
        return
    strip = -(-len(part) // STRIPS)
    for start in range(0, len(part), strip):
        rows, so_far = slice(start, start + strip), slice(start + strip)
        gram[rows, so_far] += part[rows] @ part[so_far].T


def _mirror(gram: Tensor) -> Tensor:
    """With what is below the diagonal above it too, in place, some columns at a time."""
    for some in blocks_of(len(gram), len(gram), block_on(gram.device)):
        square = gram[some, some].tril()
        gram[some, some] = square + square.tril(-1).T
        gram[some, some.stop :] = gram[some.stop :, some].T
    return gram


def square_distances(tables: Tensor | fm.Stack) -> Tensor:
    """Squared Euclidean distances between all pairs, from inner products.

    What all have in common is taken off first: tables differ by far less than they are long.
    """
    gram = inner_products(tables, centred=True)
    norm = gram.diagonal().clone()
    # In place: with thousands of clients every further matrix of all pairs counts.
    return gram.mul_(-2).add_(norm[:, None]).add_(norm).clamp_(min=0).fill_diagonal_(0)


def cosines(tables: Tensor | fm.Stack) -> Tensor:
    """Between all pairs, 1 with oneself; 0 with a client that is zero throughout."""
    return to_cosines(inner_products(tables)).fill_diagonal_(1)


def to_cosines(gram: Tensor) -> Tensor:
    """Inner products to cosines, in place; those of a client that is zero throughout stay 0."""
    norm = gram.diagonal().sqrt()
    # 1 in place of 0: products with such a client are 0 already, and stay so.
    scale = torch.where(norm > 0, norm, torch.ones_like(norm))
    for some in blocks_of(len(gram), len(gram), block_on(gram.device)):
        gram[some] /= scale[some, None] * scale
    return gram


def mix(weights: Tensor, tables: Tensor | fm.Stack) -> Tensor:
    """Every client's own weighted sum of all, in the type of the tables."""
    stack = fm.Stack.wrap(tables)
    mixed = torch.empty(len(weights), *stack.shape[1:], dtype=stack.dtype, device=stack.device)
    by, flat = weights.to(stack.dtype), mixed.flatten(1)
    for columns in blocks_of(stack.width, len(stack), block_on(stack.device)):
        if stack.device.type == "cpu":  # by its own library: on an AMD core 1.3 times as fast as torch's
            np.matmul(by.numpy(), stack.columns(columns).numpy(), out=flat.numpy()[:, columns])
        else:
            flat[:, columns] = by @ stack.columns(columns)
    return mixed


def block_on(device: torch.device) -> int:
    return BLOCK if device.type == "cpu" else BLOCK_ON_GPU


def blocks_of(count: int, each: int, block: int | None = None) -> Iterator[slice]:
    """Runs of things that take `each` numbers, so that a run stays within the block size."""
    step = max(1, (block or BLOCK) // max(1, each))
    for start in range(0, count, step):
        yield slice(start, min(start + step, count))


NOBODY = torch.iinfo(torch.int64).max  # behind all clients, where fewer arrived than there is room for


@dataclass(frozen=True)
class Mixtures:
    """One mixture of all models for every aggregated client, kept by the server under `prefix` until it is sent.

    There is room for all who are asked, so that a checkpoint has the same shapes whenever it is taken.
    """

    names: Sequence[str]
    prefix: str = "mixed."

    def init(self, world: fm.World, model: fm.Tensors, fraction: float) -> fm.Tensors:
        count = fm.part_of(len(fm.participants(world, 0, world.participation)), fraction)
        rooms = {self.prefix + name: value.new_zeros(count, *value.shape) for name, value in model.items()}
        return rooms | {"clients": torch.full((count,), NOBODY)}  # on the host, which looks them up

    def store(self, server: fm.Tensors, ups: fm.Ups, weights: Tensor) -> fm.Tensors:
        """Mix the models by a row of weights for each client, or by one row for all."""
        rooms = {}
        for name in self.names:
            models, room = ups.stack(name), self.prefix + name
            rooms[room] = _fill(server[room], mix(weights, models).expand(models.shape))
        clients = torch.from_numpy(ups.stack(self.names[0]).clients)
        return rooms | {"clients": _fill(server["clients"], clients, NOBODY)}

    def answer(self, server: fm.Tensors, arrived: np.ndarray) -> fm.Answer:
        """Send to everybody who was aggregated the own mixture."""

        def make(clients: np.ndarray) -> fm.Down:
            rows = np.searchsorted(server["clients"].cpu().numpy(), clients)
            at = to_device(rows, server[self.prefix + self.names[0]].device)
            return fm.Down(own={name: server[self.prefix + name][at] for name in self.names})

        return fm.Answer(arrived, make)


def _fill(room: Tensor, values: Tensor, empty: int = 0) -> Tensor:
    """Put values of those who arrived at the front of a room for all who were asked."""
    if values.shape == room.shape:
        return values.contiguous()
    filled = torch.full_like(room, empty)
    filled[: len(values)] = values
    return filled
