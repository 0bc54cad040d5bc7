"""Triples (user, liked item, other item) of silos: as many as the silo has interactions, users drawn uniformly.

A silo draws its triples once and goes through them in a new order every epoch, or draws new ones every round.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from fedrec.federation.clients import Chunk
from fedrec.random import Purpose, below, fold_tensor, permute
from fedrec.training.samples import allowed_item

USER, LIKED, OTHER = 0, 1, 2  # what is drawn for a triple


@dataclass(frozen=True)
class TripleBatch:
    """One step's triples of all clients, client after client, without padding.

    `user` counts the users of the chunk, `liked` and `other` are item nodes: client * items + item. `slot` is the index
    of a triple in a table of `clients` rows of `width`. `size` is each client's number of triples, zero for those whose
    epoch is over.
    """

    user: Tensor
    liked: Tensor
    other: Tensor
    owner: Tensor
    slot: Tensor
    size: Tensor
    width: int


class Triples:
    """The triples of a chunk's clients; `draw` is the round, or any constant where they stay the same."""

    def __init__(self, chunk: Chunk, draw: int) -> None:
        self.chunk = chunk
        world, positives = chunk.world, chunk.tensor(chunk.positives)
        owner = torch.repeat_interleave(torch.arange(len(positives), device=world.device), positives)
        index = torch.arange(len(owner), device=world.device) - (positives.cumsum(0) - positives)[owner]
        client = chunk.tensor(chunk.clients)[owner]
        key = fold_tensor(fold_tensor(chunk.secret.stream(Purpose.TRIPLES, draw), client), index)
        first = chunk.tensor(chunk.client_ptr)
        user = first[owner] + below(fold_tensor(key, USER), first.diff()[owner])
        start = chunk.tensor(chunk.user_ptr)
        # Dropped and not drawn again, so that a draw depends on its own key alone.
        kept = start.diff()[user] > 0  # a user without items is drawn in vain
        owner, user, key = owner[kept], user[kept], key[kept]
        liked = chunk.tensor(chunk.items)[start[user] + below(fold_tensor(key, LIKED), start.diff()[user])]
        other = allowed_item(chunk, user, below(fold_tensor(key, OTHER), self._pool()[user])[:, None])[:, 0]
        self.owner, self.user = owner, user
        self.liked, self.other = owner * world.items + liked, owner * world.items + other
        self.count = torch.bincount(owner, minlength=len(positives))

    def _pool(self) -> Tensor:
        """How many items each user's other item is drawn from."""
        excluded = np.diff(self.chunk.data.pool.indptr)[self.chunk.places]
        return self.chunk.tensor(self.chunk.world.items - excluded)

    def epoch(self, round: int, number: int, size: int) -> Iterator[TripleBatch]:
        """Every triple once, each client's in an order of its own, at most `size` of a client at a time."""
        chunk, device = self.chunk, self.owner.device
        start = self.count.cumsum(0) - self.count
        clients = chunk.tensor(chunk.clients)
        key = fold_tensor(fold_tensor(chunk.secret.stream(Purpose.ORDER, round), clients), number)
        position = torch.arange(len(self.owner), device=device) - start[self.owner]
        shuffled = start[self.owner] + permute(key, self.count, position, self.owner)
        for step in range(-(-int(self.count.max()) // size) if len(self.owner) else 0):
            here = position // size == step
            at, owner = shuffled[here], self.owner[here]
            counts = torch.bincount(owner, minlength=len(self.count))
            width = int(counts.max())
            slot = owner * width + position[here] - step * size
            yield TripleBatch(self.user[at], self.liked[at], self.other[at], owner, slot, counts, width)
