"""Lloyd's k-means, for clusterings of items, of clients and of users: seeds as k-means++ draws them, then steps.

Where the draws come from is the caller's business: methods hash a key, partitions have a seed.
"""

from __future__ import annotations

import torch
from torch import Tensor

STEPS = 300  # at most
TOLERANCE = 1e-4  # stop when centres move less than this part of the mean variance
CELLS = 16_000_000  # distances held at once
ASKED = 16  # steps between two questions to an accelerator


def spread_seeds(points: Tensor, draws: Tensor) -> Tensor:
    """Centres [starts, clusters, width] from uniform draws [starts, clusters].

    The next seed of a start is drawn in proportion to the squared distance from the nearest so far (k-means++).
    """
    # In double: differences of nearly equal distances decide, and in single precision devices would choose differently.
    x = points.double()
    nearest = torch.ones(len(draws), len(x), dtype=x.dtype, device=x.device)  # for the first seed, all are alike
    seeds: list[Tensor] = []
    for draw in draws.T:
        reach = nearest.cumsum(1)
        # Clamped, because rounding can put a draw at the very end behind the last point.
        at = torch.searchsorted(reach, (draw * reach[:, -1])[:, None], right=True).clamp(max=len(x) - 1).squeeze(1)
        gap = (x - x[at][:, None]).square().sum(2)
        nearest = torch.minimum(nearest, gap) if seeds else gap
        seeds.append(x[at])
    return torch.stack(seeds, 1)


def lloyd(
    points: Tensor, centres: Tensor, steps: int = STEPS, tolerance: float = TOLERANCE, fill_empty: bool = False
) -> tuple[Tensor, Tensor]:
    """Labels [points] and centres of the best start, by summed squared distance; float64 throughout.

    All starts [starts, clusters, width] step side by side until none of them moves. A centre that loses all its points
    stays where it is, or, with `fill_empty`, is given the point farthest from its own centre.
    """
    x, c = points.double(), centres.double()
    # Relative to the spread of the points, so that the scale of a table does not decide how many steps are taken.
    close = tolerance * x.var(0, correction=0).mean()
    labels, ended = _nearest(x, c), torch.zeros((), dtype=torch.bool, device=x.device)
    for step in range(steps):
        labels = _fill_empty(x, c, labels) if fill_empty else labels
        moved = _means(x, labels, c)
        still = (moved - c).square().sum((1, 2)) <= close
        now = _nearest(x, moved)
        over = (still | (now == labels).all(1)).all()
        # what is done after the end changes nothing, so that a device need not be asked at every step
        c, labels = torch.where(ended, c, moved), torch.where(ended, labels, now)
        ended = ended | over
        if (step + 1) % _between(x.device) == 0 and bool(ended):
            break
    labels = _fill_empty(x, c, labels) if fill_empty else labels
    spread = torch.stack([_distance(x, own, mine).sum() for own, mine in zip(c, labels, strict=True)])
    best = spread.argmin(0, keepdim=True)
    return labels.index_select(0, best)[0], c.index_select(0, best)[0]


def _between(device: torch.device) -> int:
    """Steps from one question to the next whether all is done."""
    return 1 if device.type == "cpu" else ASKED


def _split_rows(x: Tensor, centres: Tensor) -> list[slice]:
    step = max(1, CELLS // centres.shape[:2].numel())
    return [slice(start, start + step) for start in range(0, len(x), step)]


def _nearest(x: Tensor, centres: Tensor) -> Tensor:
    # |x|^2 is left out: it is the same for all centres, so the nearest stays the nearest
    norm = centres.square().sum(2)[:, None]
    return torch.cat([(norm - 2 * x[part] @ centres.mT).argmin(2) for part in _split_rows(x, centres)], 1)


def _means(x: Tensor, labels: Tensor, centres: Tensor) -> Tensor:
    size, total = torch.zeros_like(centres[..., :1]), torch.zeros_like(centres)
    for part in _split_rows(x, centres):
        # a product of matrices in place of scattered additions, whose order on a GPU differs from run to run
        member = torch.nn.functional.one_hot(labels[:, part], centres.shape[1]).to(x.dtype)
        size += member.sum(1)[..., None]
        total += member.mT @ x[part]
    return torch.where(size > 0, total / size.clamp(min=1), centres)


def _distance(x: Tensor, centres: Tensor, labels: Tensor) -> Tensor:
    return (x - centres[labels]).square().sum(1)


def _fill_empty(x: Tensor, centres: Tensor, labels: Tensor) -> Tensor:
    """Every empty cluster gets the point farthest from its own centre, never the last point of another cluster."""
    filled = labels.clone()
    for own, mine in zip(centres, filled, strict=True):
        size = torch.bincount(mine, minlength=len(own))
        empty = (size == 0).nonzero().ravel().tolist()
        if not empty:
            continue
        # stable: of points equally far the first is taken, on every device
        for point in _distance(x, own, mine).argsort(descending=True, stable=True).tolist():
            if size[mine[point]] > 1:
                size[mine[point]] -= 1
                mine[point] = empty.pop()
                size[mine[point]] += 1
            if not empty:
                break
    return filled
