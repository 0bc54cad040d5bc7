"""Who holds whose data: every client owns some users, every user belongs to one client."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np

from fedrec.data.interactions import Array, Interactions
from fedrec.data.seeds import generator
from fedrec.errors import FedrecError, unknown

if TYPE_CHECKING:
    import scipy.sparse as sp

How = Literal["contiguous", "random", "taste"]
_FACTORS = 16
_SWEEPS = 25
_DENSE_BELOW = 64  # up to this many rows or columns a full SVD is cheaper and safer than an iterative one


@dataclass(frozen=True, eq=False)
class Partition:
    """Users in client order; client c owns ``users[offsets[c]:offsets[c + 1]]``."""

    users: Array
    offsets: Array

    def __post_init__(self) -> None:
        if self.offsets[0] != 0 or self.offsets[-1] != self.users.size or (np.diff(self.offsets) < 1).any():
            raise FedrecError("a partition's offsets must rise from 0 to the number of users, with no empty client")
        if not np.array_equal(np.sort(self.users), np.arange(self.users.size)):
            raise FedrecError("a partition must hold every user exactly once")

    @property
    def n_clients(self) -> int:
        return int(self.offsets.size - 1)

    @property
    def n_users(self) -> int:
        return int(self.users.size)

    def sizes(self) -> Array:
        """Users per client."""
        return np.diff(self.offsets)

    def client_of(self) -> Array:
        """[n_users] the client of each user."""
        client = np.empty(self.n_users, dtype=np.int64)
        client[self.users] = np.repeat(np.arange(self.n_clients), self.sizes())
        return client


def one_user_per_client(n_users: int) -> Partition:
    """Every user is a client."""
    if n_users < 1:
        raise FedrecError("there are no users to divide among clients")
    return Partition(np.arange(n_users), np.arange(n_users + 1))


def silos(train: Interactions, k: int, how: How = "contiguous", seed: int = 0) -> Partition:
    """``k`` clients with many users each, as companies or regions have.

    "contiguous": users in their order, floor(n / k) each and the rest with the last client, as published splits do;
    "random": the same sizes after a shuffle; "taste": clients of unequal size whose users like similar items,
    found in the training part alone.
    """
    n = train.n_users
    if not 1 <= k <= n:
        raise FedrecError(f"{k} silos cannot be made of {n} users; choose a number from 1 to {n}")
    if how == "taste":
        return from_labels(_by_taste(train, k, seed))
    if how not in ("contiguous", "random"):
        raise unknown("way to make silos", how, ("contiguous", "random", "taste"))
    users = generator(seed).permutation(n) if how == "random" else np.arange(n)
    return Partition(users.astype(np.int64), np.append(np.arange(k) * (n // k), n))


def from_labels(client: Array) -> Partition:
    """The partition in which user u belongs to client ``client[u]``; clients are numbered from 0 without gaps."""
    return Partition(np.argsort(client, kind="stable"), np.append(0, np.cumsum(np.bincount(client))))


def _by_taste(train: Interactions, k: int, seed: int) -> Array:
    # Imported here: listing data must not wait for it.
    import torch

    from fedrec.models.lloyd import lloyd, spread_seeds

    rng = generator(seed)
    points = torch.from_numpy(_taste_space(train.matrix(), rng))
    first = (rng.integers(len(points)) + 0.5) / len(points)  # any point, all equally likely
    seeds = spread_seeds(points, torch.from_numpy(np.append(first, rng.random(k - 1)))[None])
    label = lloyd(points, seeds, _SWEEPS, tolerance=0.0, fill_empty=True)[0].numpy()
    _, met = np.unique(label, return_index=True)
    rank = np.empty(k, dtype=np.int64)
    # Clients in the order of their first user.
    rank[np.argsort(met)] = np.arange(k)
    return np.asarray(rank[label])


def _taste_space(matrix: sp.csr_matrix, rng: np.random.Generator) -> Array:
    """Users as points: rows of length one, in the directions in which they differ most."""
    import scipy.sparse as sp
    from scipy.sparse.linalg import svds

    norms = np.sqrt(np.asarray(matrix.multiply(matrix).sum(axis=1)).ravel())
    # A user without rows has length 0; the bound keeps the row at zero instead of dividing by it.
    rows = sp.diags(1.0 / np.maximum(norms, 1e-12)) @ matrix.astype(np.float64)
    if min(rows.shape) <= _DENSE_BELOW:
        left, strength, _ = np.linalg.svd(rows.toarray(), full_matrices=False)
        return np.asarray((left * strength)[:, :_FACTORS])
    # A start vector of our own: the solver's default is random and would make the silos irreproducible.
    left, strength, _ = svds(rows, k=_FACTORS, v0=rng.standard_normal(min(rows.shape)))
    return np.asarray(left * strength)
