"""Lists out of the model of a finished run or a fitted model."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from fedrec.data.attributes import Arrival
from fedrec.errors import FedrecError
from fedrec.evaluation import top_k
from fedrec.experiment.finished import Chosen, open_model
from fedrec.federation.clients import Histories, pointers
from fedrec.federation.contract import TakesNewItems
from fedrec.serve.item_space import ItemSpace, item_space
from fedrec.serve.newcomers import can_fold_in, folded_in

CLOSE = 1e-2  # attributes have variance 1; other machines round otherwise
AT_ONCE = 512  # newcomers who are folded in side by side

Served = Literal["trained", "folded in", "popularity"]
"""Where a list comes from: the user was in training, was folded in, or gets what most users have."""


@dataclass(frozen=True)
class Recommendation:
    """One line of a list, in original ids."""

    user: Any
    item: Any
    rank: int
    score: float
    title: str | None = None
    served: Served = "trained"


@dataclass(frozen=True)
class Similar:
    """An item beside another one, in original ids."""

    item: Any
    rank: int
    score: float
    title: str | None = None


class NotKnown(FedrecError):
    """An id that the model does not know."""


class Folded(NamedTuple):
    """The list of somebody new, and those of their items that the model does not know."""

    offers: list[Recommendation]
    unknown: list[str]


class Recommender:
    """The model of a run's chosen round, or a fitted one.

    No list holds anything that the user has: neither what was trained on nor what a run held out to be tested. With
    `as_tested` the lists are those that the run's test figures judge, in which test items may stand. With `cold`, the
    items that training never met are ranked instead of those that it did.
    """

    def __init__(self, folder: Path | str | Chosen, cold: bool = False, as_tested: bool = False) -> None:
        """Of a run folder, or of a run that is still in memory."""
        self.chosen = folder if isinstance(folder, Chosen) else open_model(Path(folder))
        self.run, self.round = self.chosen
        self.as_tested = as_tested
        source = self.run.prepared.source
        self.user_ids, self.item_ids = source.user_ids, source.item_ids
        self.titles = None if source.info is None else source.info.titles
        if cold and self.run.prepared.warm is None:
            raise FedrecError(f"{folder} was trained on all its items, so none are new; train with --protocol ifedrec")
        known = self.run.world.items
        self.offered = np.arange(known, len(self.item_ids)) if cold else np.arange(known)

    def add(self, arrivals: Sequence[Arrival]) -> int:
        """Offer items that arrived after training too, known by their attributes alone, beside all others.

        Returns how many share no attribute with the items of the run.
        """
        run = self.run
        if not isinstance(run.method, TakesNewItems):
            raise FedrecError(
                f"{run.method.info.name} does not use item attributes; train with ifedrec --protocol ifedrec"
            )
        if not arrivals:
            raise FedrecError("there are no new items to rank; give at least one")
        known = torch.from_numpy(run.prepared.described[0])
        trained = run.simulator.server["attributes"][: len(known)].to("cpu", known.dtype)
        if known.shape != trained.shape or not torch.allclose(known, trained, atol=CLOSE):
            raise FedrecError(
                "the attributes of this run were computed in a different way, so new items "
                "cannot be compared with them; train again"
            )
        if taken := {str(name) for name in self.item_ids} & {arrival.item for arrival in arrivals}:
            raise FedrecError(f"item '{min(taken)}' is already in this run's data; give new items different ids")
        vectors, unknown = run.prepared.described[1].arriving(arrivals)
        before = len(self.item_ids)
        placed = torch.from_numpy(vectors).to(run.world.device, run.world.dtype)
        run.simulator.server = run.method.with_items(run.simulator.server, placed)
        self.item_ids = np.array([*self.item_ids.tolist(), *(arrival.item for arrival in arrivals)], dtype=object)
        titles = [""] * before if self.titles is None else self.titles.tolist()
        self.titles = np.array([*titles, *(arrival.title for arrival in arrivals)], dtype=object)
        self.offered = np.arange(len(self.item_ids))
        for name in ("_names", "item_places"):  # they were made for the items before
            self.__dict__.pop(name, None)
        return unknown

    def about(self) -> dict[str, Any]:
        """What the model is, with a user and an item to ask for."""
        run, examples = self.run, {"item": self._names[0]}
        return {
            "method": run.method.info.name,
            "data": run.data,
            "round": self.round + 1,
            "users": len(self.user_ids) + len(self.few_ids),
            "items": len(self.offered),
            "trained_on_everything": not run.prepared.tested,
            "folds_in": can_fold_in(self.chosen),
            "examples": examples | ({"user": self._users[0]} if self._users else {}),
        }

    # -- users of the run, and those whom it left out --

    @cached_property
    def few_ids(self) -> np.ndarray:
        """Users of the data whom a filter of the run left out; nobody where lists are as tested."""
        aside = self.run.prepared.aside
        return self.user_ids[:0] if aside is None or self.as_tested or self.offered[0] else aside.user_ids

    def for_user(self, user: Any, k: int = 10) -> list[Recommendation]:
        name = str(user).strip()
        if (place := self.user_places.get(name)) is not None:
            found = self._lists(np.array([place]), self._scores_of(place), k)
        elif (place := self.few_places.get(name)) is not None:
            found = self._few(np.array([place]), k)
        else:
            raise self._missing(self.user_ids, user, "user")
        if not found:
            raise FedrecError(f"user {user} has every item of the catalogue; there is nothing left to recommend")
        return found

    def for_users(self, places: Sequence[int], k: int = 10) -> list[Recommendation]:
        """The users at these places of `user_ids`."""
        return [rec for part in self._passed(np.array(sorted(places)), k) for rec in part]

    def for_ids(self, users: Sequence[Any], k: int = 10) -> Iterator[Recommendation]:
        """These users by id: those of the run first, then those whom it left out."""
        names = [str(user).strip() for user in users]
        for name in names:
            if name not in self.user_places and name not in self.few_places:
                raise self._missing(self.user_ids, name, "user")
        trained = sorted({self.user_places[name] for name in names if name in self.user_places})
        few = sorted({self.few_places[name] for name in names if name in self.few_places})
        for part in self._passed(np.array(trained, dtype=np.int64), k):
            yield from part
        yield from self._all_few(np.array(few, dtype=np.int64), k)

    def for_all(self, k: int = 10) -> Iterator[Recommendation]:
        """Everybody, chunk by chunk as the simulator scores them, and after them whom the run left out."""
        for users, scores in self._scores():
            yield from self._lists(users, scores, k)
        yield from self._all_few(np.arange(len(self.few_ids)), k)

    def _passed(self, places: np.ndarray, k: int) -> Iterator[list[Recommendation]]:
        """The users at these places, ascending; only their clients are asked."""
        clients = self.run.simulator.data.clients_of(places) if len(places) else places
        for users, scores in self._scores(clients) if len(clients) else ():
            here = np.flatnonzero(np.isin(users, places))
            yield self._lists(users[here], scores[torch.from_numpy(here)], k)

    @cached_property
    def _known(self) -> Histories | None:
        """What lists are computed from, where that is more than was trained on."""
        run = self.run
        return run.known_at_test if self.as_tested else run.prepared.known_to_serve(run.simulator.data)

    def _scores(self, clients: np.ndarray | None = None) -> Iterator[tuple[np.ndarray, Tensor]]:
        return self.run.simulator.scores(self.round, self._items(), self._known, clients)

    def _scores_of(self, place: int) -> Tensor:
        """Of one user, alone where the method allows it."""
        if not self.run.method.info.scores_together:
            return self.run.simulator.scores_of(place, self.round, self._items(), self._known)
        users, scores = next(self._scores(self.run.simulator.data.clients_of(np.array([place]))))
        return scores[np.flatnonzero(users == place)]

    def _items(self) -> Tensor:
        return torch.from_numpy(self.offered).to(self.run.world.device)

    def _all_few(self, places: np.ndarray, k: int) -> Iterator[Recommendation]:
        for start in range(0, len(places), AT_ONCE):
            yield from self._few(places[start : start + AT_ONCE], k)

    def _few(self, places: np.ndarray, k: int) -> list[Recommendation]:
        """Users whom the run left out, ascending: folded in from what they have, else by popularity."""
        aside = self.run.prepared.aside
        assert aside is not None
        histories = aside.histories(len(self.user_ids), places)
        has_items = np.array([len(history) > 0 for history in histories]) & can_fold_in(self.chosen)
        found = []
        if has_items.any():
            some = places[has_items]
            scores = folded_in(self.chosen, self._number(some), [histories[at] for at in np.flatnonzero(has_items)])
            found += self._lists(len(self.user_ids) + some, scores, k, "folded in")
        if not has_items.all():
            rest = places[~has_items]
            found += self._lists(len(self.user_ids) + rest, self._popular(len(rest)), k, "popularity")
        return found

    def _number(self, places: np.ndarray) -> np.ndarray:
        """Numbers that nobody else has; the one after the run's users is that of somebody new."""
        return len(self.user_ids) + 1 + places

    def _popular(self, rows: int) -> Tensor:
        counts = torch.from_numpy(self.run.prepared.item_counts()[self.offered])
        return counts.to(self.run.world.dtype).expand(rows, -1)

    # -- somebody new --

    def for_history(self, items: Sequence[Any], k: int = 10, user: Any = "new") -> list[Recommendation]:
        """A user who was not in training, known only by a list of items (oldest first)."""
        return self.fold_in(items, k, user).offers

    def fold_in(self, items: Sequence[Any], k: int = 10, user: Any = "new") -> Folded:
        """The same, with the names of the items that the model does not know, which are left out."""
        if self.offered[0] or len(self.offered) != self.run.world.items:
            raise FedrecError("new items are ranked for users of the run; give --user ID or --all")
        names = list(dict.fromkeys(str(item).strip() for item in items))
        known = [self.item_places[name] for name in names if name in self.item_places]
        known = [place for place in known if place < self.run.world.items]
        unknown = [name for name in names if self.item_places.get(name, self.run.world.items) >= self.run.world.items]
        if not names:
            raise FedrecError("the history is empty; give at least one item")
        if not known:
            raise self._missing(self.item_ids, unknown[0], "item")
        history = np.array(known, dtype=np.int64)
        scores = folded_in(self.chosen, np.array([len(self.user_ids)]), [history])
        seen = np.sort(history)
        return Folded(self._listed([user], scores, np.array([0, len(seen)]), seen, k, "folded in"), unknown)

    # -- items beside an item --

    @cached_property
    def space(self) -> ItemSpace:
        return item_space(self.chosen)

    def similar(self, item: Any, k: int = 10) -> list[Similar]:
        """The items nearest to one of them, by the model's own item vectors or by who has them."""
        place = self._find(item)
        if place >= self.run.world.items:
            raise FedrecError(f"item '{item}' was not trained on; give an item of the training part")
        near, values = self.space.nearest(place, self._require_length(k, self.run.world.items - 1))
        return [
            Similar(self._names[at], rank, value, self.title(at))
            for rank, (at, value) in enumerate(zip(near, values, strict=True), 1)
        ]

    # -- lists --

    def _lists(self, users: np.ndarray, scores: Tensor, k: int, served: Served = "trained") -> list[Recommendation]:
        seen = self._seen.take(users)
        first, last = self.offered[0], self.offered[-1]
        inside = (seen.items >= first) & (seen.items <= last)
        ends = np.concatenate([[0], np.cumsum(inside)])[seen.ptr]
        return self._listed([self._users[user] for user in users], scores, ends, seen.items[inside] - first, k, served)

    def _listed(
        self, users: list[Any], scores: Tensor, indptr: np.ndarray, seen: np.ndarray, k: int, served: Served = "trained"
    ) -> list[Recommendation]:
        best, names = top_k(scores, indptr, seen, self._require_length(k, len(self.offered))), self._names
        values = scores.gather(1, torch.from_numpy(np.maximum(best, 0)).to(scores.device)).tolist()
        first = int(self.offered[0])
        return [
            Recommendation(user, names[first + item], rank, values[row][rank - 1], self.title(first + item), served)
            for row, user in enumerate(users)
            for rank, item in enumerate(best[row].tolist(), 1)
            if item >= 0
        ]

    def _require_length(self, k: int, most: int) -> int:
        if not 1 <= k <= most:
            raise FedrecError(f"k = {k} must lie between 1 and the {most} items of the catalogue")
        return k

    @cached_property
    def _seen(self) -> Histories:
        """What each user has, of the run and of those whom it left out."""
        prepared = self.run.prepared
        parts: list[Any] = [prepared.split.train, prepared.split.valid, prepared.dropped]
        parts += [] if self.as_tested else [prepared.split.test, prepared.aside]
        users, items = (
            np.concatenate([getattr(part, column) for part in parts if part is not None]) for column in ("user", "item")
        )
        order = np.lexsort((items, users))
        counts = np.bincount(users, minlength=len(self.user_ids) + len(self.few_ids))
        return Histories(pointers(counts), items[order])

    # -- names --

    @cached_property
    def _names(self) -> list[Any]:
        return self.item_ids.tolist()

    @cached_property
    def _users(self) -> list[Any]:
        """Of the run, then those whom it left out."""
        return [*self.user_ids.tolist(), *self.few_ids.tolist()]

    @cached_property
    def user_places(self) -> dict[str, int]:
        return {str(name): place for place, name in enumerate(self.user_ids.tolist())}

    @cached_property
    def few_places(self) -> dict[str, int]:
        return {str(name): place for place, name in enumerate(self.few_ids.tolist())}

    @cached_property
    def item_places(self) -> dict[str, int]:
        return {str(name): place for place, name in enumerate(self.item_ids.tolist())}

    def title(self, item: int) -> str | None:
        """Of the item at this place of `item_ids`."""
        return None if self.titles is None else str(self.titles[item]) or None

    def _find(self, item: Any) -> int:
        found = self.item_places.get(str(item).strip())
        if found is None:
            raise self._missing(self.item_ids, item, "item")
        return found

    def _missing(self, ids: np.ndarray, wanted: Any, kind: str) -> NotKnown:
        """Why an id is not known: a filter left it out, or it never was in the data."""
        for record in self.run.prepared.filtered:
            if record.holds(kind, str(wanted).strip()):
                instead = "give their items with --history FILE" if kind == "user" else "leave it out"
                return NotKnown(
                    f"{kind} '{wanted}' is in the data but was left out of this run ({record.rule}); "
                    f"train with {record.remedy}, or {instead}"
                )
        examples = ", ".join(str(name) for name in ids[:3])
        return NotKnown(f"{kind} '{wanted}' is not in this run's data (its ids look like {examples})")
