"""What personalised aggregation is made of: inner products and distances of whole tables, the simplex, mixtures.

Pure functions of tensors. The leading axis of a stack is the client. Whole tables are multiplied in their own type,
everything else is float64 whatever comes in.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

BLOCK = 1 << 21  # float64 numbers held at once by an operation that goes in blocks (16 MiB)
BLOCK_ON_GPU = 1 << 26  # where many small blocks would be more launches than work
STRIPS = 4  # of rows, of a matrix of which half is needed


def simplex_project(points: Tensor) -> Tensor:
    """The nearest point of the probability simplex to every row, by sorting."""
    x = points.double()
    x = x - x.amax(-1, keepdim=True)  # a constant changes nothing, and this one keeps sums small
    ordered = x.sort(-1, descending=True).values
    rank = torch.arange(1, x.shape[-1] + 1, dtype=x.dtype, device=x.device)
    threshold = (ordered.cumsum(-1) - 1) / rank
    support = (ordered > threshold).sum(-1, keepdim=True)
    return (x - threshold.gather(-1, support - 1)).clamp(min=0)


def inner_products(stack: Tensor, centred: bool = False) -> Tensor:
    """Of all pairs of clients, multiplied in the type they have; block sums in float64. `centred`: less their mean.

    The matrix is symmetric: little more than the half below the diagonal is computed.
    """
    flat = stack.flatten(1)
    strip = -(-len(flat) // STRIPS)
    gram = torch.zeros(len(flat), len(flat), dtype=torch.float64, device=flat.device)
    for columns in blocks_of(flat.shape[1], len(flat)):
        part = flat[:, columns] - flat[:, columns].mean(0) if centred else flat[:, columns]
        for start in range(0, len(part), strip):
            rows, so_far = slice(start, start + strip), slice(start + strip)
            gram[rows, so_far] += part[rows] @ part[so_far].T
    below = gram.tril(-1)
    return gram.diagonal().diag() + below + below.T


def square_distances(stack: Tensor) -> Tensor:
    """Squared Euclidean distances between all pairs, from inner products.

    What all have in common is taken off first: tables differ by far less than they are long.
    """
    gram = inner_products(stack, centred=True)
    norm = gram.diagonal()
    return (norm[:, None] + norm[None] - 2 * gram).clamp(min=0).fill_diagonal_(0)


def cosines(stack: Tensor) -> Tensor:
    """Between all pairs, 1 with oneself; 0 with a client that is zero throughout."""
    gram = inner_products(stack)
    norm = gram.diagonal().sqrt()
    scale = torch.where(norm > 0, norm, torch.ones_like(norm))
    return (gram / (scale[:, None] * scale[None])).fill_diagonal_(1)


def mix(weights: Tensor, stack: Tensor) -> Tensor:
    """Every client's own weighted sum of all, in the type of the stack."""
    return (weights.to(stack.dtype) @ stack.flatten(1)).reshape(len(weights), *stack.shape[1:])


def block_on(device: torch.device) -> int:
    return BLOCK if device.type == "cpu" else BLOCK_ON_GPU


def blocks_of(count: int, each: int, block: int | None = None) -> Iterator[slice]:
    """Runs of things that take `each` numbers, so that a run stays within the block size."""
    step = max(1, (block or BLOCK) // max(1, each))
    for start in range(0, count, step):
        yield slice(start, min(start + step, count))


NOBODY = torch.iinfo(torch.int64).max  # behind all clients, where fewer arrived than there is room for


def in_room(values: Tensor, room: Tensor, empty: int = 0) -> Tensor:
    """Values of those who arrived at the front of a room for all who were asked: a server keeps its shapes."""
    filled = torch.full_like(room, empty)
    filled[: len(values)] = values
    return filled
