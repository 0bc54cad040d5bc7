"""A second opinion: one user at a time, plain Python, ties by trying every order."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence


def metric(name: str, ranked: Sequence[int], held_out: set[int], k: int) -> float:
    """The textbook definition on a list without ties."""
    hits = [position for position, item in enumerate(ranked[:k], 1) if item in held_out]
    best = min(len(held_out), k)
    if name == "recall":
        return len(hits) / len(held_out)
    if name == "precision":
        return len(hits) / k
    if name == "f1":
        p, r = len(hits) / k, len(hits) / len(held_out)
        return 2 * p * r / (p + r) if hits else 0.0
    if name == "ndcg":
        ideal = sum(1 / math.log2(j + 1) for j in range(1, best + 1))
        return sum(1 / math.log2(j + 1) for j in hits) / ideal
    if name == "mrr":
        return 1 / hits[0] if hits else 0.0
    assert name == "map"
    return sum(count / position for count, position in enumerate(hits, 1)) / best


def orders(scores: Sequence[float], candidates: Sequence[int]) -> Iterator[list[int]]:
    """Every list that agrees with the scores."""
    levels = sorted({scores[item] for item in candidates}, reverse=True)
    blocks = [[item for item in candidates if scores[item] == level] for level in levels]
    for choice in itertools.product(*(itertools.permutations(block) for block in blocks)):
        yield [item for block in choice for item in block]


def expected(name: str, scores: Sequence[float], candidates: Sequence[int], held_out: set[int], k: int) -> float:
    values = [metric(name, ranked, held_out, k) for ranked in orders(scores, candidates)]
    return sum(values) / len(values)


def settled(scores: Sequence[float], candidates: Sequence[int], held_out: set[int], ties: str) -> list[int]:
    """The list under a tie rule that leaves nothing to chance."""
    if ties == "first":
        return sorted(candidates, key=lambda item: (-scores[item], item in held_out, item))
    return sorted(candidates, key=lambda item: (-scores[item], item))
