"""Which rows of a comparison differ significantly: tests on the users of the run folders."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from fedrec.errors import FedrecError
from fedrec.evaluation.metrics import MEAN_METRICS
from fedrec.evaluation.significance import LEVEL, RESAMPLES, Difference, holm, paired_bootstrap, paired_t, wilcoxon
from fedrec.experiment.finished_run import FinishedRun
from fedrec.report.comparison import Comparison, Row
from fedrec.report.records import per_user

Array = np.ndarray[Any, np.dtype[Any]]
PREFERRED = "ndcg@10"
POPULARITY = "popularity"
OF_ALL_USERS = (*MEAN_METRICS, "coverage")
"""Metrics that no single user has."""


@dataclass(frozen=True)
class Pair:
    """One row against another, on the same users."""

    row: str
    against: str
    difference: Difference
    p_holm: float
    """Corrected for all pairs of the table."""
    p_seeds: float | None
    """Paired t test over the seeds that both have; None where there are fewer than two."""
    p_wilcoxon: float

    @property
    def significant(self) -> bool:
        # On the corrected value: with many rows some difference is always small enough by chance.
        return self.p_holm < 1 - LEVEL

    def to_dict(self) -> dict[str, Any]:
        d = self.difference
        return {
            "row": self.row,
            "against": self.against,
            "difference": d.mean,
            "low": d.low,
            "high": d.high,
            "p": d.p,
            "p_holm": self.p_holm,
            "p_t_seeds": self.p_seeds,
            "p_wilcoxon": self.p_wilcoxon,
        }


@dataclass(frozen=True)
class Significance:
    """Every row against the best one, and against popularity where it is shown."""

    metric: str
    best: str
    users: int
    pairs: tuple[Pair, ...]

    def like_the_best(self) -> frozenset[str]:
        """Rows that are not significantly different from the best."""
        return frozenset(pair.row for pair in self.pairs if pair.against == self.best and not pair.significant)

    def sign(self, one: str, two: str) -> int | None:
        """1 where `one` is significantly better than `two`, -1 worse, 0 neither; None where they were not compared."""
        for pair in self.pairs:
            # Pairs are stored in one direction only, so both are looked up and the sign is turned.
            if {pair.row, pair.against} == {one, two}:
                higher = (pair.difference.mean > 0) == (pair.row == one)
                return (1 if higher else -1) if pair.significant else 0
        return None

    def rename(self, names: Mapping[str, str]) -> Significance:
        """The same with other names for the rows."""
        pairs = (replace(pair, row=names[pair.row], against=names[pair.against]) for pair in self.pairs)
        return replace(self, best=names[self.best], pairs=tuple(pairs))

    def to_dict(self) -> dict[str, Any]:
        about = {"metric": self.metric, "best": self.best, "users": self.users, "resamples": RESAMPLES, "level": LEVEL}
        return {**about, "pairs": [pair.to_dict() for pair in self.pairs]}


def metric_to_test(comparison: Comparison, asked: Sequence[str] = ()) -> str | None:
    """NDCG@10, or NDCG at the shortest list there is: hits of single items are mostly ties.

    Where other metrics were asked for, the first of them that single users have.
    """
    known = [name for name in asked or comparison.metrics() if name.startswith("ndcg@")]
    if asked and not known:
        return next((name for name in asked if name.split("@")[0] not in OF_ALL_USERS), None)
    # The shortest list where the usual one is missing; lengths are compared as numbers, since "100" sorts before "20".
    return PREFERRED if PREFERRED in known else min(known, key=lambda name: int(name.split("@")[1]), default=None)


def significance(comparison: Comparison, required: bool = False, metrics: Sequence[str] = ()) -> Significance | None:
    """The tests of a comparison, from per_user.csv; None where there is nothing to test, unless they are required.

    `metrics`: those that were asked for, if any.
    """
    if comparison.part != "test":
        # Per-user figures of validation are not written: tests on what a round was chosen by would be too kind.
        if required:
            raise FedrecError("per-user metrics exist for test only; add --on test")
        return None
    metric = metric_to_test(comparison, metrics)
    if metric is None or len(comparison.rows) < 2:
        if required:
            raise FedrecError(
                "nothing to test: give runs of at least two configurations that share ndcg@k, or name another metric"
            )
        return None
    values = values_by_row(comparison.rows, metric)
    # A row without the metric counts as 0 instead of stopping the comparison.
    best = max(comparison.rows, key=lambda row: row.mean(metric) or 0.0)
    asked = [(row, best) for row in comparison.rows if row is not best]
    shown = [row for row in comparison.rows if row.method == POPULARITY and row is not best]
    # The best against popularity is in the list already; a pair counted twice would cost the correction power.
    asked += [(row, pop) for pop in shown for row in comparison.rows if row is not pop and row is not best]
    # Averaged over seeds first: the bootstrap is over users, and seeds of one user are not independent users.
    found = [paired_bootstrap(values[one.label].mean(0), values[two.label].mean(0)) for one, two in asked]
    # One correction for all pairs of the table, whichever of them a reader looks at.
    corrected = holm([difference.p for difference in found])
    pairs = tuple(
        Pair(
            one.label,
            two.label,
            difference,
            p,
            paired_t(*_by_seed(one, two, metric)),
            wilcoxon(values[one.label].mean(0), values[two.label].mean(0)),
        )
        for (one, two), difference, p in zip(asked, found, corrected, strict=True)
    )
    return Significance(metric, best.label, values[best.label].shape[1], pairs)


def values_by_row(rows: Sequence[Row], metric: str) -> dict[str, Array]:
    """[seeds, users] of each row, users in one order for all; an error where they differ."""
    return columns_by_row(rows, metric)[1]


def columns_by_row(rows: Sequence[Row], metric: str) -> tuple[list[str], dict[str, Array]]:
    """The users, and [seeds, users] of each row; an error where rows have different users."""
    users: list[str] | None = None
    values = {}
    for row in rows:
        found = []
        for run in row.runs:
            here, numbers = _column(run, metric)
            if users is not None and here != users:
                raise FedrecError(
                    f"{run.folder} was tested on other users than {rows[0].runs[0].folder}; compare runs of the same "
                    "users, or add --no-significance"
                )
            users = here
            found.append(numbers)
        values[row.label] = np.stack(found)
    return users or [], values


def _column(run: FinishedRun, metric: str) -> tuple[list[str], Array]:
    table = per_user(run)
    if metric not in table:
        raise FedrecError(f"{run.folder} has no {metric} in its per_user.csv; run it again, or add --no-significance")
    # Sorted by user, because files of different runs may list the same users in another order.
    order = sorted(range(len(table["user"])), key=table["user"].__getitem__)
    return [table["user"][place] for place in order], np.array(table[metric], float)[order]


def _by_seed(one: Row, two: Row, metric: str) -> tuple[Array, Array]:
    """Means of the seeds that both rows have; a pair of zeros, which tests nothing, where there are none."""
    # Matched by seed: a paired test needs the same draws on both sides.
    first, second = ({run.summary["seed"]: run.summary["test"][metric] for run in row.runs} for row in (one, two))
    shared = sorted(first.keys() & second.keys())
    # A single zero instead of nothing, which the t test takes for too little to test.
    return np.array([first[seed] for seed in shared] or [0.0]), np.array([second[seed] for seed in shared] or [0.0])
