"""How often each user drew each item as a training negative: counted from the sampler itself, or read from a file.

A count of draws holds no information about taste. Where it finds the held-out items, so can any model with a table of
its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import scipy.sparse as sp
import torch
from numpy.typing import NDArray
from torch.nn.functional import pad

from fedrec.evaluation import Evaluator, Pairs, Targets
from fedrec.evaluation.targets import Ints, pair_keys
from fedrec.federation.clients import Chunk, ClientData
from fedrec.kernels import find
from fedrec.random import Purpose, stream
from fedrec.training.samples import negatives

# Draws are counted on the host, wherever a run trains.
HOST = torch.device("cpu")
# So many counts are held at once; of a whole catalogue for all users they would fill the memory.
CELLS = 8_000_000
MARKS = tuple(digit * 10**power for power in range(6) for digit in (1, 2, 5))
# From so many draws on, the compiled sampler pays for its compilation.
WORTH_COMPILING = 5_000_000

Counts = NDArray[np.int32]
Parts = Iterator[tuple[Ints, Iterator[tuple[int, Counts]]]]


class Draws(Protocol):
    """Users part by part; for each part the counts [users, items] after some rounds, the last after all of them.

    Items that follow those counted are out of reach: new ones, under a split by items.
    """

    @property
    def rounds(self) -> int:
        """0: not known."""
        ...

    def parts(self) -> Parts: ...


@dataclass(frozen=True)
class SampledDraws:
    """Draws of the sampler that training uses, round by round."""

    data: ClientData
    rounds: int

    def parts(self) -> Parts:
        world = self.data.world
        pieces = max(1, -(-len(self.data.users) * world.items // CELLS))
        for clients in np.array_split(np.arange(world.clients), min(pieces, world.clients)):
            chunk = self.data.chunk(clients)
            yield np.asarray(chunk.users, np.int64), self._rounds(chunk)

    def marks(self) -> tuple[int, ...]:
        return (*(mark for mark in MARKS if mark < self.rounds), self.rounds)

    def _rounds(self, chunk: Chunk) -> Iterator[tuple[int, Counts]]:
        counts = np.zeros((len(chunk.places), chunk.world.items), np.int32)
        add = self._adder(chunk)
        for round in range(self.rounds):
            add(chunk, round, counts)
            if round + 1 in self.marks():
                yield round + 1, counts

    def _adder(self, chunk: Chunk) -> Callable[[Chunk, int, Counts], None]:
        large = len(chunk.items) * self.data.negatives * self.rounds >= WORTH_COMPILING
        return add_compiled if find("count_draws", HOST, compiled=large) else add_torch


def add_torch(chunk: Chunk, round: int, counts: Counts) -> None:
    """Count the negatives of one round, drawn by `training.samples`."""
    drawn = negatives(chunk, round).cpu().numpy()
    owner = np.repeat(np.arange(len(chunk.places)), np.diff(chunk.user_ptr))
    np.add.at(counts, (owner[:, None], drawn), 1)


def add_compiled(chunk: Chunk, round: int, counts: Counts) -> None:
    """The same count, drawn by the compiled kernels."""
    data, world, kernel = chunk.data, chunk.world, find("count_draws", HOST)
    assert kernel is not None
    key = np.uint64(stream(world.seed, Purpose.NEGATIVES, round))
    kernel(
        chunk.places,
        data.users,
        data.user_ptr,
        data.pool.indptr,
        data.pool.gap,
        world.items,
        data.negatives,
        data.unique == "user",
        key,
        counts,
    )


class FileDraws:
    """Draws that somebody's training code wrote down."""

    rounds = 0

    def __init__(self, drawn: Pairs, n_users: int, n_items: int) -> None:
        ones = np.ones(len(drawn[0]), np.int32)
        self._counts = sp.csr_matrix((ones, drawn), shape=(n_users, n_items))
        self._counts.sum_duplicates()

    def parts(self) -> Parts:
        n_users, n_items = self._counts.shape
        for users in np.array_split(np.arange(n_users), max(1, -(-n_users * n_items // CELLS))):
            yield users, iter([(0, self._counts[users].toarray())])


@dataclass(frozen=True)
class Exposure:
    """What the draws give away."""

    observed: int
    """Draws that hit a held-out item of their own user."""
    expected: float
    """The same, had every draw been uniform over the items in reach outside the user's training items."""
    curve: tuple[tuple[int, float], ...]
    """Rounds, and recall@k of a scorer that prefers the items it has drawn least."""


def exposure(
    draws: Draws, train: Pairs, held_out: Pairs, n_users: int, targets: Targets, k: int, ties: str
) -> Exposure:
    """One pass over all draws, for the rate and for the counter."""
    judges: dict[int, Evaluator] = {}
    trained, hidden = (_rows(pairs, n_users, targets.n_items) for pairs in (train, held_out))
    observed, expected = 0, 0.0
    for users, rounds in draws.parts():
        counts = np.zeros((0, 0), np.int32)
        for round, counts in rounds:
            judge = judges.setdefault(round, Evaluator(targets, ks=(k,), ties=ties, metrics=("recall",)))
            # The item drawn least ranks first, which is all that somebody without any taste could do.
            scores = torch.from_numpy(-counts.astype(np.float32))
            # New items were never in reach, so they count as never drawn.
            judge.update(users, pad(scores, (0, targets.n_items - counts.shape[1])))
        mine = hidden[users, : counts.shape[1]]
        observed += int(mine.multiply(counts).sum())
        free = counts.shape[1] - np.diff(trained[users].indptr)
        expected += float((counts.sum(1) * np.diff(mine.indptr) / free).sum())
    curve = tuple((round, judge.result().mean()[f"recall@{k}"]) for round, judge in sorted(judges.items()))
    return Exposure(observed, expected, curve)


def _rows(pairs: Pairs, n_users: int, n_items: int) -> sp.csr_matrix:
    keys = pair_keys([pairs], n_items)
    ones = np.ones(len(keys), np.int32)
    return sp.csr_matrix((ones, (keys // n_items, keys % n_items)), shape=(n_users, n_items))
