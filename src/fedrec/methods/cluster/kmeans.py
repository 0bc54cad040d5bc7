"""k-means on the rows of a table, with randomness from a key, and how well two clusterings agree."""

from __future__ import annotations

import torch
from torch import Tensor

from fedrec.models.lloyd import lloyd, spread_seeds
from fedrec.random import fold, fold_tensor, to_signed, uniform
from fedrec.training.compiled import to_device


def kmeans(
    points: Tensor, clusters: int, key: int, starts: int = 10, centres: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Labels [points] and centres of the best of several starts, by summed squared distance; float64 throughout.

    Given `centres`, there is one start, from these. With fewer points than clusters some labels are unused.
    """
    if centres is not None:
        return lloyd(points, centres[None])
    streams = fold_tensor(torch.tensor(to_signed(key)), torch.arange(starts))
    draws = uniform(fold_tensor(streams[:, None], torch.arange(clusters)))
    return lloyd(points, spread_seeds(points, to_device(draws.numpy(), points.device)))


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
