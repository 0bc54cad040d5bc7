"""One user: what they had, what one or two models list for them, and why an item is there where a model can say."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedrec.board.folders import Entry, FolderIndex
from fedrec.errors import FedrecError
from fedrec.experiment.finished_run import read_run
from fedrec.experiment.opening import open_finished
from fedrec.report.pages.samples import PLACES
from fedrec.report.records import per_user, ranks
from fedrec.serve import Recommendation, Recommender

OPEN = 3  # models in memory: two on the page, and the one before
LISTED = 10
HISTORY = 30  # items of a history that are shown, the latest first
SUGGESTED = 300  # users whose ids the field offers
REASONS = 2
CLOSE = 0.05  # cosine below which an item of the history explains nothing


@dataclass(frozen=True)
class Listed:
    """A line of a list. `elsewhere`: its rank in the other list, where there is one and it stands there."""

    rank: int
    name: str
    held_out: bool
    elsewhere: int | None
    reason: str


class ModelShelf:
    """The models that were opened last."""

    def __init__(self) -> None:
        self._models: OrderedDict[tuple[str, float], Recommender] = OrderedDict()

    def open(self, index: FolderIndex, entry: Entry) -> Recommender:
        """Open the model of a run as it was tested, or return it from before."""
        # By name and time of change: a run that was made again has another model.
        key = (entry.name, entry.changed)
        # Taken out and put back, so that the oldest entry is always the one unused for longest.
        found = self._models.pop(key, None)
        if found is None:
            found = Recommender(open_finished(index.path(entry.name)), as_tested=True)
        self._models[key] = found
        while len(self._models) > OPEN:
            self._models.popitem(last=False)
        return found


def view_user(index: FolderIndex, shelf: ModelShelf, names: Sequence[str], user: str) -> dict[str, Any]:
    """Make the page of a user under the models of one or two runs."""
    for name in names:
        index.look_at(name)
    finished = [entry for entry in index.entries if entry.state == "finished" and not entry.deployed]
    if not finished:
        raise FedrecError("no run has finished yet; its model lists items once it has")
    known = {entry.name: entry for entry in finished}
    for name in names:
        if name not in known:
            raise FedrecError(f"'{name}' is not a finished run of this folder")
    # Each run once: the same list twice beside itself compares nothing.
    chosen = [known[name] for name in dict.fromkeys(names)] or [finished[0]]
    models = [shelf.open(index, entry) for entry in chosen]
    data = {model.run.plan.data_identity: None for model in models}
    # Ids of different data may be equal and mean different people.
    if len(data) > 1:
        raise FedrecError(f"the two runs are of different data: {' and '.join(data)}")
    samples = _find_samples(index, chosen[0])
    user = user or next(iter(samples), str(models[0].user_ids[0]))
    place = _place_of(models[0], user)
    held_out = _held_out(models[0], place)
    lists = [model.for_user(user, min(LISTED, len(model.offered))) for model in models]
    return {
        "title": f"User {user}",
        "user": user,
        "samples": samples,
        "suggested": [str(name) for name in models[0].user_ids[:SUGGESTED]],
        "history": _history(models[0], place),
        "timed": models[0].run.prepared.source.time != "none",
        "held_out": [_name(models[0], item) for item in held_out],
        "lists": [
            {
                "entry": entry,
                "lines": _lines(model, own, [one for one in lists if one is not own], held_out, place),
                "kind": _kind_of_reasons(model),
                "rank": _tested_rank(index, entry, user),
            }
            for entry, model, own in zip(chosen, models, lists, strict=True)
        ],
        "choices": [entry for entry in finished if entry.data == chosen[0].data],
        "runs": [entry.name for entry in chosen],
    }


def _place_of(model: Recommender, user: str) -> int:
    if user not in model.user_places:
        # A list of one item, because asking for it says why a user is not known.
        model.for_user(user, 1)
        raise FedrecError(f"user '{user}' was left out of this run by a filter; choose one that it trained on")
    return model.user_places[user]


def _name(model: Recommender, item: int) -> str:
    return model.title(item) or f"item {model.item_ids[item]}"


def _history(model: Recommender, place: int) -> list[str]:
    train = model.run.prepared.split.train
    items = train.item[train.user == place]
    return [_name(model, item) for item in items[-HISTORY:][::-1].tolist()]


def _held_out(model: Recommender, place: int) -> list[int]:
    test = model.run.prepared.split.test
    return [int(item) for item in test.item[test.user == place]]


def _lines(
    model: Recommender,
    own: Sequence[Recommendation],
    others: Sequence[Sequence[Recommendation]],
    held_out: Sequence[int],
    place: int,
) -> list[Listed]:
    held = {str(model.item_ids[item]) for item in held_out}
    elsewhere = {str(rec.item): rec.rank for other in others for rec in other}
    return [
        Listed(
            rec.rank,
            rec.title or f"item {rec.item}",
            str(rec.item) in held,
            elsewhere.get(str(rec.item)),
            _reason(model, place, model.item_places[str(rec.item)]),
        )
        for rec in own
    ]


def _is_popularity(model: Recommender) -> bool:
    return model.run.method.info.name == "popularity"


def _kind_of_reasons(model: Recommender) -> str:
    if _is_popularity(model):
        return "how many users have it"
    if model.space.kind == "item vectors":
        return "items of the history that lie nearest among the model's item vectors"
    return "items of the history that most of the same users have; the model itself keeps no item vectors"


def _reason(model: Recommender, place: int, item: int) -> str:
    """Why an item may stand in a list: popularity says so exactly, item vectors show what is near."""
    if _is_popularity(model):
        return f"{int(model.run.prepared.item_counts()[item]):,} users have it"
    train = model.run.prepared.split.train
    # Each item once, since a repeated one would fill both places of a reason.
    history = np.unique(train.item[train.user == place])
    near, cosines = model.space.nearest_of(item, history)
    # Below this, nearness is noise, and a reason that explains nothing is worse than none.
    close = [_name(model, other) for other, value in zip(near, cosines, strict=True) if value >= CLOSE][:REASONS]
    return f"near {' and '.join(close)}" if close else ""


def _find_samples(index: FolderIndex, entry: Entry) -> dict[str, str]:
    """Users from the best to the worst served, as a report chooses them; empty where that is not known."""
    try:
        table = per_user(read_run(index.path(entry.name)))
    # Samples are a convenience: without them the page still shows the user who was asked for.
    except FedrecError:
        return {}
    badness = ranks(table)
    if badness is None:
        name = next((name for name in table if name.startswith("ndcg@")), None)
        badness = None if name is None else -np.array(table[name], float)
    if badness is None or not len(badness):
        return {}
    order = np.argsort(badness, kind="stable")
    rows = [(int(order[int(share * (len(order) - 1))]), words) for share, words in PLACES]
    return {table["user"][row]: words for row, words in rows}


def _tested_rank(index: FolderIndex, entry: Entry, user: str) -> int | None:
    """The rank of the held-out item in the run's own test; None where there are several, or none."""
    try:
        table = per_user(read_run(index.path(entry.name)))
    except FedrecError:
        return None
    found = ranks(table)
    if found is None or user not in table["user"]:
        return None
    return round(float(found[table["user"].index(user)]))
