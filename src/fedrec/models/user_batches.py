"""Scores of networks, some users at a time."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

ENTRIES = 2**26  # numbers in one layer at once: a client may be a company with many users, and is never split


def by_users(
    score: Callable[[Tensor, Tensor, dict[str, Tensor]], Tensor],
    width: int,
    user: Tensor,
    item: Tensor,
    dense: dict[str, Tensor],
) -> Tensor:
    """`score` of all users, where it holds `width` numbers per user and item.

    Items are common, [items, dim], or everybody's own, [users, items, dim]; so are the weights.
    """
    step = max(1, ENTRIES // (max(1, item.shape[-2]) * width))
    if len(user) <= step:
        return score(user, item, dense)
    # Weights of each user's own have to be split along with the users; common ones serve every part.
    own, found = dense["weight0"].dim() == 3, []
    for start in range(0, len(user), step):
        part = slice(start, start + step)
        mine = {name: value[part] for name, value in dense.items()} if own else dense
        found.append(score(user[part], item[part] if item.dim() == 3 else item, mine))
    return torch.cat(found)
