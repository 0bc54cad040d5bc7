"""What filters set aside and serving still needs: items of users whom a run left out, and items that users disliked."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fedrec.data import Interactions
from fedrec.data.splits import order_in_time


@dataclass(frozen=True)
class Aside:
    """Rows that a run neither trains on nor tests, in its numbering of items.

    The users of the run keep their numbers; those whom a filter left out follow them, in the order of `user_ids`. Each
    user's rows go from the earliest to the latest. `liked`: whether a rating, if there is one, counts as positive.
    """

    user_ids: np.ndarray
    user: np.ndarray
    item: np.ndarray
    liked: np.ndarray

    def histories(self, first: int, places: np.ndarray) -> list[np.ndarray]:
        """The liked items of users who were left out, given how many users the run has."""
        order = np.argsort(self.user, kind="stable")
        user, item = self.user[order][self.liked[order]], self.item[order][self.liked[order]]
        starts, ends = (np.searchsorted(user, first + places, side=side) for side in ("left", "right"))
        return [item[start:end] for start, end in zip(starts, ends, strict=True)]


def set_aside(data: Interactions, source: Interactions, min_rating: float | None) -> Aside | None:
    """Of all rows of `data`, those of users that `source` lacks and those below the threshold; None without any."""
    liked = data.positive(min_rating)
    user, item = _places(data.user_ids, source.user_ids), _places(data.item_ids, source.item_ids)
    absent = user < 0
    if not absent.any() and liked.all():
        return None
    user[absent] = source.n_users + np.arange(int(absent.sum()))
    wanted = (absent[data.user] | ~liked) & (item[data.item] >= 0)
    rows = np.flatnonzero(wanted)
    rows = rows[order_in_time(data.select(rows))]
    return Aside(data.user_ids[absent], user[data.user[rows]], item[data.item[rows]], liked[rows])


def _places(ids: np.ndarray, among: np.ndarray) -> np.ndarray:
    """Where each id stands among others of the same kind; -1 where it does not."""
    order = np.argsort(among, kind="stable")
    # Clamped, because a search may point beyond the last id; the comparison below tells that it is another.
    at = np.minimum(np.searchsorted(among, ids, sorter=order), len(among) - 1)
    return np.where(among[order[at]] == ids, order[at], -1)
