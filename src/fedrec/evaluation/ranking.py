"""Positions of held-out items among their candidates, and the lists themselves, for a chunk of users at a time.

Scores are logits [users, items] on any device. They are copied, never changed. Nothing here loops over users.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedrec.errors import DivergedError, FedrecError
from fedrec.evaluation.targets import Ints, Targets
from fedrec.evaluation.ties import last_among_equals

Positions: TypeAlias = tuple[Ints, Ints]
"""For each held-out item: candidates scoring strictly higher, and candidates scoring equal, itself included."""

# Scores are finite, so a masked item neither beats nor ties with a candidate.
_MASKED = -torch.inf


def positions(scores: Tensor, targets: Targets, ties: str = "expected") -> Positions:
    """Positions of `targets.items`, where row k of `scores` belongs to row k of `targets`.

    A user's other held-out items are candidates too. Under `first` and `item_id` the order among equals is settled
    and every item counts as equal to itself only: with `first` the held-out items come after the equal candidates,
    in order of their ids; with `item_id` lower ids come first.
    """
    values, _ = candidate_scores(scores, targets)
    return pool_positions(values, held_out_columns(targets), targets, ties)


def top_k(scores: Tensor, mask_indptr: NDArray[Any], mask_items: NDArray[Any], k: int) -> Ints:
    """The k best unmasked items per row, best first, lower ids first among equals; -1 where there are fewer than k."""
    rows = np.repeat(np.arange(len(scores)), np.diff(mask_indptr))
    return pool_top_k(_mask(scores, _to(rows * scores.shape[1] + mask_items, scores.device)), None, k)


def candidate_scores(scores: Tensor, targets: Targets) -> tuple[Tensor, Tensor | None]:
    """A copy of the scores with all but the candidates masked, and the item of each column (None: column = item).

    Columns ascend with item ids within a row, so that their order settles ties by item id. Sampled
    candidates share a narrow matrix with the held-out items, padded by masked columns.
    """
    if scores.shape != (len(targets), targets.n_items):
        raise FedrecError(f"scores have shape {tuple(scores.shape)}, need ({len(targets)}, {targets.n_items})")
    values = _mask(scores, _mask_spots(targets, scores.device))
    if targets.catalogue is not None:
        closed = torch.ones(targets.n_items, dtype=torch.bool)
        closed[torch.from_numpy(targets.catalogue)] = False
        values[:, closed.to(values.device)] = _MASKED
    if targets.candidates is None:
        return values, None
    ids = _to(_pool_items(targets), values.device)
    padded = torch.cat([values, values.new_full((len(values), 1), _MASKED)], 1)
    return padded.gather(1, ids), ids


def held_out_columns(targets: Targets) -> Ints:
    """The column of each held-out item in its row of `candidate_scores`."""
    if targets.candidates is None:
        return targets.items
    rows = np.repeat(np.arange(len(targets)), targets.counts)
    below = np.asarray((targets.candidates[rows] < targets.items[:, None]).sum(1), np.int64)
    return below + np.arange(len(targets.items)) - targets.indptr[rows]


def pool_positions(values: Tensor, columns: Ints, targets: Targets, ties: str) -> Positions:
    """`positions` for scores that have been through `candidate_scores`."""
    if ties == "item_id":
        higher = _places(values, columns, targets)
        return higher, np.ones_like(higher)
    higher, equal = _compare(values, columns) if targets.single else _search(values, columns, targets)
    return (higher, equal) if ties == "expected" else last_among_equals(higher, equal, targets.indptr)


def pool_top_k(values: Tensor, ids: Tensor | None, k: int) -> Ints:
    """`top_k` for scores that have been through `candidate_scores`."""
    width = min(k, values.shape[1])
    best, places = values.topk(width, 1)
    edge = best[:, -1:]
    # topk picks at will among equals: where some were left out at the edge, only a stable sort tells which.
    cut = (values == edge).sum(1) > (best == edge).sum(1)
    if cut.any():
        best[cut], places[cut] = (part[:, :width] for part in values[cut].sort(dim=1, descending=True, stable=True))
    # By column first, so that the stable sort by score leaves equals in the order of their items.
    places, order = places.sort(1)
    best, order = best.gather(1, order).sort(dim=1, descending=True, stable=True)
    places = places.gather(1, order)
    items = places if ids is None else ids.gather(1, places)
    items = items.masked_fill(best == _MASKED, -1)
    return np.asarray(torch.nn.functional.pad(items, (0, k - width), value=-1).cpu().numpy(), np.int64)


def _mask_spots(targets: Targets, device: torch.device) -> Tensor:
    """Return flat indices of the masked items, copied to an accelerator once."""
    if device.type == "cpu":
        return _to(targets.mask_spots, device)
    if device not in targets.on_device:
        targets.on_device[device] = _to(targets.mask_spots, device)
    found: Tensor = targets.on_device[device]
    return found


def _mask(scores: Tensor, masked: Tensor) -> Tensor:
    if scores.dtype in (torch.float16, torch.bfloat16):
        raise FedrecError(f"scores are {scores.dtype}, which makes ties; rank logits in float32 or float64")
    # NaN is neither higher nor equal, so a held-out item with such a score would seem to come first.
    finite = torch.isfinite(scores).all(1)
    if not finite.all():
        bad = int((~finite).sum())
        raise DivergedError(f"non-finite scores for {bad} of {len(scores)} users")
    # Integers have no infinity to mask with.
    dtype = scores.dtype if scores.is_floating_point() else torch.float64
    # a copy: whoever scored keeps the scores as they were
    values = torch.empty(scores.shape, dtype=dtype, device=scores.device).copy_(scores.detach())
    values.view(-1)[masked] = _MASKED
    return values


def _to(array: NDArray[Any], device: torch.device) -> Tensor:
    return torch.from_numpy(np.ascontiguousarray(array, np.int64)).to(device)


def _pool_items(targets: Targets) -> Ints:
    """Sampled and held-out items of each row, ascending; `n_items` fills rows with fewer held-out items."""
    assert targets.candidates is not None
    # One past the last item: it sorts behind them all and is the number of the masked column that pads the scores.
    held_out = np.full((len(targets), int(targets.counts.max())), targets.n_items, np.int64)
    held_out.ravel()[targets.spots()] = targets.items
    return np.sort(np.concatenate([targets.candidates, held_out], 1), 1)


def _compare(values: Tensor, columns: Ints) -> Positions:
    """One held-out item per row: two passes of comparisons, no sort."""
    own = values.gather(1, _to(columns, values.device)[:, None])
    # Both counts are copied back together: each copy waits for the accelerator.
    higher, equal = _counts(torch.stack([(values > own).sum(1), (values == own).sum(1)]))
    return higher, equal


def _search(values: Tensor, columns: Ints, targets: Targets) -> Positions:
    """Several held-out items per row: one sort, then each item finds its group by bisection."""
    width = int(targets.counts.max())
    spots = _to(targets.spots(), values.device)
    rows = spots // width
    own = values.new_zeros(len(targets) * width)
    own[spots] = values[rows, _to(columns, values.device)]
    own = own.view(-1, width)
    # both ends of the group of equals, so that ties can be settled later without the scores
    ordered = values.sort(1).values
    above = torch.searchsorted(ordered, own, right=True)
    below = torch.searchsorted(ordered, own)
    return _counts((values.shape[1] - above).view(-1)[spots]), _counts((above - below).view(-1)[spots])


def _places(values: Tensor, columns: Ints, targets: Targets) -> Ints:
    """How many candidates precede each held-out item when lower columns win ties."""
    # Stable, because lower columns must come first among equals.
    order = values.sort(dim=1, descending=True, stable=True).indices
    ranks = torch.empty_like(order)
    ranks.scatter_(1, order, torch.arange(order.shape[1], device=order.device).expand_as(order))
    rows = np.repeat(np.arange(len(targets)), targets.counts)
    return _counts(ranks[_to(rows, values.device), _to(columns, values.device)])


def _counts(counts: Tensor) -> Ints:
    return np.asarray(counts.cpu().numpy(), np.int64)
