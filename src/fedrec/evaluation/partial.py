"""The evaluation of some users as sums: parts from several places merge, and no single user's figures are in them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

PRECISION, RECALL = "precision of means", "recall of means"  # for f1_of_means
GAIN, INVERSE_IDEAL = "gain by item number", "inverse ideal gain"  # for ndcg_ifedrec


@dataclass(frozen=True)
class PartialEvaluation:
    """`listed[k]`: in how many parts an item stands in anybody's first k; empty where coverage is not asked for."""

    users: int
    sums: Mapping[str, float]
    listed: Mapping[int, NDArray[np.int64]] = field(default_factory=dict)
    ranked: int = 0
    """Items that can be listed."""

    def mean(self) -> dict[str, float]:
        """As `Evaluation.mean` of all the users together."""
        # A part may be of nobody; its sums are 0 and so are its means.
        means = {name: total / max(self.users, 1) for name, total in self.sums.items()}
        precision = {name.partition("@")[2]: means.pop(name) for name in list(means) if name.startswith(PRECISION)}
        recall = {name.partition("@")[2]: means.pop(name) for name in list(means) if name.startswith(RECALL)}
        for k, p in precision.items():
            means[f"f1_of_means@{k}"] = 2 * p * recall[k] / (p + recall[k]) if p + recall[k] else 0.0
        # A list of names first, since entries are taken out and added on the way.
        for name in [name for name in means if name.startswith(GAIN)]:
            k = name.partition("@")[2]
            means[f"ndcg_ifedrec@{k}"] = means.pop(name) * means.pop(f"{INVERSE_IDEAL}@{k}")
        return means | {f"coverage@{k}": float((times > 0).sum() / self.ranked) for k, times in self.listed.items()}


def bound_sums(ks: Iterable[int]) -> dict[str, float]:
    """Say how much one user can add to sums where that is not 1: a gain that nothing has divided by its ideal yet."""
    return {f"{GAIN}@{k}": sum(1 / math.log2(place + 1) for place in range(1, k + 1)) for k in ks}


def merge_evaluations(parts: Iterable[PartialEvaluation]) -> PartialEvaluation:
    """Put all users of some parts together."""
    users, ranked = 0, 0
    sums: dict[str, float] = {}
    listed: dict[int, NDArray[np.int64]] = {}
    for part in parts:
        users, ranked = users + part.users, max(ranked, part.ranked)
        for name, total in part.sums.items():
            sums[name] = sums.get(name, 0.0) + total
        for k, times in part.listed.items():
            listed[k] = listed[k] + times if k in listed else times
    return PartialEvaluation(users, sums, listed, ranked)
