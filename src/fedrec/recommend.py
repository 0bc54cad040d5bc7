"""Recommendations out of a finished run: for one user, for everybody, for somebody new."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedrec.data import read_table
from fedrec.data.attributes import Arrival, title_terms
from fedrec.data.items import read_items
from fedrec.data.spreadsheet import unguarded
from fedrec.errors import FedrecError, reason
from fedrec.evaluation import top_k
from fedrec.experiment.finished import Chosen, open_finished
from fedrec.federation.clients import ClientData
from fedrec.federation.contract import State, TakesNewItems

CLOSE = 1e-2  # attributes have variance 1; other machines round otherwise


@dataclass(frozen=True)
class Recommendation:
    """One line of a list, in original ids."""

    user: Any
    item: Any
    rank: int
    score: float
    title: str | None = None


class Recommender:
    """The model of a run's chosen round.

    A known user is never offered items of the training or validation part: the lists are those that the run's test
    figures judge. With `cold`, the items that training never met are ranked instead of those that it did.
    """

    def __init__(self, folder: Path | str | Chosen, cold: bool = False) -> None:
        """Of a run folder, or of a run that is still in memory."""
        self.run, self.round = folder if isinstance(folder, Chosen) else open_finished(Path(folder))
        source = self.run.prepared.source
        self.user_ids, self.item_ids = source.user_ids, source.item_ids
        self.titles = None if source.info is None else source.info.titles
        if cold and self.run.prepared.warm is None:
            raise FedrecError(f"{folder} was trained on all its items, so none is new; train with --protocol ifedrec")
        known = self.run.world.items
        self.offered = np.arange(known, len(self.item_ids)) if cold else np.arange(known)

    def add(self, arrivals: Sequence[Arrival]) -> int:
        """Offer items that arrived after training instead, known by their attributes alone.

        Returns how many share no attribute with the items of the run.
        """
        run = self.run
        if not isinstance(run.method, TakesNewItems):
            raise FedrecError(
                f"{run.method.info.name} knows nothing of attributes; train with ifedrec --protocol ifedrec"
            )
        if not arrivals:
            raise FedrecError("there are no new items to rank; give at least one")
        known = torch.from_numpy(run.prepared.described[0])
        trained = run.simulator.server["attributes"][: len(known)].to("cpu", known.dtype)
        if known.shape != trained.shape or not torch.allclose(known, trained, atol=CLOSE):
            raise FedrecError("the attributes of this run were computed otherwise than they are now, so new items "
                              "cannot be put beside them; train again")  # fmt: skip
        if taken := {str(name) for name in self.item_ids} & {arrival.item for arrival in arrivals}:
            raise FedrecError(f"item '{min(taken)}' is already in this run's data; give new items names of their own")
        vectors, unknown = run.prepared.described[1].arriving(arrivals)
        before = len(self.item_ids)
        placed = torch.from_numpy(vectors).to(run.world.device, run.world.dtype)
        run.simulator.server = run.method.with_items(run.simulator.server, placed)
        self.item_ids = np.array([*self.item_ids.tolist(), *(arrival.item for arrival in arrivals)], dtype=object)
        titles = [""] * before if self.titles is None else self.titles.tolist()
        self.titles = np.array([*titles, *(arrival.title for arrival in arrivals)], dtype=object)
        self.offered = np.arange(before, len(self.item_ids))
        return unknown

    def _scores(self) -> Iterator[tuple[np.ndarray, Tensor]]:
        items = torch.from_numpy(self.offered).to(self.run.world.device)
        return self.run.simulator.scores(self.round, items, self.run.known_at_test)

    def for_user(self, user: Any, k: int = 10) -> list[Recommendation]:
        found = self.for_users([self._find(self.user_ids, user, "user")], k)
        if not found:
            raise FedrecError(f"user {user} has no client in this run")
        return found

    def for_users(self, places: Sequence[int], k: int = 10) -> list[Recommendation]:
        """The users at these places of `user_ids`: one pass over the scores, ended as soon as all were met."""
        left, found = np.array(sorted(places)), list[Recommendation]()
        for users, scores in self._scores():
            here = np.flatnonzero(np.isin(users, left))
            if len(here):
                found += self._lists(users[here], scores[torch.from_numpy(here)], k)
                left = np.setdiff1d(left, users[here])
            if not len(left):
                break
        return found

    def for_all(self, k: int = 10) -> Iterator[Recommendation]:
        """Everybody, chunk by chunk as the simulator scores them."""
        for users, scores in self._scores():
            yield from self._lists(users, scores, k)

    def for_history(self, items: Sequence[Any], k: int = 10, user: Any = "new") -> list[Recommendation]:
        """A user who was not in training, known only by a list of items (oldest first)."""
        method, simulator = self.run.method, self.run.simulator
        if method.info.new_users is None:
            raise FedrecError(
                f"{method.info.name} has no way to serve a user who was not in training; use fedmf or ease"
            )
        history = np.array([self._find(self.item_ids, item, "item") for item in dict.fromkeys(items)], dtype=np.int64)
        if not len(history):
            raise FedrecError("the history is empty; give at least one item")
        state, chunk = self._newcomer(history)
        down = method.broadcast(simulator.server, chunk.clients, self.round)
        for number in range(method.info.new_users):
            state, _ = method.local(state, down, chunk, number)
        with torch.no_grad():
            scores = method.score(state, down, chunk, torch.arange(simulator.world.items))
        return self._listed([user], scores, np.array([0, len(history)]), np.sort(history), k)

    def _newcomer(self, history: np.ndarray) -> tuple[State, Any]:
        """A client of one user; in a centralised method, one more row beside the trained model."""
        method, simulator = self.run.method, self.run.simulator
        world = replace(simulator.world, clients=1, compiled=False)
        newcomer = np.array([len(self.user_ids)])
        data = ClientData.build(
            world,
            np.repeat(newcomer, len(history)),
            history,
            users=newcomer,
            client_ptr=np.array([0, 1]),
            negatives=simulator.data.negatives,
        )
        chunk = data.chunk(np.array([0]))
        state = method.init_clients(world, chunk)
        if method.info.centralised:
            state.per_client = simulator.cohorts[0].state.per_client
        return state, chunk

    def _lists(self, users: np.ndarray, scores: Tensor, k: int) -> list[Recommendation]:
        seen, first, last = self._seen(), self.offered[0], self.offered[-1]
        rows = [seen[user][(seen[user] >= first) & (seen[user] <= last)] - first for user in users.tolist()]
        indptr = np.concatenate([[0], np.cumsum([len(row) for row in rows])]).astype(np.int64)
        known = np.concatenate(rows) if rows else np.zeros(0, dtype=np.int64)
        return self._listed(self.user_ids[users].tolist(), scores, indptr, known, k)

    def _listed(
        self, users: list[Any], scores: Tensor, indptr: np.ndarray, seen: np.ndarray, k: int
    ) -> list[Recommendation]:
        if not 1 <= k <= len(self.offered):
            raise FedrecError(f"k = {k} must lie between 1 and the {len(self.offered)} items of the catalogue")
        best, names = top_k(scores, indptr, seen, k), self.item_ids[self.offered].tolist()
        values = scores.gather(1, torch.from_numpy(np.maximum(best, 0)).to(scores.device)).tolist()
        return [
            Recommendation(user, names[item], rank, values[row][rank - 1], self.title(self.offered[item]))
            for row, user in enumerate(users)
            for rank, item in enumerate(best[row].tolist(), 1)
            if item >= 0
        ]

    def _seen(self) -> list[np.ndarray]:
        if not hasattr(self, "_seen_items"):
            prepared = self.run.prepared
            parts = [prepared.split.train, prepared.split.valid]
            parts += [] if prepared.dropped is None else [prepared.dropped]
            user = np.concatenate([part.user for part in parts])
            item = np.concatenate([part.item for part in parts])
            order = np.lexsort((item, user))
            ends = np.searchsorted(user[order], np.arange(len(self.user_ids) + 1))
            self._seen_items = [item[order[ends[u] : ends[u + 1]]] for u in range(len(self.user_ids))]
        return self._seen_items

    def title(self, item: int) -> str | None:
        """Of the item at this place of `item_ids`."""
        return None if self.titles is None else str(self.titles[item]) or None

    def _find(self, ids: np.ndarray, wanted: Any, kind: str) -> int:
        found = np.flatnonzero(ids.astype(str) == str(wanted).strip())
        if not len(found):
            raise self._missing(ids, wanted, kind)
        return int(found[0])

    def _missing(self, ids: np.ndarray, wanted: Any, kind: str) -> FedrecError:
        """Why an id is not known: a filter left it out, or it never was in the data."""
        for record in self.run.prepared.filtered:
            if record.holds(kind, str(wanted).strip()):
                instead = "give their items with --history FILE" if kind == "user" else "leave it out"
                return FedrecError(f"{kind} '{wanted}' is in the data but was left out of this run ({record.rule}); "
                                   f"train with {record.remedy}, or {instead}")  # fmt: skip
        examples = ", ".join(str(name) for name in ids[:3])
        return FedrecError(f"{kind} '{wanted}' is not in this run's data (its ids look like {examples})")


def read_history(path: Path | str) -> dict[str, list[str]]:
    """Users and their items from a CSV: columns user,item (as any interactions file), or a single column of items."""
    path = Path(path)
    try:
        first = path.read_text(encoding="utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise FedrecError(f"cannot read the history {path}: {reason(error)}") from None
    lines = [unguarded(line.strip()) for line in first if line.strip()]
    if lines and not any(mark in lines[0] for mark in ",\t;|"):
        return {"new": lines[1:] if lines[0].lower() in ("item", "item_id", "movieid", "iid") else lines}
    table, _ = read_table(path)
    order = np.arange(len(table)) if table.timestamp is None else np.argsort(table.timestamp, kind="stable")
    histories: dict[str, list[str]] = {}
    for row in order:
        user = str(table.user_ids[table.user[row]])
        histories.setdefault(user, []).append(str(table.item_ids[table.item[row]]))
    return histories


def read_arrivals(path: Path | str) -> list[Arrival]:
    """New items from a CSV with a column `item` and any of `tags` (joined by |), `title`, `year`, or numbers."""
    return [Arrival(line.item, (*line.tags, *title_terms(line.title, line.year)), line.title, line.numbers)
            for line in read_items(path)]  # fmt: skip
