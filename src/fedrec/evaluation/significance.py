"""Whether one method really does better than another: tests on the same users, and on the same seeds.

A result should hold for other users, so users are resampled; a metric is averaged over seeds first. Several
comparisons in one table are corrected together.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from fedrec.errors import FedrecError

Floats: TypeAlias = NDArray[np.float64]

RESAMPLES = 10_000
LEVEL = 0.95
# Bounds memory to some 100 MB, whatever the number of users and resamples.
_DRAWS_AT_ONCE = 4_000_000


@dataclass(frozen=True)
class Difference:
    """The mean of first - second over users, its interval, and its two-sided p value."""

    mean: float
    low: float
    high: float
    p: float


def paired_bootstrap(
    first: NDArray[Any], second: NDArray[Any], *, resamples: int = RESAMPLES, seed: int = 0, level: float = LEVEL
) -> Difference:
    """The bootstrap: resample users and look at where the mean difference falls.

    The interval lies between percentiles of the resampled means. p is twice the share of them on the far side of 0,
    itself counted once more, so that p < 1 - level and an interval without 0 go together but for that one.
    """
    difference = _subtract_paired(first, second)
    if resamples < 1:
        raise FedrecError(f"resamples = {resamples} must be at least 1")
    means = _resample_means(difference, resamples, np.random.default_rng(seed))
    tail = 100 * (1 - level) / 2
    low, high = np.percentile(means, [tail, 100 - tail])
    beyond = min((means <= 0).sum(), (means >= 0).sum())
    p = min(1.0, 2 * (1 + int(beyond)) / (1 + resamples))
    return Difference(float(difference.mean()), float(low), float(high), p)


def paired_t(first: NDArray[Any], second: NDArray[Any]) -> float | None:
    """Two-sided p of a paired t test; None where fewer than two pairs or equal differences leave nothing to test."""
    # Imported here, because scipy.stats loads slowly and most commands never test anything.
    from scipy import stats

    difference = _subtract_paired(first, second)
    # Equal differences deviate by rounding alone, which would make t enormous; 1e-300 is for differences all 0.
    if len(difference) < 2 or difference.std() <= 1e-12 * max(abs(difference).max(), 1e-300):
        return None
    return float(stats.ttest_1samp(difference, 0.0).pvalue)


def wilcoxon(first: NDArray[Any], second: NDArray[Any]) -> float:
    """Two-sided p of the signed-rank test; pairs without a difference are left out, and alone they give 1."""
    from scipy import stats

    difference = _subtract_paired(first, second)
    changed = difference[difference != 0]
    return float(stats.wilcoxon(changed).pvalue) if len(changed) else 1.0


def holm(values: Sequence[float]) -> list[float]:
    """p values corrected for their number: the smallest counts m times, the next m - 1 times, never falling."""
    p = np.asarray(values, np.float64)
    order = np.argsort(p, kind="stable")
    corrected = np.empty_like(p)
    corrected[order] = np.minimum(np.maximum.accumulate(p[order] * np.arange(len(p), 0, -1)), 1.0)
    return [float(value) for value in corrected]


def _subtract_paired(first: NDArray[Any], second: NDArray[Any]) -> Floats:
    one, two = np.asarray(first, np.float64), np.asarray(second, np.float64)
    if one.shape != two.shape or one.ndim != 1 or not len(one):
        raise FedrecError(f"a paired test needs the same users on both sides, not {one.shape} and {two.shape} values")
    return one - two


def _resample_means(values: Floats, resamples: int, rng: np.random.Generator) -> Floats:
    """Draw the means of `resamples` samples of as many values with replacement.

    Zeros need no drawing one by one, and most users of a short list have none but zeros: how many of a sample are
    not zero is binomial, and only those are drawn.
    """
    moved = values[values != 0]
    counts = rng.binomial(len(values), len(moved) / len(values), resamples)
    sums = np.zeros(resamples)
    step = max(1, _DRAWS_AT_ONCE // max(len(moved), 1))
    for start in range(0, resamples if len(moved) else 0, step):
        part = counts[start : start + step]
        # Samples differ in length and make no matrix, so their sums are cut out of one running sum.
        ends = np.cumsum(part)
        running = np.concatenate([[0.0], np.cumsum(moved[rng.integers(len(moved), size=int(ends[-1]))])])
        sums[start : start + step] = running[ends] - running[ends - part]
    return sums / len(values)
