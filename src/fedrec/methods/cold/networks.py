"""Networks on factors that were trained beforehand: what is asked of one, and the pieces they are made of."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

import torch
from torch import Tensor
from torch.nn import functional as F

from fedrec.federation.clients import Chunk
from fedrec.federation.contract import Tensors
from fedrec.random import Purpose, fold_tensor, permute, stream, to_signed, uniform

SEEN = (".mean", ".variance")  # of a batch norm: running figures, not trained


class Network(Protocol):
    """Its weights `w` come by name, with what its batch norms have seen and what its optimiser remembers."""

    @property
    def memory(self) -> tuple[str, ...]:
        """Prefixes of the names under which the optimiser remembers a weight."""
        ...

    @property
    def norms(self) -> tuple[str, ...]:
        """Names of its batch norms, all as wide as the factors."""
        ...

    def layers(self, width: int) -> dict[str, tuple[int, ...]]:
        """Return the shapes of its weights, each with the bias that follows, for attributes of this width."""
        ...

    def prepare(self, user: Tensor, item: Tensor) -> tuple[Tensor, Tensor]:
        """Return the factors as it sees them."""
        ...

    def epoch(self, chunk: Chunk, round: int, w: Tensors, user: Tensor, item: Tensor, attributes: Tensor) -> None:
        """Train for one epoch, in place."""
        ...

    def vectors(self, w: Tensors, user: Tensor, attributes: Tensor) -> tuple[Tensor, Tensor]:
        """Return the vectors of users and of items with these attributes; their inner product is the score."""
        ...


def batch_norm(x: Tensor, w: Tensors, name: str, training: bool, remember: bool = True) -> Tensor:
    """Normalise by the batch in training, which moves the running figures a tenth of the way; else by these."""
    seen = [w[name + ending] for ending in SEEN] if remember or not training else [None, None]
    return F.batch_norm(x, seen[0], seen[1], w[name + ".scale"], w[name + ".shift"], training, 0.1)  # torch's default


def affine(x: Tensor, w: Tensors, name: str) -> Tensor:
    """Apply the linear layer of that name."""
    return F.linear(x, w[name], w[name + "_bias"])


def drop_out(x: Tensor, part: float, key: int) -> Tensor:
    """Drop a part of the entries; enlarge the others by as much."""
    draws = uniform(fold_tensor(key, torch.arange(x.numel(), device=x.device)), x.dtype).reshape(x.shape)
    return x * (draws >= part) / (1 - part)


def leaves_of(w: Tensors, memory: tuple[str, ...]) -> Tensors:
    """Return the weights as leaves, without what batch norms have seen and optimisers remember."""
    names = [name for name in w if not name.endswith(SEEN) and not name.startswith(memory)]
    return {name: w[name].detach().requires_grad_() for name in names}


def shuffle_batches(chunk: Chunk, round: int, count: int, size: int) -> Iterator[Tensor]:
    """Yield the samples of an epoch in random order, batch by batch, but no batch of one: it has no variance."""
    device = chunk.world.device
    key = torch.tensor([to_signed(stream(chunk.world.seed, Purpose.ORDER, round))], device=device)
    place = torch.arange(count, device=device)
    order = permute(key, torch.tensor([count], device=device), place, torch.zeros_like(place))
    yield from (part for part in order.split(size) if len(part) > 1)


def positives(chunk: Chunk) -> tuple[Tensor, Tensor]:
    """Return users (places in the chunk) and items of all interactions."""
    users = torch.arange(len(chunk.places), device=chunk.world.device)
    return torch.repeat_interleave(users, chunk.tensor(chunk.user_ptr).diff()), chunk.tensor(chunk.items)
