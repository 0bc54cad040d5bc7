"""Item-item models in closed form from sums over users.

A user adds to a Gram matrix what every ordered pair of its items weighs: block[p, q] for the items at positions p and q
of its history. Blocks of short histories are the lower right corners of those of long ones, so one block serves all.
What follows from the sum, here, is the same wherever the sum was formed.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from fedrec.federation.clients import Chunk
from fedrec.federation.contract import PartialSum, Rows
from fedrec.training.compiled import kernel_for

_RANK = 1e-12  # eigenvalues below this share of the largest count as zero
_COMPARED = 16  # rows that tell whether there is noise: comparing whole matrices would read both from memory


def fading(half_life: float, floor: float, size: int) -> np.ndarray:
    """Return what an item counts by its age in steps, the newest first: from 1 down to `floor`."""
    faded: np.ndarray = floor + (1 - floor) * 0.5 ** (np.arange(size) / half_life)
    return faded


def state_block(fade: np.ndarray) -> np.ndarray:
    """Return the pairs in the sum of x_t x_t' over all steps but the last, where x_t is the faded history up to step t.

    block[p, q] is the sum of fade(t - p) fade(t - q) over t >= p, q: one place further back, one more term.
    """
    n = len(fade)
    block = np.zeros((n, n))
    for p in range(n - 2, -1, -1):
        block[p, :-1] = block[p + 1, 1:] + fade[n - 2 - p] * fade[n - 2 :: -1]
    return block


def next_block(fade: np.ndarray, window: int) -> np.ndarray:
    """Return the pairs in the sum of x_t y_t', where y_t holds the next items, the j-th of them with weight 1 / j."""
    n = len(fade)
    by_lag = np.zeros(n)
    for j in range(1, min(window, n - 1) + 1):
        by_lag[j:] += fade[: n - j] / j
    lag = np.arange(n)[None, :] - np.arange(n)[:, None]
    block: np.ndarray = np.where(lag > 0, by_lag[np.abs(lag)], 0.0)
    return block


def order_blocks(fade: np.ndarray, window: int) -> dict[str, np.ndarray]:
    """Return the blocks of an order-aware model: what states have in common, and what follows them."""
    return {"gram": state_block(fade), "cross": next_block(fade, window)}


def invert(gram: Tensor, l2: float) -> Tensor:
    """Return (G + l2 I)^-1. Noise leaves a Gram matrix with negative eigenvalues: these are taken for zero."""
    # Symmetric to the last bit, because the decompositions below read one triangle only.
    shifted = (gram + gram.T).mul_(0.5)
    shifted.diagonal().add_(l2)
    # Cholesky is several times as fast, but noise makes a matrix indefinite, where it fails.
    if not _is_noisy(gram):
        factor, failed = torch.linalg.cholesky_ex(shifted)
        if not failed:
            del shifted  # of a large catalogue every matrix counts
            return torch.cholesky_inverse(factor)
    values, vectors = torch.linalg.eigh(shifted)
    # Clamped at l2, which is where a Gram matrix without noise has its smallest possible eigenvalue.
    return (vectors / values.clamp(min=l2)) @ vectors.T


def _is_noisy(gram: Tensor) -> bool:
    """Whether there is noise on a sum of symmetric matrices: then no row equals its column."""
    rows, columns = gram[:_COMPARED], gram[:, :_COMPARED].T
    return not torch.allclose(rows, columns, rtol=1e-5, atol=1e-6 * float(rows.abs().max()))


def ridge(gram: Tensor, cross: Tensor | None, l2: float) -> Tensor:
    """Return B with zero diagonal that minimises tr(B'GB) - 2 tr(B'M) + l2 |B|^2; without M, M = G, which is EASE."""
    p = invert(gram, l2)
    # A copy, because p is overwritten in place.
    own = p.diagonal().clone()
    if cross is None:
        # Set to zero afterwards: exactly -1 by the formula, and only nearly so by rounding.
        return p.div_(-own).fill_diagonal_(0.0)
    weight = p @ cross
    weight -= p.mul_(weight.diagonal() / own)
    return weight.fill_diagonal_(0.0)


def normalise(gram: Tensor, degree: Tensor) -> Tensor:
    """Return D^-1/2 G D^-1/2; items that nobody has stay zero."""
    root = _inverse_root(degree)
    return root[:, None] * gram * root


def low_pass(linear: Tensor, degree: Tensor, factors: int) -> Tensor:
    """Return D^-1/2 V V' D^1/2, the ideal filter of GF-CF: V are the leading eigenvectors of the linear one."""
    values, vectors = torch.linalg.eigh(linear)
    keep = (values > _RANK * values[-1]).nonzero()[:, 0][-factors:]
    v = vectors[:, keep]
    return (_inverse_root(degree)[:, None] * v) @ (v * degree.clamp(min=0).sqrt()[:, None]).T


def _inverse_root(degree: Tensor) -> Tensor:
    return torch.where(degree > 0, degree.clamp(min=1e-12).rsqrt(), torch.zeros_like(degree))


def ridge_of_sketch(gram: Tensor, cross: Tensor | None, sketch: Tensor, l2: float) -> tuple[Tensor, Tensor]:
    """Return factors L, R with B = L R' off the diagonal, from G S and M S alone (S: the sketch).

    G is taken as (GS)(S'GS)^+(GS)' = U diag(a) U' (Nystrom), so with w = a / (a + l2):
    (G + l2 I)^-1 = (I - U diag(w) U') / l2, and M = (MS)(U'S)^+ U' on the same directions.
    """
    u, a = _nystrom(gram, sketch)
    w = a / (a + l2)
    p_diagonal = (1 - (u.square() * w).sum(1)) / l2
    if cross is None:
        return u * (w / l2), u / p_diagonal[:, None]
    m = cross @ torch.linalg.pinv(u.T @ sketch)
    left = (m - u @ (w[:, None] * (u.T @ m))) / l2  # (G + l2 I)^-1 M = left u'
    multiplier = (left * u).sum(1) / p_diagonal
    return torch.cat([left, u * (w / l2)], 1), torch.cat([u, u * multiplier[:, None]], 1)


def _nystrom(sketched: Tensor, sketch: Tensor) -> tuple[Tensor, Tensor]:
    """Return orthonormal U and values a >= 0, half as many as the sketch has columns, for a steady estimate."""
    core = sketch.T @ sketched
    values, vectors = torch.linalg.eigh((core + core.T) / 2)
    keep = values > _RANK * values[-1]
    half = sketched @ (vectors[:, keep] / values[keep].sqrt())
    u, singular, _ = torch.linalg.svd(half, full_matrices=False)
    rank = int((singular > _RANK**0.5 * singular[0]).sum()) if len(singular) else 0
    # Of a sketch only half the directions are reliable; as wide as the catalogue it is no longer an estimate.
    rank = rank if sketch.shape[1] >= sketch.shape[0] else min(rank, (sketch.shape[1] + 1) // 2)
    return u[:, :rank], singular[:rank].square()


# -- the client's part --


def sum_blocks(chunk: Chunk, block: np.ndarray, by_user: np.ndarray, columns: np.ndarray | None) -> Rows | PartialSum:
    """Sum over users weight * block, at the items of their histories; with `columns`, times the sketch."""
    world, ends, width = chunk.world, chunk.user_ptr, chunk.world.items if columns is None else columns.shape[1]
    # Expanded, so that the base of a sum takes no room beside a matrix of items x items.
    base = torch.zeros(1, 1, dtype=world.dtype, device=world.device).expand(world.items, width)
    kernel = kernel_for("gram", world, chunk.foldable and columns is None)
    if kernel is not None:
        summed = torch.zeros(world.items, width, dtype=torch.float64, device=world.device)
        kernel(*(chunk.tensor(part) for part in (chunk.history, ends, by_user, block)), summed)
        return PartialSum(base, summed, len(chunk.clients))
    # what is added up in float64 is rounded once; single uploads have the precision in which they are sent
    exact = np.dtype(np.float64) if chunk.foldable else torch.zeros(0, dtype=world.dtype).numpy().dtype
    total = np.zeros((world.items if chunk.foldable else len(chunk.history), width), exact)
    for k, weight in enumerate(by_user):
        n = ends[k + 1] - ends[k]
        items = chunk.history[ends[k] : ends[k + 1]]
        rows = items if chunk.foldable else np.arange(ends[k], ends[k + 1])
        mine = weight * block[len(block) - n :, len(block) - n :]
        if columns is None:
            total[np.ix_(rows, items)] += mine
        else:
            total[rows] += mine @ columns[items]
    if chunk.foldable:
        return PartialSum(base, chunk.tensor(total), len(chunk.clients))
    return _merge(chunk, base, chunk.tensor(total))


def count_items(chunk: Chunk) -> Rows:
    """Return in how many histories each item stands."""
    base = torch.zeros(chunk.world.items, 1, dtype=chunk.world.dtype, device=chunk.world.device)
    return _merge(chunk, base, base.new_ones(len(chunk.history), 1))


def _merge(chunk: Chunk, base: Tensor, value: Tensor) -> Rows:
    """Merge rows of items of histories to one per client and item: two users of a silo may share one."""
    owner = chunk.owner.repeat_interleave(chunk.tensor(chunk.user_ptr).diff(), output_size=len(chunk.history))
    # One user has every item once: there is nothing to merge, and sorting all pairs would be the dearest part.
    if chunk.data.single:
        return Rows(base, owner, chunk.tensor(chunk.history), value, len(chunk.clients))
    pairs, at = torch.unique(owner * chunk.world.items + chunk.tensor(chunk.history), return_inverse=True)
    rows = value.new_zeros(len(pairs), value.shape[1]).index_add_(0, at, value)
    return Rows(base, pairs // chunk.world.items, pairs % chunk.world.items, rows, len(chunk.clients))
