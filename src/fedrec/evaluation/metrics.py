"""Metrics per user from positions, each the exact expectation over random orders of equal scores.

A held-out item with `a` candidates above and `b` equal ones (itself included) takes each rank a+1..a+b with equal
probability. Recall, precision, f1 and dcg are sums over held-out items, so their expectations are too; mrr and map are
not, and are summed over the groups of equal scores instead.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from fedrec.errors import FedrecError, unknown
from fedrec.evaluation.lists import RELEASED
from fedrec.evaluation.own_metrics import TAKEN, find_own_metric, own_metrics
from fedrec.evaluation.targets import Ints, Targets
from fedrec.evaluation.ties import tie_groups

Floats: TypeAlias = NDArray[np.float64]

LIST_METRICS = ("coverage", "novelty", "ndcg_ifedrec", *RELEASED)
"""Metrics that need the lists themselves: what is in them, or the orders in which published code reads them."""
MEAN_METRICS = ("f1_of_means",)
"""Metrics of averages over users, which no single user has."""


def _sum_by_row(values: Floats, indptr: Ints) -> Floats:
    # Only users with a held-out item have a row: reduceat would be wrong for an empty one.
    return np.asarray(np.add.reduceat(values, indptr[:-1]), np.float64)


def _prefix(terms: Floats) -> Floats:
    # From 0 on, so that the sum between any two positions is one subtraction.
    return np.concatenate([[0.0], np.cumsum(terms)])


def _discounts(k: int) -> Floats:
    """Entry j is the sum of 1 / log2(position + 1) over the first j positions."""
    return _prefix(1 / np.log2(np.arange(2, k + 2)))


def _reciprocals(k: int) -> Floats:
    """Entry j is the sum of 1 / position over the first j positions."""
    return _prefix(1 / np.arange(1, k + 1))


def _within(table: Floats, higher: Ints, equal: Ints) -> Floats:
    """The terms of a prefix table that fall on positions higher+1..higher+equal."""
    k = len(table) - 1
    return np.asarray(table[np.minimum(higher + equal, k)] - table[np.minimum(higher, k)], np.float64)


def _hits(higher: Ints, equal: Ints, indptr: Ints, k: int) -> Floats:
    return _sum_by_row(np.clip(k - higher, 0, equal) / equal, indptr)


def recall(higher: Ints, equal: Ints, indptr: Ints, k: int) -> Floats:
    """Share of the held-out items among the first k."""
    return np.asarray(_hits(higher, equal, indptr, k) / np.diff(indptr), np.float64)


def precision(higher: Ints, equal: Ints, indptr: Ints, k: int) -> Floats:
    """Share of the first k that is held out."""
    return _hits(higher, equal, indptr, k) / k


def f1(higher: Ints, equal: Ints, indptr: Ints, k: int) -> Floats:
    """Harmonic mean of precision and recall, which is 2 hits / (k + held-out items)."""
    return np.asarray(2 * _hits(higher, equal, indptr, k) / (k + np.diff(indptr)), np.float64)


def ndcg(higher: Ints, equal: Ints, indptr: Ints, k: int) -> Floats:
    """Discounted gain over that of a perfect list, which holds min(held-out items, k) hits."""
    table = _discounts(k)
    gain = _sum_by_row(_within(table, higher, equal) / equal, indptr)
    return np.asarray(gain / table[np.minimum(np.diff(indptr), k)], np.float64)


def mrr(higher: Ints, equal: Ints, indptr: Ints, k: int) -> Floats:
    """1 / position of the first held-out item, 0 beyond k.

    That item lies in the topmost group; with r held-out items among b it is the j-th with probability
    C(b-j, r-1) / C(b, r), which is r/b at j = 1 and shrinks by (b-j-r+1) / (b-j) from j to j+1.
    """
    top = tie_groups(higher, equal, indptr)
    first = top.hits_above == 0
    above, size, hits = top.higher[first], top.equal[first], top.relevant[first]
    chance = hits / size
    total = np.zeros(len(chance))
    # As far as k at most, however large the group is: beyond k a reciprocal rank counts 0.
    for step in range(1, k + 1):
        total += np.where(above + step <= k, chance / (above + step), 0)
        # The bounds keep a chance that has run out at 0: it must not turn negative or divide by 0.
        chance = chance * np.maximum(size - step - hits + 1, 0) / np.maximum(size - step, 1)
    return total


def map_(higher: Ints, equal: Ints, indptr: Ints, k: int) -> Floats:
    """Mean over min(held-out items, k) of precision at each hit within the first k.

    Rank j of a group with r held-out items among b, h of them in higher groups, is a hit with probability r/b and
    then has h + (j-1)(r-1)/(b-1) hits expected above it.
    """
    found = tie_groups(higher, equal, indptr)
    a, b, r = found.higher, found.equal, found.relevant
    places = np.clip(k - a, 0, b)
    inverse = _within(_reciprocals(k), a, b)  # sum of 1 / (a+j)
    weighted = places - (a + 1) * inverse  # sum of (j-1) / (a+j)
    # In a group of one there is no other hit, and the bound 1 avoids 0 / 0.
    gain = r / b * ((found.hits_above + 1) * inverse + (r - 1) / np.maximum(b - 1, 1) * weighted)
    total = np.bincount(found.row, gain, len(indptr) - 1)
    return np.asarray(total / np.minimum(np.diff(indptr), k), np.float64)


OfPositions: TypeAlias = Callable[[Ints, Ints, Ints, int], Floats]

POSITION_METRICS: dict[str, OfPositions] = {
    "recall": recall,
    "ndcg": ndcg,
    "precision": precision,
    "f1": f1,
    "mrr": mrr,
    "map": map_,
}
METRICS = (*POSITION_METRICS, *MEAN_METRICS, *LIST_METRICS)
SUMMARIES: dict[str, str] = {
    "recall": "share of the held-out items among the first k",
    "hr": "hit rate: recall where every user has one held-out item",
    "ndcg": "discounted gain over that of a perfect list",
    "precision": "share of the first k that is held out",
    "f1": "harmonic mean of precision and recall",
    "mrr": "1 / rank of the first held-out item, 0 beyond k",
    "map": "mean of precision at each hit within the first k",
    "f1_of_means": "harmonic mean of precision and recall, each averaged over users first",
    "coverage": "share of the catalogue in anybody's first k",
    "novelty": "mean surprise of the first k, in bits: -log2 of an item's share of the training interactions",
    "mrr_released": "mrr in the order in which FedCIA's released code reads lists",
    "ndcg_released": "ndcg in the same order, over the hits that there are",
    "ndcg_index": "ndcg in the order of item numbers, as IFedRec's released code reads lists",
    "ndcg_ifedrec": "mean gain in that order times the mean of 1 / ideal gain, as that code pools users",
}
TAKEN.update(("hr", *METRICS))


def from_positions(name: str) -> OfPositions | None:
    """A metric of this package or one's own that positions are enough for."""
    if name in METRICS:
        return POSITION_METRICS.get(name)
    own = find_own_metric(name)
    return None if own is None else own.from_positions


def require_known(metrics: Sequence[str]) -> None:
    """Raise for a name that neither this package nor anybody else has registered."""
    for name in metrics:
        if name not in TAKEN and find_own_metric(name) is None:
            raise unknown("metric", name, (*TAKEN, *own_metrics()), "one of your own is registered by @fedrec.metric")


def with_chance(metrics: Sequence[str] = ()) -> tuple[str, ...]:
    """Metrics that a random ranking has a value of: those of this package, and one's own among these."""
    return (*POSITION_METRICS, *MEAN_METRICS, *(name for name in metrics if name not in TAKEN))


def per_user(higher: Ints, equal: Ints, indptr: Ints, ks: Sequence[int], metrics: Sequence[str]) -> dict[str, Floats]:
    """Every position metric at every k; with one held-out item per user, recall is also given as hr."""
    single = len(higher) == len(indptr) - 1
    values = {
        f"{name}@{k}": metric(higher, equal, indptr, k)
        for name in canonical(metrics, single)
        if (metric := from_positions(name)) is not None
        for k in ks
    }
    hit_rates = {f"hr@{k}": values[f"recall@{k}"] for k in ks if single and f"recall@{k}" in values}
    return hit_rates | values


def canonical(metrics: Sequence[str], single: bool) -> tuple[str, ...]:
    """The names without aliases or repetitions; hr stands for recall, and only where there is one held-out item."""
    require_known(metrics)
    if "hr" in metrics and not single:
        raise FedrecError("hr needs exactly one held-out item per user; use recall instead")
    return tuple(dict.fromkeys("recall" if name == "hr" else name for name in metrics))


def from_means(higher: Ints, equal: Ints, indptr: Ints, ks: Sequence[int], metrics: Sequence[str]) -> dict[str, float]:
    """Return f1_of_means@k: the harmonic mean of precision@k and recall@k, each averaged over users first."""
    found = {}
    for k in ks if "f1_of_means" in metrics else ():
        p, r = (float(metric(higher, equal, indptr, k).mean()) for metric in (precision, recall))
        found[f"f1_of_means@{k}"] = 2 * p * r / (p + r) if p + r else 0.0
    return found


def chance(targets: Targets, ks: Sequence[int], metrics: Sequence[str] = with_chance()) -> dict[str, float]:
    """Averages of a constant scorer: what a random ranking gets. List metrics have no chance level."""
    equal = np.repeat(targets.n_candidates, targets.counts)
    positions = np.zeros_like(equal), equal, targets.indptr
    means = {name: float(value.mean()) for name, value in per_user(*positions, ks, metrics).items()}
    return means | from_means(*positions, ks, metrics)
