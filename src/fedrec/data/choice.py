"""Drawing each user's items without replacement, for more users and items than a full score matrix allows."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from fedrec.data.interactions import Array
from fedrec.data.seeds import generator

_TINY = np.float32(1e-30)  # keeps the logarithm of a drawn 0 finite
_CELLS = 24_000_000  # numbers held at once by a batch of users


def choose(seed: int, counts: Array, taste: Array, item_factors: Array, popularity: Array) -> Array:
    """Items of every user, user after user, drawn without replacement with odds exp(taste . item + popularity).

    The largest k of log-odds plus Gumbel noise are such a draw, but scoring everything would be users x items work. So
    candidates are proposed by popularity and only the taste decides among them. Users who take a large share of the
    items, or whose proposals repeat too much, do see all items.
    """
    items = popularity.shape[0]
    offsets = np.concatenate(([0], np.cumsum(counts)))
    chosen = np.full(offsets[-1], -1, dtype=np.int64)
    widths = 12 * counts + 48
    order = np.argsort(counts, kind="stable")  # a batch is as wide as its largest user
    proposed = order[2 * widths[order] < items]
    cumulative = np.cumsum(np.exp(popularity.astype(np.float64)))
    for stream, rows in enumerate(_batches(proposed, widths * (1 + taste.shape[1])), start=1):
        rng = generator(seed, stream)
        uniform = rng.random((rows.size, int(widths[rows].max()))) * cumulative[-1]
        candidates = np.sort(np.searchsorted(cumulative, uniform, side="right").clip(max=items - 1), axis=1)
        scores = np.einsum("uf,ucf->uc", taste[rows], item_factors[candidates]) + _gumbel(rng, candidates.shape)
        scores[:, 1:][candidates[:, 1:] == candidates[:, :-1]] = -np.inf
        _keep_best(chosen, offsets[rows], counts[rows], candidates, scores)
    unserved = order[chosen[offsets[order]] < 0]
    everything = np.arange(items)[None, :]
    for stream, rows in enumerate(_batches(unserved, np.full(counts.size, 4 * items)), start=1):
        rng = generator(seed, -stream % (1 << 32))
        scores = taste[rows] @ item_factors.T + popularity + _gumbel(rng, (rows.size, items))
        _keep_best(chosen, offsets[rows], counts[rows], np.broadcast_to(everything, scores.shape), scores)
    return chosen


def _keep_best(chosen: Array, offsets: Array, counts: Array, candidates: Array, scores: Array) -> None:
    """Write each user's best candidates to their own slots; a user with too few distinct ones is left unwritten."""
    most = int(counts.max())
    best = (
        np.argpartition(-scores, most - 1, axis=1)[:, :most] if most < scores.shape[1] else np.argsort(-scores, axis=1)
    )
    best_scores = np.take_along_axis(scores, best, axis=1)
    rank = np.argsort(-best_scores, axis=1, kind="stable")
    best, best_scores = np.take_along_axis(best, rank, axis=1), np.take_along_axis(best_scores, rank, axis=1)
    enough = np.isfinite(best_scores[np.arange(counts.size), counts - 1])
    wanted = (np.arange(most) < counts[:, None]) & enough[:, None]
    slots = offsets[:, None] + np.arange(most)
    chosen[slots[wanted]] = np.take_along_axis(candidates, best, axis=1)[wanted]


def _gumbel(rng: np.random.Generator, shape: tuple[int, ...]) -> Array:
    return np.asarray(-np.log(rng.standard_exponential(shape, dtype=np.float32) + _TINY))


def _batches(users: Array, cells: Array) -> Iterator[Array]:
    """Cut users into batches that, as wide as their last (widest) user, stay within the memory allowed."""
    start = 0
    while start < users.size:
        stop = users.size
        while stop - start > 1 and (stop - start) * int(cells[users[stop - 1]]) > _CELLS:
            stop = start + max(1, (stop - start) // 2)
        yield users[start:stop]
        start = stop
