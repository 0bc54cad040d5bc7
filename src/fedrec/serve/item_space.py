"""Where items lie in a model: the vectors that it multiplies users with, or, where it has none, who has them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import scipy.sparse as sp
import torch
from torch import Tensor

from fedrec.experiment.finished import Chosen
from fedrec.federation.contract import State
from fedrec.models import MF

CHECKED = 8  # users whose scores must be the products of the vectors
CLOSE = 1e-4


class Factors(NamedTuple):
    """A model whose scores are inner products: one vector for every user and item, in their numbering."""

    user: Tensor
    item: Tensor


@dataclass(frozen=True)
class ItemSpace:
    """A row for each item, of length 1 unless it is empty; `kind` says what the rows are."""

    rows: np.ndarray | sp.csr_matrix
    kind: str

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


def item_space(chosen: Chosen) -> ItemSpace:
    """By the model's item vectors, else by the users who have the items."""
    table = _table(chosen)
    if table is not None:
        rows = table.detach().to("cpu", torch.float32).numpy()
        return ItemSpace(rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-12), "item vectors")
    split = chosen.run.prepared.split.train
    who = sp.csr_matrix(
        (np.ones(len(split), np.float32), (split.item, split.user)), shape=(chosen.run.world.items, split.n_users)
    )
    who.data[:] = 1
    length = np.sqrt(np.maximum(np.asarray(who.sum(1)).ravel(), 1))
    return ItemSpace(sp.diags_array(1 / length).tocsr().astype(np.float32) @ who, "users in common")


def factors(chosen: Chosen) -> Factors | None:
    """User and item vectors whose products are the model's scores; None where it scores otherwise.

    A method may keep such tables and still score in another way, so some users' scores are compared.
    """
    run, cohorts = chosen.run, chosen.run.simulator.cohorts
    table = _table(chosen)
    if table is None or not isinstance(getattr(run.method, "model", None), MF) or len(cohorts) != 1:
        return None
    user = cohorts[0].state.per_user.get("user")
    if user is None or user.dim() != 2 or user.shape[1] != table.shape[1]:
        return None
    placed = user.new_zeros(run.prepared.source.n_users, user.shape[1])
    placed[torch.from_numpy(run.simulator.data.users)] = user
    found = Factors(placed.float(), table.float())
    return found if _explains(chosen, found) else None


def _table(chosen: Chosen) -> Tensor | None:
    """The one table of item vectors: the server's, or that of a model of all users."""
    run = chosen.run
    state: State = run.simulator.cohorts[0].state
    table = run.simulator.server.get("item")
    if table is None and run.method.info.centralised:
        own = state.per_client.get("item")
        table = None if own is None else own[0]
    return table if table is not None and table.dim() == 2 and len(table) == run.world.items else None


def _explains(chosen: Chosen, found: Factors) -> bool:
    run = chosen.run
    items = torch.arange(run.world.items, device=run.world.device)
    for user in run.simulator.data.users[:: max(1, len(run.simulator.data.users) // CHECKED)][:CHECKED].tolist():
        scores = run.simulator.scores_of(user, chosen.round, items)[0].float()
        if not torch.allclose(scores, found.item @ found.user[user], atol=CLOSE, rtol=CLOSE):
            return False
    return True
