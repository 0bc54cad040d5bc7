"""Make lists with the model of a finished run or a fitted model."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from fedrec.data.attributes import Arrival
from fedrec.errors import FedrecError
from fedrec.evaluation import top_k
from fedrec.experiment.opening import Chosen, open_model
from fedrec.experiment.result import Result
from fedrec.federation.clients import Histories, pointers
from fedrec.serve.item_filter import ItemFilter, UnknownId
from fedrec.serve.item_space import ItemSpace, find_factors, find_item_space
from fedrec.serve.newcomers import can_fold_in, score_newcomers
from fedrec.serve.vector_ranking import VectorRanking

CLOSE = 1e-2  # attributes have variance 1; another machine rounds differently, but by less than this
BATCH = 512  # newcomers who are folded in side by side: bounds the memory of their states and scores

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
class SimilarItem:
    """An item that is similar to another one, in original ids."""

    item: Any
    rank: int
    score: float
    title: str | None = None


class FoldInResult(NamedTuple):
    """The list of a new user, and those of their items that the model does not know."""

    offers: list[Recommendation]
    unknown: list[str]


def _open(given: Path | str | Chosen | Result) -> Chosen:
    """The run with its model in place, from wherever it is."""
    if isinstance(given, Chosen):
        return given
    if isinstance(given, Result):
        if given.chosen is not None:
            return given.chosen
        if given.folder is None:
            raise FedrecError("this result has no model any more; run it again, or keep it in a folder with --out")
        return open_model(given.folder)
    return open_model(Path(given))


class Recommender:
    """The model of a run's chosen round, or a fitted one.

    No list contains an item that the user has, whether the run trained on it or held it out. With `as_tested` the
    lists are those that the run's test metrics evaluate, which may contain test items. With `cold`, the items that
    were not in training are ranked instead of those that were.
    """

    def __init__(self, folder: Path | str | Chosen | Result, cold: bool = False, as_tested: bool = False) -> None:
        """Open a run folder, or take a run that is still in memory."""
        self.chosen = _open(folder)
        self.run, self.round = self.chosen
        self.as_tested = as_tested
        source = self.run.prepared.source
        self.user_ids, self.item_ids = source.user_ids, source.item_ids
        self.titles = None if source.info is None else source.info.titles
        if cold and self.run.prepared.warm is None:
            raise FedrecError(f"{folder} was trained on all its items, so none are new; train with --protocol ifedrec")
        known = self.run.world.items
        self.offered = np.arange(known, len(self.item_ids)) if cold else np.arange(known)
        # Built on request alone: a single list does not repay gathering all vectors.
        self._vectors: VectorRanking | None = None

    def prepare_to_serve(self) -> None:
        """Make lists straight from vectors from now on, where the model's scores are their products."""
        whole = not self.offered[0] and len(self.offered) == self.run.world.items
        factors = find_factors(self.chosen) if whole else None
        if factors is not None:
            self._vectors = VectorRanking.from_factors(factors, self._user_items.below(len(self.offered)))

    def answers_at_once(self, user: Any) -> bool:
        """Whether a user's list takes less time than it would take to ask a thread for it."""
        return self._vectors is not None and str(user).strip() in self.user_places

    def add(self, arrivals: Sequence[Arrival]) -> int:
        """Rank items that arrived after training too, known by their attributes alone, beside all others.

        Return how many of them share no attribute with the items of the run.
        """
        run = self.run
        if run.method.disclosure.attributes == "none":
            raise FedrecError(
                f"{run.method.info.name} does not use item attributes; train with ifedrec --protocol ifedrec"
            )
        if not arrivals:
            raise FedrecError("there are no new items to rank; give at least one")
        known = torch.from_numpy(run.prepared.item_features[0])
        # On the CPU and in one dtype, because the run may have been trained on another device.
        trained = run.simulator.server["attributes"][: len(known)].to("cpu", known.dtype)
        if known.shape != trained.shape or not torch.allclose(known, trained, atol=CLOSE):
            raise FedrecError(
                "the attributes of this run were computed in a different way, so new items "
                "cannot be compared with them; train again"
            )
        if taken := {str(name) for name in self.item_ids} & {arrival.item for arrival in arrivals}:
            raise FedrecError(f"item '{min(taken)}' is already in this run's data; give new items different ids")
        vectors, unknown = run.prepared.item_features[1].encode_arrivals(arrivals)
        before = len(self.item_ids)
        placed = torch.from_numpy(vectors).to(run.world.device, run.world.dtype)
        run.simulator.server = run.method.with_items(run.simulator.server, placed)
        # Objects, since ids of arrivals are text even where those of the run are numbers.
        self.item_ids = np.array([*self.item_ids.tolist(), *(arrival.item for arrival in arrivals)], dtype=object)
        titles = [""] * before if self.titles is None else self.titles.tolist()
        self.titles = np.array([*titles, *(arrival.title for arrival in arrivals)], dtype=object)
        self.offered, self._vectors = np.arange(len(self.item_ids)), None
        for name in ("_names", "item_places"):  # they were made for the items before
            self.__dict__.pop(name, None)
        return unknown

    def about(self) -> dict[str, Any]:
        """Describe the model, with a user and an item to ask for."""
        run, examples = self.run, {"item": self._names[0]}
        return {
            "method": run.method.info.name,
            "data": run.plan.data_identity,
            "round": self.round + 1,
            "users": len(self.user_ids) + len(self.left_out_ids),
            "items": len(self.offered),
            "trained_on_everything": not run.prepared.has_test,
            "folds_in": can_fold_in(self.chosen),
            "examples": examples | ({"user": self._users[0]} if self._users else {}),
        }

    # -- users of the run, and those that it left out --

    @cached_property
    def left_out_ids(self) -> np.ndarray:
        """Users of the data that a filter of the run left out; nobody where lists are as tested."""
        aside = self.run.prepared.aside
        return self.user_ids[:0] if aside is None or self.as_tested or self.offered[0] else aside.user_ids

    def for_user(self, user: Any, k: int = 10, only: ItemFilter | None = None) -> list[Recommendation]:
        """List for one user by id, who was in training or left out by the run; `only` of some items."""
        name, barred = str(user).strip(), self._exclude(only)
        if (place := self.user_places.get(name)) is not None:
            found = self._list_trained(place, k, barred)
        elif (place := self.left_out_places.get(name)) is not None:
            found = self._serve_left_out(np.array([place]), k, barred)
        else:
            raise self._explain_unknown(self.user_ids, user, "user")
        # An empty list under a filter is an honest answer; without one it means that nothing is left at all.
        if not found and not only:
            raise FedrecError(f"user {user} has every item of the catalogue; there is nothing left to recommend")
        return found

    def _list_trained(self, place: int, k: int, barred: np.ndarray | None) -> list[Recommendation]:
        if self._vectors is None:
            return self._rank_users(np.array([place]), self._scores_of(place), k, barred=barred)
        best, scores = self._vectors.rank(place, self._require_length(k, len(self.offered)), barred)
        user, names = self._users[place], self._names
        return [
            Recommendation(user, names[item], rank, score, self.title(item))
            for rank, (item, score) in enumerate(zip(best, scores, strict=True), 1)
        ]

    def _exclude(self, only: ItemFilter | None) -> np.ndarray | None:
        """Find the positions among the offered items that no list may contain."""
        if not only:
            return None
        # Positions among the offered items: with cold items the numbering of lists starts later.
        barred = only.exclude(self.item_places, len(self.item_ids), self.run.prepared.source.info) - self.offered[0]
        return barred[(barred >= 0) & (barred < len(self.offered))]

    def for_users(self, places: Sequence[int], k: int = 10) -> list[Recommendation]:
        """List for the users at these places of `user_ids`."""
        return [rec for part in self._iterate_lists(np.array(sorted(places)), k) for rec in part]

    def for_ids(self, users: Sequence[Any], k: int = 10) -> Iterator[Recommendation]:
        """List for these users by id: those of the run first, then those that it left out."""
        names = [str(user).strip() for user in users]
        for name in names:
            if name not in self.user_places and name not in self.left_out_places:
                # All ids are checked before the first list is made, so that no half file is written for a typing error.
                raise self._explain_unknown(self.user_ids, name, "user")
        # Ascending and once each, because scores come client by client in this order.
        trained = sorted({self.user_places[name] for name in names if name in self.user_places})
        few = sorted({self.left_out_places[name] for name in names if name in self.left_out_places})
        for part in self._iterate_lists(np.array(trained, dtype=np.int64), k):
            yield from part
        yield from self._iterate_left_out(np.array(few, dtype=np.int64), k)

    def for_all(self, k: int = 10) -> Iterator[Recommendation]:
        """List for everybody, chunk by chunk as the simulator scores them; users that the run left out come last."""
        for users, scores in self._scores():
            yield from self._rank_users(users, scores, k)
        yield from self._iterate_left_out(np.arange(len(self.left_out_ids)), k)

    def _iterate_lists(self, places: np.ndarray, k: int) -> Iterator[list[Recommendation]]:
        """List for the users at these places, ascending; only their clients are scored."""
        clients = self.run.simulator.data.clients_of(places) if len(places) else places
        for users, scores in self._scores(clients) if len(clients) else ():
            here = np.flatnonzero(np.isin(users, places))
            yield self._rank_users(users[here], scores[torch.from_numpy(here)], k)

    @cached_property
    def _histories(self) -> Histories | None:
        """Histories that scores are computed from, where they are longer than what was trained on."""
        run = self.run
        return run.known_at_test if self.as_tested else run.prepared.known_to_serve(run.simulator.data)

    def _scores(self, clients: np.ndarray | None = None) -> Iterator[tuple[np.ndarray, Tensor]]:
        return self.run.simulator.scores(self.round, self._item_tensor(), self._histories, clients)

    def _scores_of(self, place: int) -> Tensor:
        """Score one user, alone where the method allows it."""
        if not self.run.method.info.scores_together:
            return self.run.simulator.scores_of(place, self.round, self._item_tensor(), self._histories)
        users, scores = next(self._scores(self.run.simulator.data.clients_of(np.array([place]))))
        return scores[np.flatnonzero(users == place)]

    def _item_tensor(self) -> Tensor:
        return torch.from_numpy(self.offered).to(self.run.world.device)

    def _iterate_left_out(self, places: np.ndarray, k: int) -> Iterator[Recommendation]:
        # In batches: every newcomer brings a state of its own, and a whole catalogue of scores.
        for start in range(0, len(places), BATCH):
            yield from self._serve_left_out(places[start : start + BATCH], k)

    def _serve_left_out(self, places: np.ndarray, k: int, barred: np.ndarray | None = None) -> list[Recommendation]:
        """List for users that the run left out, ascending: folded in from what they have, else by popularity."""
        aside = self.run.prepared.aside
        assert aside is not None
        histories = aside.histories(len(self.user_ids), places)
        has_items = np.array([len(history) > 0 for history in histories]) & can_fold_in(self.chosen)
        found = []
        if has_items.any():
            some = places[has_items]
            numbers = self._newcomer_numbers(some)
            scores = score_newcomers(self.chosen, numbers, [histories[at] for at in np.flatnonzero(has_items)])
            found += self._rank_users(len(self.user_ids) + some, scores, k, "folded in", barred)
        if not has_items.all():
            rest = places[~has_items]
            popular = self._score_by_popularity(len(rest))
            found += self._rank_users(len(self.user_ids) + rest, popular, k, "popularity", barred)
        return found

    def _newcomer_numbers(self, places: np.ndarray) -> np.ndarray:
        """Give numbers that nobody else has; the first after the run's users belongs to a user of `fold_in`."""
        # One more than the run's users, so that a left-out user never shares the draws of an anonymous newcomer.
        return len(self.user_ids) + 1 + places

    def _score_by_popularity(self, rows: int) -> Tensor:
        counts = torch.from_numpy(self.run.prepared.item_counts()[self.offered])
        return counts.to(self.run.world.dtype).expand(rows, -1)

    # -- new users --

    def for_history(self, items: Sequence[Any], k: int = 10, user: Any = "new") -> list[Recommendation]:
        """List for a user who was not in training, known only by items (oldest first)."""
        return self.fold_in(items, k, user).offers

    def fold_in(
        self, items: Sequence[Any], k: int = 10, user: Any = "new", only: ItemFilter | None = None
    ) -> FoldInResult:
        """The same, with the names of the items that the model does not know and left out."""
        if self.offered[0] or len(self.offered) != self.run.world.items:
            raise FedrecError("new items are ranked for users of the run; give --user ID or --all")
        # Each item once, in the first order in which it was given: methods that read sequences depend on it.
        names = list(dict.fromkeys(str(item).strip() for item in items))
        known = [self.item_places[name] for name in names if name in self.item_places]
        known = [place for place in known if place < self.run.world.items]
        unknown = [name for name in names if self.item_places.get(name, self.run.world.items) >= self.run.world.items]
        if not names:
            raise FedrecError("the history is empty; give at least one item")
        if not known:
            raise self._explain_unknown(self.item_ids, unknown[0], "item")
        history = np.array(known, dtype=np.int64)
        scores = score_newcomers(self.chosen, np.array([len(self.user_ids)]), [history])
        seen, barred = np.sort(history), self._exclude(only)
        offers = self._rank([user], scores, np.array([0, len(seen)]), seen, k, "folded in", barred)
        return FoldInResult(offers, unknown)

    # -- similar items --

    @cached_property
    def space(self) -> ItemSpace:
        return find_item_space(self.chosen)

    def similar(self, item: Any, k: int = 10) -> list[SimilarItem]:
        """List the items nearest to an item, by the model's item vectors or by the users who have them."""
        place = self._place_of_item(item)
        if place >= self.run.world.items:
            raise FedrecError(f"item '{item}' was not trained on; give an item of the training part")
        # The item itself is not among its neighbours.
        near, values = self.space.nearest(place, self._require_length(k, self.run.world.items - 1))
        return [
            SimilarItem(self._names[at], rank, value, self.title(at))
            for rank, (at, value) in enumerate(zip(near, values, strict=True), 1)
        ]

    # -- lists --

    def _rank_users(
        self,
        users: np.ndarray,
        scores: Tensor,
        k: int,
        served: Served = "trained",
        barred: np.ndarray | None = None,
    ) -> list[Recommendation]:
        """Rank the offered items for these users, without the items that they have."""
        seen = self._user_items.take(users)
        first, last = self.offered[0], self.offered[-1]
        inside = (seen.items >= first) & (seen.items <= last)
        # Seen items outside the offered range fall away, so the bounds of each user are counted anew.
        ends = np.concatenate([[0], np.cumsum(inside)])[seen.ptr]
        names = [self._users[user] for user in users]
        return self._rank(names, scores, ends, seen.items[inside] - first, k, served, barred)

    def _rank(
        self,
        users: list[Any],
        scores: Tensor,
        indptr: np.ndarray,
        seen: np.ndarray,
        k: int,
        served: Served = "trained",
        barred: np.ndarray | None = None,
    ) -> list[Recommendation]:
        if barred is not None:
            # A union, because an item that is both seen and barred must be masked once.
            masked = [np.union1d(seen[start:end], barred) for start, end in pairwise(indptr.tolist())]
            seen, indptr = np.concatenate(masked), pointers(np.array([len(part) for part in masked]))
        best, names = top_k(scores, indptr, seen, self._require_length(k, len(self.offered))), self._names
        # Empty places hold -1, which gather cannot take; they are left out of the list below.
        values = scores.gather(1, torch.from_numpy(np.maximum(best, 0)).to(scores.device)).tolist()
        first = int(self.offered[0])
        return [
            Recommendation(user, names[first + item], rank, values[row][rank - 1], self.title(first + item), served)
            for row, user in enumerate(users)
            for rank, item in enumerate(best[row].tolist(), 1)
            # A list is shorter than asked where the user has nearly everything.
            if item >= 0
        ]

    def _require_length(self, k: int, most: int) -> int:
        if not 1 <= k <= most:
            raise FedrecError(f"k = {k} must lie between 1 and the {most} items of the catalogue")
        return k

    @cached_property
    def _user_items(self) -> Histories:
        """What each user has: those of the run, then those that it left out."""
        prepared = self.run.prepared
        parts: list[Any] = [prepared.split.train, prepared.split.valid, prepared.dropped]
        parts += [] if self.as_tested else [prepared.split.test, prepared.aside]
        users, items = (
            np.concatenate([getattr(part, column) for part in parts if part is not None]) for column in ("user", "item")
        )
        order = np.lexsort((items, users))
        counts = np.bincount(users, minlength=len(self.user_ids) + len(self.left_out_ids))
        return Histories(pointers(counts), items[order])

    # -- names --

    @cached_property
    def _names(self) -> list[Any]:
        return self.item_ids.tolist()

    @cached_property
    def _users(self) -> list[Any]:
        """Ids of the run's users, then of those that it left out."""
        return [*self.user_ids.tolist(), *self.left_out_ids.tolist()]

    @cached_property
    def user_places(self) -> dict[str, int]:
        return {str(name): place for place, name in enumerate(self.user_ids.tolist())}

    @cached_property
    def left_out_places(self) -> dict[str, int]:
        return {str(name): place for place, name in enumerate(self.left_out_ids.tolist())}

    @cached_property
    def item_places(self) -> dict[str, int]:
        return {str(name): place for place, name in enumerate(self.item_ids.tolist())}

    def title(self, item: int) -> str | None:
        """Title of the item at this place of `item_ids`."""
        return None if self.titles is None else str(self.titles[item]) or None

    def _place_of_item(self, item: Any) -> int:
        found = self.item_places.get(str(item).strip())
        if found is None:
            raise self._explain_unknown(self.item_ids, item, "item")
        return found

    def _explain_unknown(self, ids: np.ndarray, wanted: Any, kind: str) -> UnknownId:
        """Say why an id is not known: a filter left it out, or it never was in the data."""
        for record in self.run.prepared.filters:
            if record.holds(kind, str(wanted).strip()):
                instead = "give their items with --history FILE" if kind == "user" else "leave it out"
                return UnknownId(
                    f"{kind} '{wanted}' is in the data but was left out of this run ({record.rule}); "
                    f"train with {record.remedy}, or {instead}"
                )
        examples = ", ".join(str(name) for name in ids[:3])
        return UnknownId(f"{kind} '{wanted}' is not in this run's data (its ids look like {examples})")
