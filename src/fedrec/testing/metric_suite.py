"""The conformance suite for metrics of one's own."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar
from unittest import SkipTest

import numpy as np
from numpy.typing import NDArray

from fedrec.evaluation import Metric

Lists = NDArray[np.float64]
Counts = NDArray[np.int64]


class MetricTests:
    """Subclass it and name the metric; `reference` is optional: the same for one user, by a plain loop.

    class TestRBP(MetricTests):
        metric = rbp

        def reference(self, ranks, relevance, held_out):
            return sum(0.2 * 0.8 ** (rank - 1) for rank, hit in zip(ranks, relevance) if hit)
    """

    metric: ClassVar[Metric]
    ks: ClassVar[tuple[int, ...]] = (1, 3, 10)
    reference: Callable[[list[int], list[int], int], float] | None = None

    def lists(self, k: int, users: int = 60) -> tuple[Lists, Counts]:
        """Lists with no, some and only hits, and users who have more held-out items than were found."""
        rng = np.random.default_rng(k)
        # Every share of hits in turn, so that lists with none and lists full of hits are always among them.
        share = np.array([0.0, 0.2, 0.5, 1.0])[np.arange(users) % 4]
        found = (rng.random((users, k)) < share[:, None]).astype(np.float64)
        missed = rng.integers(0, 3, users)
        # At least one held-out item, because a user without any is never ranked.
        return found, np.maximum(found.sum(1).astype(np.int64) + missed, 1)

    def test_every_user_has_one_sound_value(self) -> None:
        for k in self.ks:
            found, held_out = self.lists(k)
            assert self.metric(found, held_out).shape == (len(found),)

    def test_users_do_not_matter_to_each_other(self) -> None:
        for k in self.ks:
            found, held_out = self.lists(k)
            together = self.metric(found, held_out)
            alone = np.concatenate([self.metric(found[u : u + 1], held_out[u : u + 1]) for u in range(len(found))])
            # Not bit for bit: summing over another number of users may round differently.
            assert np.allclose(together, alone, rtol=0, atol=1e-12), (
                f"{self.metric.name}: a user's value depends on the other users in the array"
            )

    def test_the_same_lists_have_the_same_value(self) -> None:
        found, held_out = self.lists(max(self.ks))
        again = self.metric(found, held_out)
        assert np.array_equal(again, self.metric(found, held_out)), f"{self.metric.name} is not a function of its input"

    def test_a_hit_further_up_is_never_worse(self) -> None:
        for k in self.ks:
            found, held_out = self.lists(k)
            before = self.metric(found, held_out)
            for place in range(1, k):
                # Only neighbouring ranks are exchanged; any longer move is a chain of these.
                swapped = found.copy()
                swapped[:, place - 1] = np.maximum(found[:, place - 1], found[:, place])
                swapped[:, place] = np.minimum(found[:, place - 1], found[:, place])
                assert (self.metric(swapped, held_out) >= before - 1e-12).all(), (
                    f"{self.metric.name}@{k} falls when a hit moves up from rank {place + 1}; higher must be better"
                )

    def test_a_hit_more_is_never_worse(self) -> None:
        for k in self.ks:
            found, held_out = self.lists(k)
            # One more is held out than was found, or recall would be asked for more than all.
            held_out = np.maximum(held_out, found.sum(1).astype(np.int64) + 1)
            before = self.metric(found, held_out)
            for place in range(k):
                more = found.copy()
                more[:, place] = 1
                assert (self.metric(more, held_out) >= before - 1e-12).all(), (
                    f"{self.metric.name}@{k} falls when one more held-out item is found; higher must be better"
                )

    def test_it_tells_lists_apart(self) -> None:
        k = max(self.ks)
        best, none = self.metric(np.eye(1, k), np.ones(1)), self.metric(np.zeros((1, k)), np.ones(1))
        assert best > none, f"{self.metric.name}: a hit at rank 1 is worth no more than none"

    def test_one_user_at_a_time_agrees(self) -> None:
        if self.reference is None:
            raise SkipTest("no reference is given")
        for k in self.ks:
            found, held_out = self.lists(k)
            ranks = list(range(1, k + 1))
            for row, count, value in zip(found, held_out, self.metric(found, held_out), strict=True):
                expected = self.reference(ranks, [int(hit) for hit in row], int(count))
                # Looser than between arrays, since a plain loop adds in another order.
                assert abs(value - expected) <= 1e-9, f"{self.metric.name}@{k} of {row}: {value}, reference {expected}"
