"""A few users of a run with names instead of numbers: what they saw, what they were offered, what was held out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fedrec.errors import FedrecError
from fedrec.experiment.finished_run import FinishedRun
from fedrec.experiment.opening import Chosen, open_finished
from fedrec.report.records import per_user, ranks
from fedrec.serve import Recommendation, Recommender

# Fixed places instead of chosen users: nobody can pick those who make the method look good.
PLACES = (
    (0.03, "among the best served"),
    (0.25, "better than three in four"),
    (0.5, "in the middle"),
    (0.75, "worse than three in four"),
)
RECENT, LISTED = 5, 10


@dataclass(frozen=True)
class Offer:
    rank: int
    name: str
    held_out: bool


@dataclass(frozen=True)
class SampleUser:
    """`rank` is the held-out item's in the run's own evaluation; None where there are several held-out items."""

    user: str
    served: str
    recent: tuple[str, ...]
    offers: tuple[Offer, ...]
    held_out: tuple[str, ...]
    rank: int | None
    timed: bool

    @property
    def hits(self) -> int:
        return sum(offer.held_out for offer in self.offers)


def sample_users(run: FinishedRun, chosen: Chosen | None = None) -> tuple[list[SampleUser], str]:
    """Users at fixed places of the ranking from best to worst served; if data or model are gone, nobody and why.

    `chosen`: the run, where it is still in memory.
    """
    table = per_user(run)
    if not table:
        return [], "per_user.csv is missing from the run folder, or only its owner can read it"
    if chosen is None and not run.has_data():
        return [], "the data is no longer there"
    try:
        return _samples(Recommender(chosen or open_finished(run.folder), as_tested=True), table), ""
    # Samples are an extra of the report: where they cannot be made, the report says why and goes on.
    except (FedrecError, OSError, KeyError) as error:
        return [], str(error)


def _samples(recommender: Recommender, table: dict[str, list[str]]) -> list[SampleUser]:
    chosen = _choose(table)
    position = {str(name): index for index, name in enumerate(recommender.user_ids.tolist())}
    lists = _lists(recommender, [position[table["user"][row]] for row in chosen])
    found = ranks(table)
    samples = []
    # Not strict: with very few users several places fall on the same one.
    for row, (_, served) in zip(chosen, PLACES, strict=False):
        index = position[table["user"][row]]
        rank = None if found is None else round(float(found[row]))
        samples.append(_sample(recommender, index, served, lists[index], rank))
    return samples


def _choose(table: dict[str, list[str]]) -> list[int]:
    """Rows at the places, from best to worst served."""
    badness = ranks(table)
    if badness is None:
        known = [name for name in table if name.startswith("ndcg@")]
        metric = f"ndcg@{LISTED}" if f"ndcg@{LISTED}" in known else next(iter(known), None)
        if metric is None:
            return []
        # Negative, so that the best served come first as they do by rank.
        badness = -np.array(table[metric], float)
    # Stable, so that users who are served alike come in the order of the file on every machine.
    order = np.argsort(badness, kind="stable")
    rows = (int(order[int(share * (len(order) - 1))]) for share, _ in PLACES)
    # The same user at two places is shown once.
    return list(dict.fromkeys(rows))


def _lists(recommender: Recommender, users: Sequence[int]) -> dict[int, list[Recommendation]]:
    lists: dict[int, list[Recommendation]] = {}
    names = dict(zip(recommender.user_ids[list(users)].tolist(), users, strict=True))
    for rec in recommender.for_users(users, min(LISTED, len(recommender.offered))):
        lists.setdefault(names[rec.user], []).append(rec)
    return lists


def _sample(
    recommender: Recommender, user: int, served: str, offers: Sequence[Recommendation], rank: int | None
) -> SampleUser:
    split = recommender.run.prepared.split
    seen = split.train.item[split.train.user == user]
    held = split.test.item[split.test.user == user]
    held_ids = set(recommender.item_ids[held].tolist())

    def name(item: int) -> str:
        return recommender.title(item) or f"item {recommender.item_ids[item]}"

    return SampleUser(
        user=str(recommender.user_ids[user]),
        served=served,
        # The latest first, as people remember what they saw.
        recent=tuple(name(item) for item in seen[-RECENT:][::-1].tolist()),
        offers=tuple(Offer(rec.rank, rec.title or f"item {rec.item}", rec.item in held_ids) for rec in offers),
        held_out=tuple(name(item) for item in held.tolist()),
        rank=rank,
        timed=recommender.run.prepared.source.time != "none",
    )
