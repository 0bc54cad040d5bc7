"""Two models' scores as one: brought to one scale user by user, then mixed by a share that validation chooses.

Both scores are standardised: a user's scores less their mean over the items that the user has not met, divided by their
standard deviation there; with scale=top, by how far the highest ten lie above that mean. Where no share is given, a run
goes through `SHARES` from round to round (by the golden ratio, so that all shares come up whichever rounds are
evaluated). The round that validation chooses has then chosen the share too.
"""

from __future__ import annotations

from typing import Literal

import numpy as np
import torch
from torch import Tensor

from fedrec.federation.clients import Chunk

SHARES = (0.0, 0.05, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.7, 1.0)
TOP = 10  # items of a list
Scale = Literal["deviation", "top"]
GOLDEN = (5**0.5 - 1) / 2


def share_at(round: int, rounds: int, given: float | None) -> float:
    """0.3 at the last round, which counts where nothing is chosen."""
    if given is not None:
        return given
    turn = (0.5 + (rounds - 1 - round) * GOLDEN) % 1
    return SHARES[int(turn * len(SHARES))]


def share_decided(round: int, rounds: int, given: float | None) -> dict[str, float]:
    """The share that goes with this round, where none is given."""
    return {} if given is not None else {"gram_share": share_at(round, rounds, None)}


def mixed(first: Tensor, second: Tensor, share: Tensor, chunk: Chunk, scale: Scale = "deviation") -> Tensor:
    """Scores of all items by two models, [users, items] each; `share` is the first one's."""
    unmet = _unmet(chunk)
    return torch.lerp(_standardised(second, unmet, scale), _standardised(first, unmet, scale), share)


def _unmet(chunk: Chunk) -> Tensor:
    """[users, items]: 0 where a user's history has the item, else 1."""
    history, world = chunk.context, chunk.world
    unmet = torch.ones(len(chunk.places), world.items, dtype=world.dtype, device=world.device)
    user = np.repeat(np.arange(len(chunk.places)), np.diff(history.ptr))
    unmet[chunk.tensor(user), chunk.tensor(history.items)] = 0.0
    return unmet


def _standardised(scores: Tensor, unmet: Tensor, scale: Scale) -> Tensor:
    """Mean 0 and spread 1 over the items that a user has not met; scores that are all alike become 0."""
    count = unmet.sum(1, keepdim=True).clamp(min=1)
    away = scores - (scores * unmet).sum(1, keepdim=True) / count
    spread = _above(away, unmet) if scale == "top" else ((away.square() * unmet).sum(1, keepdim=True) / count).sqrt()
    return away / torch.where(spread > 0, spread, torch.ones_like(spread))


def _above(away: Tensor, unmet: Tensor) -> Tensor:
    """The mean of a user's highest scores among items not met; 0 where fewer are left."""
    highest = away.masked_fill(unmet == 0, -torch.inf).topk(min(TOP, away.shape[1]), 1).values
    return highest.mean(1, keepdim=True).clamp(min=0)
