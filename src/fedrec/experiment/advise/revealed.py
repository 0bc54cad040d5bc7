"""What a sum over this many members gives away, counted on the data itself, and how large an upload is for a member."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fedrec.experiment.advise.shortlist import Summed
from fedrec.experiment.prepare import Prepared

FEW = 5  # members of a sum below which one of them learns much of the others
PHONE, WIRELESS, COMPANY = 10 << 20, 50 << 20, 1 << 30  # bytes that a member sends without a second thought


@dataclass(frozen=True)
class Revealed:
    """`share`: of the users, whose history stands in the sum as it is. None: not counted."""

    words: str
    share: float | None = None

    @property
    def gives_away(self) -> bool:
        """Whether it must be said wherever the method is proposed."""
        return bool(self.share)


def reveal(kind: Summed, data: Prepared, noisy: bool) -> Revealed:
    """What the server reads off an exact sum, or cannot where it carries noise."""
    members = data.partition.n_clients
    if noisy:
        return Revealed("no single history, by the noise")
    if kind == "counts":
        return Revealed("how many users have an item")
    if kind == "co-occurrence":
        share = alone_share(data)
        return Revealed(f"{percent(share)} of all histories, exactly" if share else "which items go together", share)
    return Revealed(f"trends of {members:,} members")


def alone_share(data: Prepared) -> float:
    """The share of users with an item that nobody else has: its row in a sum of co-occurrences is that user's history.

    More can be pieced together from items that two or three users have, so this is the least.
    """
    pairs = data.split.train
    # An item that its one user met twice is still one user's.
    keys = np.unique(pairs.pair_keys())
    user, item = keys // pairs.n_items, keys % pairs.n_items
    owners = np.bincount(item, minlength=pairs.n_items)
    return float(len(np.unique(user[owners[item] == 1])) / max(1, data.partition.n_users))


def percent(share: float) -> str:
    """With as many digits as make sense; never 0 where there is something."""
    hundredfold = 100 * share
    # Never shown as 0 where there is something, for a share that small is still somebody's history.
    return f"{hundredfold:.0f} %" if hundredfold >= 10 or hundredfold == 0 else f"{max(hundredfold, 0.1):.1f} %"


def judge_upload(size: float, users_per_client: int) -> str:
    """For whom an upload of this size in a whole training is bearable."""
    if users_per_client > 1:
        return "fine between companies" if size <= COMPANY else "a night's transfer, even between companies"
    if size <= PHONE:
        return "fine for phones"
    return "for phones on Wi-Fi" if size <= WIRELESS else "for companies, not for phones"
