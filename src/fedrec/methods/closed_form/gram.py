"""Item-item models in closed form from sums over users.

A user adds to a Gram matrix what every ordered pair of its items weighs: block[p, q] for the items at positions p and q
of its history. Blocks of short histories are the lower right corners of those of long ones, so one block serves all.
What follows from the sum, here, is the same wherever the sum was formed.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

_RANK = 1e-12  # eigenvalues below this share of the largest count as zero
_SOME = 16  # rows that tell whether there is noise


def fading(half_life: float, floor: float, size: int) -> np.ndarray:
    """What an item counts by its age in steps, the newest first: from 1 down to `floor`."""
    faded: np.ndarray = floor + (1 - floor) * 0.5 ** (np.arange(size) / half_life)
    return faded


def state_block(fade: np.ndarray) -> np.ndarray:
    """Pairs in the sum of x_t x_t' over all steps but the last, where x_t is the faded history up to step t.

    block[p, q] is the sum of fade(t - p) fade(t - q) over t >= p, q: one place further back, one more term.
    """
    n = len(fade)
    block = np.zeros((n, n))
    for p in range(n - 2, -1, -1):
        block[p, :-1] = block[p + 1, 1:] + fade[n - 2 - p] * fade[n - 2 :: -1]
    return block


def next_block(fade: np.ndarray, window: int) -> np.ndarray:
    """Pairs in the sum of x_t y_t', where y_t holds the next items, the j-th of them with weight 1 / j."""
    n = len(fade)
    by_lag = np.zeros(n)
    for j in range(1, min(window, n - 1) + 1):
        by_lag[j:] += fade[: n - j] / j
    lag = np.arange(n)[None, :] - np.arange(n)[:, None]
    block: np.ndarray = np.where(lag > 0, by_lag[np.abs(lag)], 0.0)
    return block


def inverse(gram: Tensor, l2: float) -> Tensor:
    """(G + l2 I)^-1. Noise leaves a Gram matrix with negative eigenvalues: these are taken for zero."""
    shifted = (gram + gram.T).mul_(0.5)
    shifted.diagonal().add_(l2)
    if not _noisy(gram):
        factor, failed = torch.linalg.cholesky_ex(shifted)
        if not failed:
            del shifted  # of a large catalogue every matrix counts
            return torch.cholesky_inverse(factor)
    values, vectors = torch.linalg.eigh(shifted)
    return (vectors / values.clamp(min=l2)) @ vectors.T


def _noisy(gram: Tensor) -> bool:
    """Whether there is noise on a sum of symmetric matrices: it is not symmetric, in any of its rows."""
    rows, columns = gram[:_SOME], gram[:, :_SOME].T
    return not torch.allclose(rows, columns, rtol=1e-5, atol=1e-6 * float(rows.abs().max()))


def ridge(gram: Tensor, cross: Tensor | None, l2: float) -> Tensor:
    """B with zero diagonal that minimises tr(B'GB) - 2 tr(B'M) + l2 |B|^2; without M, M = G, which is EASE."""
    p = inverse(gram, l2)
    own = p.diagonal().clone()
    if cross is None:
        return p.div_(-own).fill_diagonal_(0.0)
    weight = p @ cross
    weight -= p.mul_(weight.diagonal() / own)
    return weight.fill_diagonal_(0.0)


def normalised(gram: Tensor, degree: Tensor) -> Tensor:
    """D^-1/2 G D^-1/2; items that nobody has stay zero."""
    root = _inverse_root(degree)
    return root[:, None] * gram * root


def low_pass(linear: Tensor, degree: Tensor, factors: int) -> Tensor:
    """D^-1/2 V V' D^1/2, the ideal filter of GF-CF: V are the leading eigenvectors of the linear one."""
    values, vectors = torch.linalg.eigh(linear)
    keep = (values > _RANK * values[-1]).nonzero()[:, 0][-factors:]
    v = vectors[:, keep]
    return (_inverse_root(degree)[:, None] * v) @ (v * degree.clamp(min=0).sqrt()[:, None]).T


def _inverse_root(degree: Tensor) -> Tensor:
    return torch.where(degree > 0, degree.clamp(min=1e-12).rsqrt(), torch.zeros_like(degree))


def ridge_of_sketch(gram: Tensor, cross: Tensor | None, sketch: Tensor, l2: float) -> tuple[Tensor, Tensor]:
    """Factors L, R with B = L R' off the diagonal, from G S and M S alone (S: the sketch).

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
    """Orthonormal U and values a >= 0, half as many as the sketch has columns: the others only steady the estimate."""
    core = sketch.T @ sketched
    values, vectors = torch.linalg.eigh((core + core.T) / 2)
    keep = values > _RANK * values[-1]
    half = sketched @ (vectors[:, keep] / values[keep].sqrt())
    u, singular, _ = torch.linalg.svd(half, full_matrices=False)
    rank = int((singular > _RANK**0.5 * singular[0]).sum()) if len(singular) else 0
    rank = rank if sketch.shape[1] >= sketch.shape[0] else min(rank, (sketch.shape[1] + 1) // 2)
    return u[:, :rank], singular[:rank].square()
