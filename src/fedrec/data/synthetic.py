"""A made-up world in which the truth is known: who likes what, how tastes move, and why items resemble each other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from fedrec.data.choice import choose
from fedrec.data.interactions import Array, Interactions, ItemInfo
from fedrec.data.seeds import generator
from fedrec.data.sparse import csr
from fedrec.errors import FedrecError, unknown

_TASTE = 2.5  # standard deviation of the taste part of a user's log-odds over items
_DRIFT = 0.5  # the same for how far a taste moves from the user's first interaction to the last
_FEWEST = 5  # interactions every user has, where the total allows it
_PER_USER = 20  # mean interactions per user where the total is not given
_TAGS_PER_ITEM = 3
_ROWS = 1_000_000  # interactions handled at once, to bound the memory
_TINY = np.float32(1e-30)  # keeps the logarithm of a drawn 0 finite
_SAME_SESSION = 0.6
_MOST = 10**9  # of users, items or interactions; memory runs out long before
_STEEPEST = 20  # exponent of Zipf's law up to which the odds of items stay within a float
_START, _SPAN, _GAP = 1_500_000_000, 365 * 86_400, 86_400.0
_OPTIONS: dict[str, type] = {
    "users": int,
    "items": int,
    "interactions": int,
    "seed": int,
    "factors": int,
    "attributes": int,
    "popularity_skew": float,
}


@dataclass(frozen=True, eq=False)
class World:
    """Interactions together with the process that made them.

    At moment t of a user's history (0 first, 1 last) item i has log-odds ``(taste + t * drift) . item + popularity``.
    """

    interactions: Interactions
    taste: Array = field(repr=False)
    drift: Array = field(repr=False)
    item_factors: Array = field(repr=False)
    popularity: Array = field(repr=False)
    """[n_items] log-weight of each item for a user without taste."""


def synthetic(
    users: int = 1000,
    items: int = 500,
    interactions: int | None = None,
    seed: int = 0,
    factors: int = 8,
    attributes: int = 16,
    popularity_skew: float = 1.0,
) -> World:
    """Make a world. Equal arguments give equal worlds.

    ``popularity_skew`` is the exponent of Zipf's law (0: all items equally popular). ``attributes`` is the number of
    tags; each item carries the few that lie nearest to its latent factors, so that tags say something about taste.
    Items nobody took stay in the numbering.
    """
    total = interactions if interactions is not None else min(_PER_USER, max(1, items // 3)) * users
    _check(users, items, total, factors, attributes, popularity_skew)
    # A stream of its own (0): what users choose is drawn elsewhere from the same seed and must not shift this.
    rng = generator(seed, 0)
    # The variance of the inner product must not grow with the number of factors, or tastes would get steeper.
    scale = factors**-0.5
    item_factors = rng.standard_normal((items, factors), dtype=np.float32)
    taste = rng.standard_normal((users, factors), dtype=np.float32) * np.float32(_TASTE * scale)
    drift = rng.standard_normal((users, factors), dtype=np.float32) * np.float32(_DRIFT * scale)
    popularity = (-popularity_skew * np.log1p(rng.permutation(items))).astype(np.float32)
    counts = _counts(rng, users, items, total)
    # At the middle of the drift, so that a user's taste averaged over time is what the items were chosen by.
    item = choose(seed, counts, taste + drift / 2, item_factors, popularity)
    user = np.repeat(np.arange(users), counts)
    item = _in_time_order(rng, user, item, drift, item_factors)
    data = Interactions(
        user=user,
        item=item,
        user_ids=np.arange(users),
        # Items nobody took are kept, since the true preferences are known for them too.
        item_ids=np.arange(items),
        timestamp=_timestamps(rng, user, counts),
        time="real",
        name="synthetic",
        version=_version(users, items, total, seed, factors, attributes, popularity_skew),
        info=_tags(rng, item_factors, attributes),
    )
    return World(data, taste, drift, item_factors, popularity)


def from_options(parts: Sequence[str]) -> World:
    """The world of a spec's version parts, for instance ``["users=1000", "seed=3"]``."""
    options: dict[str, Any] = {}
    for part in parts:
        key, _, value = part.partition("=")
        if key not in _OPTIONS:
            raise unknown("option of synthetic", key, _OPTIONS)
        try:
            options[key] = _OPTIONS[key](value)
        except ValueError:
            raise FedrecError(f"synthetic: '{part}' needs a number after '{key}='") from None
    return synthetic(**options)


def _check(users: int, items: int, total: int, factors: int, attributes: int, popularity_skew: float) -> None:
    for name, value in (("users", users), ("items", items), ("factors", factors), ("attributes", attributes)):
        if not 1 <= value <= _MOST:
            bound = "at least 1" if value < 1 else f"at most {_MOST:,}"
            raise FedrecError(f"synthetic: {name} must be {bound}, not {value}")
    if not abs(popularity_skew) <= _STEEPEST:
        raise FedrecError(f"synthetic: popularity_skew must be from -{_STEEPEST} to {_STEEPEST}, not {popularity_skew}")
    if not users <= total <= users * items:
        raise FedrecError(
            f"synthetic: interactions must be from {users} (one per user) to {users * items} (all pairs), not {total}"
        )


def _version(
    users: int, items: int, total: int, seed: int, factors: int, attributes: int, popularity_skew: float
) -> str:
    size = f"users={users}+items={items}+interactions={total}+seed={seed}"
    return f"{size}+factors={factors}+attributes={attributes}+popularity_skew={popularity_skew:g}+ties0"


def _counts(rng: np.random.Generator, users: int, items: int, total: int) -> Array:
    """Interactions per user: log-normal above a minimum, at most half the items if possible, ``total`` in all."""
    # Half the items at most: somebody who took everything leaves nothing to recommend.
    most = items if 4 * total > users * items else max(1, items // 2)
    counts = np.full(users, min(_FEWEST, total // users, most), dtype=np.int64)
    weight = rng.lognormal(sigma=1.0, size=users)
    while (left := total - int(counts.sum())) > 0:
        room = most - counts
        open_weight = np.where(room > 0, weight, 0.0)
        share = np.minimum((left * open_weight / open_weight.sum()).astype(np.int64), room)
        # Fewer left than users: one each to the heaviest.
        if not share.any():
            share[np.argsort(-open_weight, kind="stable")[:left]] = 1
            share = np.minimum(share, room)
        counts += share
    return counts


def _in_time_order(rng: np.random.Generator, user: Array, item: Array, drift: Array, item_factors: Array) -> Array:
    """Each user's items with those the taste moves towards (noisily) later."""
    # Gumbel noise: sorting by it draws an order with the odds of the taste instead of a fixed one.
    pull = -np.log(rng.standard_exponential(user.size, dtype=np.float32) + _TINY)
    for rows in np.array_split(np.arange(user.size), user.size // _ROWS + 1):
        pull[rows] += np.einsum("nf,nf->n", drift[user[rows]], item_factors[item[rows]])
    return np.asarray(item[np.lexsort((pull, user))])


def _timestamps(rng: np.random.Generator, user: Array, counts: Array) -> Array:
    """Sessions of a few minutes, days apart; whole minutes, so that ties occur as they do in real logs."""
    within_session = rng.random(user.size) < _SAME_SESSION
    gap = rng.standard_exponential(user.size) * np.where(within_session, 60.0, _GAP)
    elapsed = np.cumsum(gap)
    first = np.cumsum(counts) - counts
    begin = rng.uniform(0, _SPAN, size=counts.size) - elapsed[first]
    return np.asarray(_START + (elapsed + begin[user]) // 60 * 60).astype(np.int64)


def _tags(rng: np.random.Generator, item_factors: Array, attributes: int) -> ItemInfo:
    items, factors = item_factors.shape
    direction = rng.standard_normal((attributes, factors), dtype=np.float32)
    direction /= np.linalg.norm(direction, axis=1, keepdims=True)
    per_item = min(_TAGS_PER_ITEM, attributes)
    nearest = np.argsort(-(item_factors @ direction.T), axis=1, kind="stable")[:, :per_item]
    ones = np.ones(nearest.size, dtype=np.float32)
    tags = csr(ones, np.repeat(np.arange(items), per_item), nearest.ravel(), (items, attributes))
    return ItemInfo(tags=tags, tag_names=tuple(f"tag{j}" for j in range(attributes)))
