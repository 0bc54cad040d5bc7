"""Recommendations on a node, from its own state and what the server offered last: nothing is asked of anybody."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedrec.data import Interactions, with_items
from fedrec.data.interactions import ItemInfo
from fedrec.deploy.node import NodeHost
from fedrec.errors import FedrecError, list_few
from fedrec.evaluation import top_k
from fedrec.federation.contract import Method
from fedrec.serve import FoldInResult, ItemFilter, Recommendation, SimilarItem, UnknownId
from fedrec.serve.item_space import ItemSpace
from fedrec.serve.newcomers import Surroundings
from fedrec.serve.recommender import Served

TABLE = "item"  # by which methods offer a row for each item


class NodeLists:
    """The model that a node holds now, as `fedrec serve` needs it: every user of the node's file gets a list.

    Users who took part are `trained`. The others, who have too few items for the protocol, are folded in around what
    the server offered, where the method can do that, and get what most users of this node have where it cannot.
    """

    def __init__(self, folder: Path) -> None:
        host = NodeHost(folder)
        self.terms, self.shard, self.side, tensors, offer = host.latest()
        self.side.restore(tensors)
        assert offer.score is not None
        self.step, self.prepared = offer.score, self.shard.prepared
        items = self.step.items
        self.items = np.arange(self.side.world.items) if items is None else items
        self._known = self.shard.histories(self.side.data)["test"]
        self._users = {str(name): place for place, name in enumerate(self.prepared.source.user_ids.tolist())}
        aside = self.prepared.aside
        left_out = [] if aside is None else aside.user_ids.tolist()
        self._left_out = {str(name): place for place, name in enumerate(left_out)}
        self._ids = self.prepared.source.item_ids[self.items].tolist()
        self._names = [str(item) for item in self._ids]
        self._places = {name: place for place, name in enumerate(self._names)}
        self.info = _read_info(host.settings.items, self.prepared.source.item_ids, self.items)

    def about(self) -> dict[str, Any]:
        examples = {"user": next(iter(self._users)), **({"item": self._names[0]} if self.space is not None else {})}
        return {
            "method": self.terms.method.info.name,
            "users": len(self._users) + len(self._left_out),
            "items": len(self.items),
            "folds_in": self._around is not None,
            "examples": examples,
        }

    def for_user(self, user: Any, k: int = 10, only: ItemFilter | None = None) -> list[Recommendation]:
        """List for one of this node's users, by original id, without items that the user has met."""
        name = str(user).strip()
        if name in self._users:
            place = self._users[name]
            return self._rank(name, self._scores(place), self._items_of(place), k, "trained", only)
        if name in self._left_out:
            return self._serve_left_out(name, k, only)
        raise UnknownId(
            f"user '{name}' is not among this node's {self.about()['users']:,} users (their ids look like "
            f"{list_few([*self._users, *self._left_out])})"
        )

    def for_ids(self, users: Iterable[Any], k: int = 10) -> Iterator[Recommendation]:
        """List for these users, in their order."""
        for user in users:
            yield from self.for_user(user, k)

    def for_all(self, k: int = 10) -> Iterator[Recommendation]:
        """List for every user of this node's file: first those who took part."""
        return self.for_ids([*self._users, *self._left_out], k)

    def _serve_left_out(self, name: str, k: int, only: ItemFilter | None) -> list[Recommendation]:
        aside, place = self.prepared.aside, self._left_out[name]
        assert aside is not None
        number = len(self._users) + place
        history = aside.histories(len(self._users), np.array([place]))[0]
        met = self._items_of(number)
        if len(history) and self._around is not None:
            return self._rank(name, self._fold_in(place, history), met, k, "folded in", only)
        popular = torch.from_numpy(self.prepared.item_counts()[self.items]).to(torch.float32)[None]
        return self._rank(name, popular, met, k, "popularity", only)

    def _items_of(self, user: int) -> np.ndarray:
        """Find what a user has met, by their number among all users of the file."""
        prepared = self.prepared
        split = prepared.split
        parts: list[Any] = [split.train, split.valid, split.test, prepared.dropped, prepared.aside]
        return np.concatenate([part.item[part.user == user] for part in parts if part is not None])

    def _rank(
        self, name: str, scores: Tensor, met: np.ndarray, k: int, served: Served, only: ItemFilter | None
    ) -> list[Recommendation]:
        self._require_length(k, len(self.items))
        seen = np.flatnonzero(np.isin(self.items, met))
        if only:
            seen = np.union1d(seen, only.exclude(self._places, len(self.items), self.info))
        best = top_k(scores, np.array([0, len(seen)]), seen, k)[0]
        return [
            Recommendation(name, self._ids[item], rank, float(scores[0, item]), self._title(item), served)
            for rank, item in enumerate(best.tolist(), 1)
            if item >= 0
        ]

    def _title(self, item: int) -> str | None:
        titles = None if self.info is None else self.info.titles
        return None if titles is None else str(titles[item]) or None

    def _scores(self, place: int) -> Tensor:
        number = int(self.shard.numbers.users[place])
        return self.side.scores_of(number, self._item_tensor, self.step.select_down, self._known)

    @cached_property
    def _item_tensor(self) -> Tensor:
        return torch.from_numpy(self.items).to(self.side.world.device)

    # -- users who did not take part --

    @cached_property
    def _around(self) -> Surroundings | None:
        """Return what newcomers train around; None where they cannot, or where clients train on something else."""
        method, down = self.terms.method, self.step.parts[0][1]
        if method.info.new_users is None or type(method).offer is not Method.offer or down.own:
            return None
        data = self.side.data
        return Surroundings(method, self.side.world, data.negatives, down, secret=data.own_secret)

    def _fold_in(self, place: int, history: np.ndarray) -> Tensor:
        """Train one newcomer; `place` gives numbers that no client of the federation has."""
        assert self._around is not None
        return self._around.score(np.array([self.terms.clients + 1 + place]), [history], self._item_tensor)

    def fold_in(self, items: Sequence[Any], k: int, only: ItemFilter | None = None) -> FoldInResult:
        """List for somebody new, from the items that they have, oldest first."""
        if self._around is None:
            raise FedrecError(
                f"{self.terms.method.info.name} cannot serve somebody new on a node, only the users of its own data"
            )
        names = list(dict.fromkeys(str(item).strip() for item in items))
        known = [int(self.items[self._places[name]]) for name in names if name in self._places]
        unknown = [name for name in names if name not in self._places]
        if not known:
            raise UnknownId(f"item '{names[0] if names else ''}' is not in the catalogue of this federation")
        history = np.array(known, dtype=np.int64)
        scores = self._fold_in(len(self._left_out), history)
        return FoldInResult(self._rank("new", scores, history, k, "folded in", only), unknown)

    def similar(self, item: Any, k: int = 10) -> list[SimilarItem]:
        """By the rows of items that the server offered; nobody else's users are known here."""
        if self.space is None:
            raise FedrecError(f"{self.terms.method.info.name} offers nodes no vectors of items to compare")
        if str(item) not in self._places:
            raise UnknownId(f"item '{item}' is not in the catalogue of this federation")
        self._require_length(k, len(self.items) - 1)
        near, values = self.space.nearest(self._places[str(item)], k)
        return [
            SimilarItem(self._ids[at], rank, value, self._title(at))
            for rank, (at, value) in enumerate(zip(near, values, strict=True), 1)
        ]

    @cached_property
    def space(self) -> ItemSpace | None:
        table = self.step.parts[0][1].shared.get(TABLE)
        if table is None or table.dim() != 2 or len(table) != len(self.items):
            return None
        return ItemSpace.from_table(table)

    def _require_length(self, k: int, most: int) -> None:
        if not 1 <= k <= most:
            raise FedrecError(f"k = {k} must lie between 1 and the {most} items of the catalogue")


def _read_info(path: Path | None, ids: np.ndarray, items: np.ndarray) -> ItemInfo | None:
    """Read titles and tags of the items, where the vocabulary that was agreed on has any."""
    if path is None:
        return None
    nobody = np.zeros(0, np.int64)
    try:
        described = with_items(Interactions(nobody, nobody, np.zeros(0, np.int64), ids, name=path.stem), str(path)).info
    except FedrecError:  # it lists ids alone, or is gone: lists need neither
        return None
    return None if described is None else described.take(items)


def recommend(folder: Path, user: str, k: int = 10) -> list[Recommendation]:
    """Recommend items to one of a node's users."""
    return NodeLists(folder).for_user(user, k)
