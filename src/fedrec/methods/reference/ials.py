"""iALS: implicit matrix factorisation by alternating least squares, centralised.

Hu et al., ICDM 2008, with the care of Rendle et al., RecSys 2022. With S the observed pairs, w_u and h_i the factors,

    sum over S of (w_u h_i - 1)^2  +  unobserved * sum over all u, i of (w_u h_i)^2
      + l2 * ( sum over u of f(|I_u| + unobserved |I|) |w_u|^2  +  sum over i of f(|U_i| + unobserved |U|) |h_i|^2 )

where f(n) = n^frequency: how often a factor is met scales how much it is regularised. One round solves for all users,
then for all items, each exactly: with H fixed,

    (sum over I_u of h_i h_i' + unobserved H'H + l2 f I) w_u = sum over I_u of h_i

Users and items go through the solver in blocks of similar length, so that no more than a block of systems is held.
A user who was not in training, or has met more since, is solved from the history.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Annotated, ClassVar

import numpy as np
import torch
from torch import Tensor

from fedrec import method as fm

NUMBERS = 1 << 24  # that a block of systems holds


@dataclass(frozen=True)
class IALS(fm.Method):
    info: ClassVar[fm.MethodInfo] = fm.MethodInfo(
        name="ials",
        summary="implicit matrix factorisation by alternating least squares",
        paper="Rendle et al., RecSys 2022",
        centralised=True,
        new_users=0,
    )

    rounds: fm.Count = 16
    dim: fm.Count = 128
    l2: fm.Positive = 0.003
    unobserved: fm.Positive = 0.1
    """Weight of every pair, observed or not; an observed one has 1 more."""
    frequency: Annotated[float, "[0, 1]"] = 1.0
    """Regularisation grows with how often a user or item is met, to this power."""
    init_std: fm.Positive = 0.1
    """Standard deviation of an initial score: factors start at this / sqrt(dim)."""

    @property
    def disclosure(self) -> fm.Disclosure:
        return fm.Disclosure(private=("item",))

    def init_clients(self, world: fm.World, chunk: fm.Chunk) -> fm.State:
        # Divided by the root of the width, so that first rows are equally long whatever the width is.
        table = fm.draw_rows(world, "item", world.items, self.dim, self.init_std / self.dim**0.5)
        return fm.State(per_client=fm.replicate({"item": table}, len(chunk.clients)))

    def local(self, state: fm.State, down: fm.Down, chunk: fm.Chunk, round: int) -> tuple[fm.State, fm.Uploads]:
        tables = [
            self._fit(table, chunk.data.chunk(client[None], chunk.cohort))
            for client, table in zip(chunk.clients, state.per_client["item"], strict=True)
        ]
        return fm.State(per_client={"item": torch.stack(tables)}), {}

    def _fit(self, table: Tensor, chunk: fm.Chunk) -> Tensor:
        """Solve for this client's users, then for the items; return the items' factors."""
        users = self._solve(table, chunk.user_ptr, chunk.items, chunk.world.items)
        by_item = chunk.matrix().T.tocsr()
        # Transposing leaves rows in any order, and sums of rounded numbers depend on it.
        by_item.sort_indices()
        ptr, owners = by_item.indptr.astype(np.int64), by_item.indices.astype(np.int64)
        return self._solve(users, ptr, owners, len(chunk.places))

    def _solve(self, table: Tensor, ptr: np.ndarray, met: np.ndarray, others: int) -> Tensor:
        """Solve for the factors of those who have met these rows of a table, k's being `met[ptr[k]:ptr[k + 1]]`."""
        # In double, because l2 is small beside the rest of a system, and rarely met items leave it nearly singular.
        exact = table.double()
        everything = self.unobserved * (exact.T @ exact)
        found = torch.zeros(len(ptr) - 1, self.dim, dtype=torch.float64, device=table.device)
        for some, rows in _blocks(ptr, met, self.dim, table.device):
            # Filling reads row 0 and is multiplied by 0, so that it adds nothing to products and sums.
            own = exact[rows.clamp(min=0)] * (rows >= 0).unsqueeze(-1)
            count = torch.from_numpy(np.diff(ptr)[some]).to(exact)
            decay = self.l2 * (count + self.unobserved * others) ** self.frequency
            system = own.mT @ own + everything + torch.diag_embed(decay[:, None].expand(-1, self.dim))
            # Cholesky, because systems are positive definite: half the work of a general solver.
            solved = torch.cholesky_solve(own.sum(1).unsqueeze(-1), torch.linalg.cholesky(system))
            found[torch.from_numpy(some).to(table.device)] = solved.squeeze(-1)
        return found.to(table.dtype)

    def score(self, state: fm.State, down: fm.Down, chunk: fm.Chunk, items: Tensor) -> Tensor:
        scores = []
        for client, table in zip(chunk.clients, state.per_client["item"], strict=True):
            alone = replace(chunk, clients=client[None])
            users = self._solve(table, alone.context.ptr, alone.context.items, chunk.world.items)
            scores.append(users @ table[items].T)
        return torch.cat(scores)

    def footprint(self, world: fm.World) -> fm.Footprint:
        """In double precision: the factors of both sides, H'H, and one system as it is made and solved."""
        usual = super().footprint(world)
        factors = (world.items + world.most_users) * self.dim
        return replace(
            usual,
            client=usual.client + 8 * (factors + 4 * self.dim**2),
            score=usual.score + 4 * self.dim * world.dtype.itemsize,
        )


def _blocks(ptr: np.ndarray, met: np.ndarray, dim: int, device: torch.device) -> Iterator[tuple[np.ndarray, Tensor]]:
    """Some of those who have met rows, longest first, and their rows, filled up with -1."""
    counts = np.diff(ptr)
    # By length, so that a block is filled up to about what its members have.
    order = np.argsort(-counts, kind="stable")
    start = 0
    while start < len(order):
        longest = max(1, int(counts[order[start]]))
        some = order[start : start + max(1, NUMBERS // (dim * (longest + 3 * dim)))]
        step = np.arange(longest)
        real = step < counts[some, None]
        at = np.where(real, ptr[some, None] + step, 0)
        rows = np.where(real, met[at] if len(met) else 0, -1)
        yield some, torch.from_numpy(rows).to(device)
        start += len(some)
