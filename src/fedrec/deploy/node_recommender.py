"""Recommendations on a node, from its own state and what the server offered last: nothing is asked of anybody."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedrec.deploy.node import NodeHost
from fedrec.errors import FedrecError, list_few
from fedrec.evaluation import top_k
from fedrec.serve import FoldInResult, Recommendation, SimilarItem, UnknownId
from fedrec.serve.item_space import ItemSpace

TABLE = "item"  # by which methods offer a row for each item


class NodeLists:
    """The model that a node holds now, as `fedrec serve` needs it."""

    def __init__(self, folder: Path) -> None:
        self.terms, self.shard, self.side, tensors, offer = NodeHost(folder).latest()
        self.side.restore(tensors)
        assert offer.score is not None
        self.step, self.prepared = offer.score, self.shard.prepared
        items = self.step.items
        self.items = np.arange(self.side.world.items) if items is None else items
        self._known = self.shard.histories(self.side.data)["test"]
        self._users = {str(name): place for place, name in enumerate(self.prepared.source.user_ids.tolist())}
        self._ids = self.prepared.source.item_ids[self.items].tolist()
        self._names = [str(item) for item in self._ids]

    def about(self) -> dict[str, Any]:
        examples = {"user": next(iter(self._users)), **({"item": self._names[0]} if self.space is not None else {})}
        return {
            "method": self.terms.method.info.name,
            "users": len(self._users),
            "items": len(self.items),
            "folds_in": False,
            "examples": examples,
        }

    def for_user(self, user: Any, k: int = 10) -> list[Recommendation]:
        """The list of one of this node's users, by original id, without items that the user has met."""
        name = str(user).strip()
        if name not in self._users:
            raise UnknownId(
                f"user '{name}' is not among this node's {len(self._users):,} users (their ids look like "
                f"{list_few(list(self._users))})"
            )
        self._require_length(k, len(self.items))
        place = self._users[name]
        row = self._scores(place)
        split = self.prepared.split
        parts = [part for part in (split.train, split.valid, split.test, self.prepared.dropped) if part is not None]
        met = np.concatenate([part.item[part.user == place] for part in parts])
        seen = np.flatnonzero(np.isin(self.items, met))
        best = top_k(row, np.array([0, len(seen)]), seen, k)[0]
        return [
            Recommendation(name, self._ids[item], rank, float(row[0, item]))
            for rank, item in enumerate(best.tolist(), 1)
            if item >= 0
        ]

    def _scores(self, place: int) -> Tensor:
        number = int(self.shard.numbers.users[place])
        items = torch.from_numpy(self.items).to(self.side.world.device)
        return self.side.scores_of(number, items, self.step.select_down, self._known)

    def similar(self, item: Any, k: int = 10) -> list[SimilarItem]:
        """By the rows of items that the server offered; nobody else's users are known here."""
        if self.space is None:
            raise FedrecError(f"{self.terms.method.info.name} offers nodes no vectors of items to compare")
        if str(item) not in self._names:
            raise UnknownId(f"item '{item}' is not in the catalogue of this federation")
        self._require_length(k, len(self.items) - 1)
        near, values = self.space.nearest(self._names.index(str(item)), k)
        return [
            SimilarItem(self._ids[at], rank, value)
            for rank, (at, value) in enumerate(zip(near, values, strict=True), 1)
        ]

    @cached_property
    def space(self) -> ItemSpace | None:
        table = self.step.parts[0][1].shared.get(TABLE)
        if table is None or table.dim() != 2 or len(table) != len(self.items):
            return None
        return ItemSpace.from_table(table)

    def fold_in(self, items: Sequence[Any], k: int) -> FoldInResult:
        raise FedrecError(
            "a node serves the users of its own data; somebody new is folded in by whoever has a run folder"
        )

    def _require_length(self, k: int, most: int) -> None:
        if not 1 <= k <= most:
            raise FedrecError(f"k = {k} must lie between 1 and the {most} items of the catalogue")


def recommend(folder: Path, user: str, k: int = 10) -> list[Recommendation]:
    """Recommend items to one of a node's users."""
    return NodeLists(folder).for_user(user, k)
