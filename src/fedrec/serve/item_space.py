"""Find the vectors of a model: those that it multiplies, and those by which items are compared."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import scipy.sparse as sp
import torch
from torch import Tensor

from fedrec.experiment.opening import Chosen
from fedrec.federation.contract import State
from fedrec.models import MF

CHECKED = 8  # users, spread over all: a method that scores otherwise differs for each of them
CLOSE = 1e-4  # float32 sums of a hundred products in another order differ by less


class Factors(NamedTuple):
    """A model whose scores are inner products: one vector for every user and item, in their numbering."""

    user: Tensor
    item: Tensor


@dataclass(frozen=True)
class ItemSpace:
    """A row for each item, of length 1 unless it is empty; `kind` says what the rows are."""

    rows: np.ndarray | sp.csr_matrix
    kind: str

    @classmethod
    def from_table(cls, table: Tensor) -> ItemSpace:
        rows = table.detach().to("cpu", torch.float32).numpy()
        # items that nobody trained on may have a row of zeros, whose cosine with everything is then 0
        return cls(rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-12), "item vectors")

    def nearest(self, item: int, k: int) -> tuple[list[int], list[float]]:
        """The k other items with the largest cosine, best first, lower places first among equals."""
        cosine = (
            np.asarray((self.rows @ self.rows[item].T).todense()).ravel()
            if sp.issparse(self.rows)
            else self.rows @ self.rows[item]
        )
        cosine[item] = -np.inf
        order = np.lexsort((np.arange(len(cosine)), -cosine))[:k]
        return order.tolist(), cosine[order].tolist()

    def nearest_of(self, item: int, others: np.ndarray) -> tuple[list[int], list[float]]:
        """Order some other items by their cosine with an item, best first."""
        rows = self.rows[others] @ self.rows[item].T
        cosine = np.asarray(rows.todense()).ravel() if sp.issparse(rows) else np.asarray(rows)
        order = np.argsort(-cosine, kind="stable")
        return others[order].tolist(), cosine[order].tolist()


def find_item_space(chosen: Chosen) -> ItemSpace:
    """Compare items by the model's item vectors, or by the users who have them where it has no such vectors."""
    table = _find_item_table(chosen)
    if table is not None:
        return ItemSpace.from_table(table)
    split = chosen.run.prepared.split.train
    who = sp.csr_matrix(
        (np.ones(len(split), np.float32), (split.item, split.user)), shape=(chosen.run.world.items, split.n_users)
    )
    who.data[:] = 1  # repeated interactions were summed up
    length = np.sqrt(np.maximum(np.asarray(who.sum(1)).ravel(), 1))
    return ItemSpace(sp.diags_array(1 / length).tocsr().astype(np.float32) @ who, "users in common")


def find_factors(chosen: Chosen) -> Factors | None:
    """Find user and item vectors whose products are the model's scores; None where it scores otherwise."""
    run, cohorts = chosen.run, chosen.run.simulator.cohorts
    table = _find_item_table(chosen)
    if table is None or not isinstance(getattr(run.method, "model", None), MF) or len(cohorts) != 1:
        return None
    user = cohorts[0].state.per_user.get("user")
    if user is None or user.dim() != 2 or user.shape[1] != table.shape[1]:
        return None
    placed = user.new_zeros(run.prepared.source.n_users, user.shape[1])
    placed[torch.from_numpy(run.simulator.data.users)] = user
    factors = Factors(placed.float(), table.float())
    return factors if reproduces_scores(chosen, lambda place: factors.item @ factors.user[place]) else None


def reproduces_scores(chosen: Chosen, score: Callable[[int], Tensor | None]) -> bool:
    """Whether a function gives some users the scores of the run itself; None: it cannot score this user.

    A method may keep tables or weights by the usual names and still score in another way.
    """
    run, users = chosen.run, chosen.run.simulator.data.users
    items = torch.arange(run.world.items, device=run.world.device)
    for place in users[:: max(1, len(users) // CHECKED)][:CHECKED].tolist():
        scores = score(place)
        wanted = run.simulator.scores_of(place, chosen.round, items)[0].float()
        if scores is not None and not torch.allclose(scores.to(wanted.device), wanted, atol=CLOSE, rtol=CLOSE):
            return False
    return True


def _find_item_table(chosen: Chosen) -> Tensor | None:
    """Find the one table of item vectors: the server's, or that of a model of all users."""
    run = chosen.run
    state: State = run.simulator.cohorts[0].state
    table = run.simulator.server.get("item")
    if table is None and run.method.info.centralised:
        own = state.per_client.get("item")
        table = None if own is None else own[0]
    return table if table is not None and table.dim() == 2 and len(table) == run.world.items else None
