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
# Multiples of it fill the interval evenly whatever stretch of rounds is looked at.
GOLDEN = (5**0.5 - 1) / 2


def share_at(round: int, rounds: int, given: float | None) -> float:
    """Return the share of a round: 0.3 at the last one, which counts where nothing is chosen."""
    if given is not None:
        return given
    # Counted from the last round, so that it has the same share however many rounds there are.
    turn = (0.5 + (rounds - 1 - round) * GOLDEN) % 1
    return SHARES[int(turn * len(SHARES))]


def mix_scores(first: Tensor, second: Tensor, share: Tensor, chunk: Chunk, scale: Scale = "deviation") -> Tensor:
    """Mix scores of all items by two models, [users, items] each; `share` is the first one's."""
    unmet = _mark_unmet(chunk)
    return torch.lerp(_standardise(second, unmet, scale), _standardise(first, unmet, scale), share)


def _mark_unmet(chunk: Chunk) -> Tensor:
    """[users, items]: 0 where a user's history has the item, else 1."""
    history, world = chunk.context, chunk.world
    unmet = torch.ones(len(chunk.places), world.items, dtype=world.dtype, device=world.device)
    user = np.repeat(np.arange(len(chunk.places)), np.diff(history.ptr))
    unmet[chunk.tensor(user), chunk.tensor(history.items)] = 0.0
    return unmet


def _standardise(scores: Tensor, unmet: Tensor, scale: Scale) -> Tensor:
    """Bring scores to mean 0 and spread 1 over the items that a user has not met; equal scores become 0."""
    count = unmet.sum(1, keepdim=True).clamp(min=1)
    away = scores - (scores * unmet).sum(1, keepdim=True) / count
    spread = (
        _lead_of_top(away, unmet) if scale == "top" else ((away.square() * unmet).sum(1, keepdim=True) / count).sqrt()
    )
    # 1 in place of 0: equal scores are all 0 by then, and stay so.
    return away / torch.where(spread > 0, spread, torch.ones_like(spread))


def _lead_of_top(away: Tensor, unmet: Tensor) -> Tensor:
    """Return the mean of a user's highest scores among items not met; 0 where fewer are left."""
    highest = away.masked_fill(unmet == 0, -torch.inf).topk(min(TOP, away.shape[1]), 1).values
    return highest.mean(1, keepdim=True).clamp(min=0)
