"""k-means on the rows of a table, with randomness from a key, and how well two clusterings agree."""

from __future__ import annotations

import torch
from torch import Tensor

from fedrec.random import fold, fold_tensor, signed, uniform

STEPS = 300  # at most
TOLERANCE = 1e-4  # stop when centres move less than this part of the mean variance


def kmeans(points: Tensor, clusters: int, key: int, starts: int = 10,
           centres: Tensor | None = None) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Labels [points] and centres of the best of several starts, by summed squared distance; float64 throughout.

    Starts are seeded in the manner of k-means++ and take Lloyd's steps side by side. Given `centres`, there is one
    start, from these. A centre that loses all its points stays. With fewer points than clusters some labels are unused.
    """
    x = points.double()
    c = _seeds(x, clusters, key, starts) if centres is None else centres.double()[None]
    close = TOLERANCE * float(x.var(0, correction=0).mean())
    labels = _nearest(x, c)
    for _ in range(STEPS):
        member = torch.nn.functional.one_hot(labels, c.shape[1]).to(x.dtype)  # [starts, points, clusters]
        size = member.sum(1)[..., None]
        moved = torch.where(size > 0, member.mT @ x / size.clamp(min=1), c)
        still = (moved - c).square().sum((1, 2)) <= close
        c, before, labels = moved, labels, _nearest(x, moved)
        if bool((still | (labels == before).all(1)).all()):
            break
    spread = torch.stack([(x - own[mine]).square().sum() for own, mine in zip(c, labels, strict=True)])
    best = int(spread.argmin())
    return labels[best], c[best]


def _seeds(x: Tensor, clusters: int, key: int, starts: int) -> Tensor:
    """The next seed of a start is drawn in proportion to the squared distance from the nearest so far."""
    streams = fold_tensor(torch.tensor(signed(key)), torch.arange(starts)).to(x.device)
    nearest = torch.ones(starts, len(x), dtype=x.dtype, device=x.device)  # for the first seed, all are alike
    seeds = []
    for number in range(clusters):
        reach = nearest.cumsum(1)
        draw = uniform(fold_tensor(streams, number)) * reach[:, -1]
        at = torch.searchsorted(reach, draw[:, None], right=True).clamp(max=len(x) - 1).squeeze(1)
        seeds.append(x[at])
        gap = (x - seeds[-1][:, None]).square().sum(2)
        nearest = torch.minimum(nearest, gap) if number else gap
    return torch.stack(seeds, 1)


def _nearest(x: Tensor, centres: Tensor) -> Tensor:
    return (centres.square().sum(2)[:, None] - 2 * x @ centres.mT).argmin(2)


def random_labels(points: int, clusters: int, key: int) -> Tensor:
    """Uniform and independent."""
    draws = uniform(fold_tensor(fold(key, 0), torch.arange(points)))
    return (draws * clusters).long().clamp(max=clusters - 1)


def adjusted_rand(left: Tensor, right: Tensor) -> float:
    """Agreement of two clusterings: 1 if they are equal up to names, 0 on average if they are unrelated."""
    table = torch.zeros(int(left.max()) + 1, int(right.max()) + 1, dtype=torch.float64)
    table.index_put_((left.long().cpu(), right.long().cpu()), torch.ones(len(left), dtype=torch.float64), True)

    def pairs(count: Tensor) -> float:
        return float((count * (count - 1) / 2).sum())

    both, mine, yours = pairs(table), pairs(table.sum(1)), pairs(table.sum(0))
    expected = mine * yours / max(pairs(table.sum()), 1)
    most = (mine + yours) / 2
    return 1.0 if most == expected else (both - expected) / (most - expected)
