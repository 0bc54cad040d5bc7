"""Lloyd's k-means, for clusterings of items, of clients and of users: seeds as k-means++ draws them, then steps.

Where the draws come from is the caller's business: methods hash a key, partitions have a seed.
"""

from __future__ import annotations

import torch
from torch import Tensor

STEPS = 300  # at most
TOLERANCE = 1e-4  # stop when centres move less than this part of the mean variance
CELLS = 16_000_000  # distances held at once


def spread_seeds(points: Tensor, draws: Tensor) -> Tensor:
    """Centres [starts, clusters, width] from uniform draws [starts, clusters].

    The next seed of a start is drawn in proportion to the squared distance from the nearest so far (k-means++).
    """
    x = points.double()
    nearest = torch.ones(len(draws), len(x), dtype=x.dtype, device=x.device)  # for the first seed, all are alike
    seeds: list[Tensor] = []
    for draw in draws.T:
        reach = nearest.cumsum(1)
        at = torch.searchsorted(reach, (draw * reach[:, -1])[:, None], right=True).clamp(max=len(x) - 1).squeeze(1)
        gap = (x - x[at][:, None]).square().sum(2)
        nearest = torch.minimum(nearest, gap) if seeds else gap
        seeds.append(x[at])
    return torch.stack(seeds, 1)


def lloyd(points: Tensor, centres: Tensor, steps: int = STEPS, tolerance: float = TOLERANCE,
          fill_empty: bool = False) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Labels [points] and centres of the best start, by summed squared distance; float64 throughout.

    All starts [starts, clusters, width] step side by side until none of them moves. A centre that loses all its points
    stays where it is, or, with `fill_empty`, is given the point farthest from its own centre.
    """
    x, c = points.double(), centres.double()
    close = tolerance * float(x.var(0, correction=0).mean())
    labels = _nearest(x, c)
    for _ in range(steps):
        labels = _filled(x, c, labels) if fill_empty else labels
        moved = _means(x, labels, c)
        still = (moved - c).square().sum((1, 2)) <= close
        c, before, labels = moved, labels, _nearest(x, moved)
        if bool((still | (labels == before).all(1)).all()):
            break
    labels = _filled(x, c, labels) if fill_empty else labels
    spread = torch.stack([_distance(x, own, mine).sum() for own, mine in zip(c, labels, strict=True)])
    best = int(spread.argmin())
    return labels[best], c[best]


def _pieces(x: Tensor, centres: Tensor) -> list[slice]:
    step = max(1, CELLS // centres.shape[:2].numel())
    return [slice(start, start + step) for start in range(0, len(x), step)]


def _nearest(x: Tensor, centres: Tensor) -> Tensor:
    norm = centres.square().sum(2)[:, None]
    return torch.cat([(norm - 2 * x[part] @ centres.mT).argmin(2) for part in _pieces(x, centres)], 1)


def _means(x: Tensor, labels: Tensor, centres: Tensor) -> Tensor:
    size, total = torch.zeros_like(centres[..., :1]), torch.zeros_like(centres)
    for part in _pieces(x, centres):
        member = torch.nn.functional.one_hot(labels[:, part], centres.shape[1]).to(x.dtype)
        size += member.sum(1)[..., None]
        total += member.mT @ x[part]
    return torch.where(size > 0, total / size.clamp(min=1), centres)


def _distance(x: Tensor, centres: Tensor, labels: Tensor) -> Tensor:
    return (x - centres[labels]).square().sum(1)


def _filled(x: Tensor, centres: Tensor, labels: Tensor) -> Tensor:
    """Every empty cluster gets the point farthest from its own centre, never the last point of another cluster."""
    filled = labels.clone()
    for own, mine in zip(centres, filled, strict=True):
        size = torch.bincount(mine, minlength=len(own))
        empty = (size == 0).nonzero().ravel().tolist()
        if not empty:
            continue
        for point in _distance(x, own, mine).argsort(descending=True, stable=True).tolist():
            if size[mine[point]] > 1:
                size[mine[point]] -= 1
                mine[point] = empty.pop()
                size[mine[point]] += 1
            if not empty:
                break
    return filled
