"""A comparison by groups: the same per-user figures, averaged over those who belong together."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from statistics import mean, stdev
from typing import Any

import numpy as np

from fedrec.data import partition_by_company
from fedrec.errors import FedrecError, unknown
from fedrec.evaluation import parse_protocol
from fedrec.evaluation.groups import ACTIVITY, POPULARITY, TASTE, by_activity, by_popularity, by_taste
from fedrec.experiment.config import make_config
from fedrec.experiment.finished_run import FinishedRun
from fedrec.experiment.prepare import Prepared, prepare_config
from fedrec.report.comparison import Comparison
from fedrec.report.significance import values_by_row

Array = np.ndarray[Any, np.dtype[Any]]


@dataclass(frozen=True)
class Grouped:
    """One metric of every row by group. Groups without users are left out."""

    kind: str
    metric: str
    names: tuple[str, ...]
    users: tuple[int, ...]
    rows: tuple[tuple[str, int, tuple[tuple[float, float | None], ...]], ...]
    """Label, seeds, and mean and deviation over seeds for each group."""

    @property
    def meaning(self) -> str:
        return MEANING[self.kind]


MEANING = {
    "activity": "cold and warm: the 30% of users with the fewest and the most training interactions",
    "taste": "followers and distinct: the 100 users with the largest and the smallest share of training interactions "
    "on popular items, the top 30% of the catalogue",
    "silo": "the users of each company, or of each silo",
    "popularity": "head, mid, tail: held-out items by popularity, thirds of the training interactions",
}


def group_comparison(comparison: Comparison, kind: str, metric: str) -> Grouped:
    """The comparison by activity, taste, popularity or silo, on the data prepared again as the runs had it."""
    if kind not in MAKERS:
        raise unknown("grouping", kind, MAKERS)
    run = comparison.rows[0].runs[0]
    prepared = prepare_again(run)
    names, labels = MAKERS[kind](prepared)
    ids = prepared.source.user_ids[prepared.test.users].astype(str)
    # In the order in which values_by_row gives the users.
    order = np.array(sorted(range(len(ids)), key=ids.__getitem__))
    labels = labels[order]
    # Groups without users have no mean and are left out.
    there = [place for place in range(len(names)) if (labels == place).any()]
    rows = []
    for row in comparison.rows:
        values = values_by_row([row], metric)[row.label]
        if values.shape[1] != len(labels):
            raise FedrecError(f"{row.runs[0].folder} was tested on other users than the data now has; run it again")
        rows.append((row.label, row.seeds, tuple(_over_seeds(values[:, labels == place]) for place in there)))
    sizes = tuple(int((labels == place).sum()) for place in there)
    return Grouped(kind, metric, tuple(names[place] for place in there), sizes, tuple(rows))


def prepare_again(run: FinishedRun) -> Prepared:
    """The data of a run under its protocol, kept or read again; an error where it is gone or not what it was."""
    # groups go by users, not clients
    prepared = run.kept_data or prepare_config(make_config(run.config), parse_protocol(run.protocol), centralised=True)
    source, before = prepared.source, run.summary["dataset"]
    # Compared with what the run wrote down: groups made from other data would be silently wrong.
    if (source.version, source.n_users, source.n_items) != (before["version"], before["users"], before["items"]):
        raise FedrecError(f"the data of {run.folder} has changed since the run ({source!r}); run it again")
    return prepared


def _over_seeds(values: Array) -> tuple[float, float | None]:
    # First over users, then over seeds: the deviation is that of the method, not of the users.
    means = [float(value) for value in values.mean(1)]
    return mean(means), stdev(means) if len(means) > 1 else None


def _activity(prepared: Prepared) -> tuple[tuple[str, ...], Array]:
    counts = np.bincount(prepared.split.train.user, minlength=prepared.source.n_users)
    return ACTIVITY, by_activity(counts[prepared.test.users])


def _taste(prepared: Prepared) -> tuple[tuple[str, ...], Array]:
    train = prepared.split.train
    labels = by_taste((train.user, train.item), train.n_users, train.n_items)
    return TASTE, labels[prepared.test.users]


def _popularity(prepared: Prepared) -> tuple[tuple[str, ...], Array]:
    if not prepared.test.single:
        raise FedrecError("grouping by popularity needs one held-out item per user; use activity or taste")
    return POPULARITY, by_popularity(prepared.item_counts(), prepared.test.items)


def _silo(prepared: Prepared) -> tuple[tuple[str, ...], Array]:
    """Companies by name, others by number; the partition is that of the run, not of a centralised reference."""
    if prepared.source.silos:
        partition, names = partition_by_company(prepared.source)
    else:
        partition, names = prepared.partition, tuple(f"silo {n + 1}" for n in range(prepared.partition.n_clients))
    # With one client, or one user each, the groups would say nothing beyond the whole or the single user.
    if not 1 < partition.n_clients < partition.n_users:
        raise FedrecError("grouping by silo needs clients with several users each (--silos)")
    return names, partition.client_of()[prepared.test.users]


MAKERS: dict[str, Callable[[Prepared], tuple[tuple[str, ...], Array]]] = {
    "activity": _activity,
    "taste": _taste,
    "popularity": _popularity,
    "silo": _silo,
}
