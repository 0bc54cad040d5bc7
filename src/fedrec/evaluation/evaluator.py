"""Evaluation as a stream: chunks of scores come in, in any order, and one result comes out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedrec.errors import FedrecError
from fedrec.evaluation.lists import RELEASED, index_gain, inverse_ideal
from fedrec.evaluation.metrics import LIST_METRICS, Floats, canonical, from_means, per_user, precision, recall
from fedrec.evaluation.partial import GAIN, INVERSE_IDEAL, PRECISION, RECALL, PartialEvaluation
from fedrec.evaluation.ranking import Positions, candidate_scores, held_out_columns, pool_positions, pool_top_k
from fedrec.evaluation.targets import Ints, Targets
from fedrec.evaluation.ties import TIES


@dataclass(frozen=True)
class Evaluation:
    """Metrics of every evaluated user, and the positions they were computed from."""

    users: Ints
    per_user: dict[str, Floats]
    """`metric@k` to one value per entry of `users`."""
    overall: dict[str, float]
    """Metrics that no single user has, such as coverage."""
    positions: Positions = field(repr=False)
    """Candidates above and candidates equal, per held-out item."""
    indptr: Ints = field(repr=False)
    """Positions of user k: `indptr[k]:indptr[k + 1]`."""

    def mean(self) -> dict[str, float]:
        """Averages over users, and the overall metrics."""
        return {name: float(values.mean()) for name, values in self.per_user.items()} | self.overall

    def for_users(self, users: Ints) -> Evaluation:
        """The same of some of its users; what needs all lists, such as coverage, is left out."""
        rows = np.flatnonzero(np.isin(self.users, users))
        counts = np.diff(self.indptr)
        places = np.repeat(np.isin(self.users, users), counts)
        positions = self.positions[0][places], self.positions[1][places]
        indptr = np.concatenate([[0], np.cumsum(counts[rows])])
        # The harmonic mean of averages is no average of users' values, so it is computed afresh for these users.
        ks = [int(name.partition("@")[2]) for name in self.overall if name.startswith("f1_of_means@")]
        overall = from_means(*positions, indptr, ks, ("f1_of_means",))
        values = {name: value[rows] for name, value in self.per_user.items()}
        return Evaluation(self.users[rows], values, overall, positions, indptr)


def novelty_by_item(item_counts: NDArray[Any]) -> Floats:
    """Surprise of each item in bits: -log2 of its share of the training interactions, one added to every count."""
    # One is added, or an item that nobody has trained on would be infinitely surprising.
    smoothed = np.asarray(item_counts, np.float64) + 1
    return np.asarray(-np.log2(smoothed / smoothed.sum()), np.float64)


class Evaluator:
    """Ranks the held-out items of `targets` from chunks of scores.

    coverage@k is the share of the ranked catalogue that appears in any user's first k; novelty@k is the mean of
    `novelty_by_item` over a user's first k and needs `item_counts`, the training interactions of each item. These and
    the released metrics come from lists in which lower item ids win ties, whatever `ties` says.
    """

    def __init__(
        self,
        targets: Targets,
        *,
        ks: Sequence[int] = (5, 10, 20),
        ties: str = "expected",
        metrics: Sequence[str] = ("recall", "ndcg", "mrr"),
        item_counts: NDArray[Any] | None = None,
    ) -> None:
        if ties not in TIES:
            raise FedrecError(f"ties cannot be '{ties}'; legal: {', '.join(TIES)}")
        self.targets, self.ks, self.ties = targets, tuple(ks), ties
        self.metrics = canonical(metrics, targets.single)
        self._higher, self._equal = (np.zeros(len(targets.items), np.int64) for _ in range(2))
        self._seen = np.zeros(len(targets), bool)
        self._listed = {k: np.zeros(targets.n_items, bool) for k in self.ks}
        self._novelty = {k: np.zeros(len(targets)) for k in self.ks}
        self._released = {
            f"{name}@{k}": np.zeros(len(targets)) for name in RELEASED if name in self.metrics for k in self.ks
        }
        self._gain = {k: np.zeros(len(targets)) for k in self.ks if "ndcg_ifedrec" in self.metrics}
        self._bits = np.zeros(targets.n_items)
        if "novelty" in self.metrics:
            if item_counts is None or len(item_counts) != targets.n_items:
                raise FedrecError("novelty needs item_counts, the number of training interactions of each item")
            self._bits = novelty_by_item(item_counts)

    def update(self, users: NDArray[Any], scores: Tensor) -> None:
        """Take logits [len(users), n_items] of distinct users. Users without held-out items are passed over."""
        if len(users) != len(scores):
            raise FedrecError(f"{len(scores)} rows of scores for {len(users)} users; give one row per user")
        rows = self.targets.rows(users)
        if (rows < 0).any():
            scores, rows = scores[torch.from_numpy(np.flatnonzero(rows >= 0)).to(scores.device)], rows[rows >= 0]
        if not len(rows):
            return
        # The second scores would silently replace the first, and who sent them both would not know.
        if self._seen[rows].any() or len(np.unique(rows)) < len(rows):
            raise FedrecError("a user was scored twice in one evaluation; start a new Evaluator for each evaluation")
        chunk = self.targets.take(rows)
        values, ids = candidate_scores(scores, chunk)
        places = self._places(rows)
        self._higher[places], self._equal[places] = pool_positions(values, held_out_columns(chunk), chunk, self.ties)
        # A list costs a search for the best k of every row; positions are enough for all other metrics.
        if any(name in LIST_METRICS for name in self.metrics):
            # One list of the greatest length serves all k, since shorter ones are its beginnings.
            self._take_lists(rows, pool_top_k(values, ids, max(self.ks)), chunk)
        self._seen[rows] = True

    def result(self) -> Evaluation:
        """The evaluation of all users; an error while some have not been scored."""
        if not self._seen.all():
            missing = int((~self._seen).sum())
            raise FedrecError(f"{missing} of {len(self._seen)} evaluated users have no scores; score every user")
        positions = self._higher, self._equal
        values = per_user(*positions, self.targets.indptr, self.ks, self.metrics) | self._released
        if "novelty" in self.metrics:
            values |= {f"novelty@{k}": self._novelty[k] for k in self.ks}
        overall = from_means(*positions, self.targets.indptr, self.ks, self.metrics)
        if "coverage" in self.metrics:
            overall |= {f"coverage@{k}": float(self._listed[k].sum() / self._count_ranked()) for k in self.ks}
        for k, gain in self._gain.items():
            overall[f"ndcg_ifedrec@{k}"] = float(gain.mean() * inverse_ideal(self.targets.counts, k).mean())
        return Evaluation(self.targets.users, values, overall, positions, self.targets.indptr)

    def combine(self, total: Callable[[NDArray[Any]], NDArray[Any]]) -> None:
        """Take what other processes saw: `total` adds up an array over all of them. Each user was seen by one."""
        for array in (
            self._higher,
            self._equal,
            *self._novelty.values(),
            *self._released.values(),
            *self._gain.values(),
        ):
            array[:] = total(array)
        # Flags cannot be added, and `total` does nothing else: as counts, above 0 means that anybody has seen it.
        for flags in (self._seen, *self._listed.values()):
            flags[:] = total(flags.astype(np.int64)) > 0

    def partial(self) -> PartialEvaluation:
        """The evaluation of all users as sums, to be merged with that of others."""
        found, positions = self.result(), (self._higher, self._equal, self.targets.indptr)
        sums = {name: float(values.sum()) for name, values in found.per_user.items()}
        if "f1_of_means" in self.metrics:
            for label, metric in ((PRECISION, precision), (RECALL, recall)):
                sums |= {f"{label}@{k}": float(metric(*positions, k).sum()) for k in self.ks}
        for k, gain in self._gain.items():
            sums[f"{GAIN}@{k}"] = float(gain.sum())
            sums[f"{INVERSE_IDEAL}@{k}"] = float(inverse_ideal(self.targets.counts, k).sum())
        listed = {k: flags.astype(np.int64) for k, flags in self._listed.items()} if "coverage" in self.metrics else {}
        return PartialEvaluation(len(self.targets), sums, listed, self._count_ranked())

    def _count_ranked(self) -> int:
        # Items that no list can hold must not lower coverage.
        return self.targets.n_items if self.targets.catalogue is None else len(self.targets.catalogue)

    def _places(self, rows: Ints) -> Ints:
        """Where the held-out items of some rows stand among all held-out items."""
        counts = self.targets.counts[rows]
        before = np.cumsum(counts) - counts
        return np.asarray(np.arange(counts.sum()) + np.repeat(self.targets.indptr[rows] - before, counts), np.int64)

    def _take_lists(self, rows: Ints, lists: Ints, chunk: Targets) -> None:
        there = lists >= 0
        # Lists can be shorter than k; the padding, -1, would index the last item.
        bits = np.where(there, self._bits[lists], 0)
        for k in self.ks:
            self._listed[k][lists[:, :k][there[:, :k]]] = True
            self._novelty[k][rows] = bits[:, :k].sum(1) / there[:, :k].sum(1)
        for name, values in self._released.items():
            metric, _, length = name.partition("@")
            values[rows] = RELEASED[metric](lists[:, : int(length)], chunk)
        for k, gain in self._gain.items():
            gain[rows] = index_gain(lists[:, :k], chunk)


def evaluate(
    scores: Tensor,
    targets: Targets,
    *,
    ks: Sequence[int] = (5, 10, 20),
    ties: str = "expected",
    metrics: Sequence[str] = ("recall", "ndcg", "mrr"),
    item_counts: NDArray[Any] | None = None,
) -> Evaluation:
    """One-call evaluation of scores whose rows are aligned with `targets.users`."""
    evaluator = Evaluator(targets, ks=ks, ties=ties, metrics=metrics, item_counts=item_counts)
    evaluator.update(targets.users, scores)
    return evaluator.result()
