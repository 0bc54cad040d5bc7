"""A node's own data: its file in the numbering of the shared items, split by the node itself."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from fedrec.data import Interactions, Partition, Split, read_table
from fedrec.data.roles import Columns
from fedrec.deploy.terms import Terms
from fedrec.errors import FedrecError, list_few
from fedrec.experiment.aside import set_aside
from fedrec.experiment.config import COLUMNS
from fedrec.experiment.folder import RunFolder
from fedrec.experiment.kept import keep, read_kept
from fedrec.experiment.prepare import Grouping, Places, Prepared, prepare_split, split_by, with_targets
from fedrec.federation.clients import ClientData, Histories
from fedrec.federation.secret import Secret


@dataclass(frozen=True)
class UnknownItems:
    """Rows of a file about items outside the vocabulary."""

    rows: int = 0
    items: int = 0
    examples: tuple[str, ...] = ()

    def __str__(self) -> str:
        return (
            f"{self.rows:,} rows with {self.items:,} items that are not in the vocabulary ({list_few(self.examples)})"
        )


@dataclass(frozen=True)
class NodeData:
    """Where a node's data is and who its clients are: every user one (default), or all users together (`silo`).

    `places`: a file of users with the numbers that they have in a rehearsal.
    """

    data: Path
    silo: bool = False
    places: Path | None = None
    columns: Columns = field(default_factory=dict)
    """Those of the file that were chosen, role by role."""

    def read(self) -> Interactions:
        """The file as it is now."""
        return read_table(self.data, self.columns)[0]


@dataclass(frozen=True)
class Shard:
    """A node's data, prepared; `numbers` are known once the server has given them."""

    prepared: Prepared
    numbers: Places

    @property
    def users(self) -> int:
        return self.prepared.source.n_users

    @cached_property
    def _order(self) -> np.ndarray:
        return np.argsort(self.numbers.users, kind="stable")

    def local(self, users: np.ndarray) -> np.ndarray:
        """Map the federation's user numbers to indices in this shard."""
        return self._order[np.searchsorted(self.numbers.users[self._order], users)]

    def clients(self, terms: Terms, device: str, secret: Secret | None) -> ClientData:
        return self.prepared.clients(terms.world(device), self.numbers, secret)

    def histories(self, clients: ClientData) -> dict[str, Histories | None]:
        """Return the histories to answer from, by part."""
        return {"test": self.prepared.known_at_test(clients, self.numbers)}


def prepare_shard(terms: Terms, own: NodeData, kept: RunFolder) -> tuple[Prepared, UnknownItems]:
    """Read, map and split, once: the result is kept, and the federation goes on with it even if the file changes."""
    chosen: dict[str, Any] = dict.fromkeys(COLUMNS) | dict(own.columns)
    config = replace(terms.config, data=str(own.data), **chosen)
    found = read_kept(kept, config)
    if found is not None and np.array_equal(found.prepared.source.item_ids, terms.items):
        return _with_catalogues(found.prepared, terms), UnknownItems()
    mapped, unknown = _map_items(own.read(), terms)
    prepared = _prepare(mapped, terms, own)
    # users with too few items to take part are served too
    prepared = replace(prepared, aside=set_aside(mapped, prepared.source, terms.protocol.min_rating))
    keep(kept, prepared, config, named=True)
    return _with_catalogues(prepared, terms), unknown


def numbers_of(prepared: Prepared, own: NodeData, start: int) -> Places:
    """Number the clients from `start` on; in a rehearsal take the numbers of the file."""
    if own.places is not None:
        return _read_places(prepared.source.user_ids, own.places)[1]
    clients = start + np.arange(prepared.partition.n_clients)
    users = np.arange(prepared.source.n_users) + (0 if own.silo else start)
    return Places(clients, users)


def _map_items(table: Interactions, terms: Terms) -> tuple[Interactions, UnknownItems]:
    """Keep rows of known items, in the vocabulary's numbering; return also what was left out."""
    place = {str(item): number for number, item in enumerate(terms.items.tolist())}
    names = [str(item) for item in table.item_ids.tolist()]
    where = np.array([place.get(name, -1) for name in names], dtype=np.int64)
    known = where[table.item] >= 0
    left = [name for name, number in zip(names, where, strict=True) if number < 0]
    if not known.any():
        raise FedrecError(
            f"no item of {table.name} is in the vocabulary of the federation (its ids look like "
            f"{list_few(names)}; here they look like {list_few(place)})"
        )
    users = table.user_ids.astype(str) if terms.text_users else table.user_ids
    kept = replace(table, user_ids=users, tie_seed=terms.tie_seed).select(known)
    mapped = replace(kept, item=where[kept.item], item_ids=terms.items, info=None, first_line=None)
    return mapped, UnknownItems(int((~known).sum()), len(left), tuple(left[:3]))


def _prepare(mapped: Interactions, terms: Terms, own: NodeData) -> Prepared:
    """Filter and split as a simulation would, over all items of the vocabulary."""
    rule = terms.protocol
    if rule.split == "leave-one-out" and rule.time_rule(mapped.timestamp is not None) == "item_order":
        raise FedrecError(
            f"{own.data} has no timestamps, and protocol {rule.label} would order items by one shared "
            "file; add a column of times, or name it with --timestamp"
        )
    minimum = rule.min_interactions_for(terms.config.data)
    data = mapped.with_threshold(rule.min_rating).drop_repeats().with_min_interactions(minimum)
    whole = _widen_items(data, terms.items)
    parts = _by_items(whole, terms) if rule.split == "cold-items" else split_by(rule, whole)
    clients = _partition(whole, own)
    if terms.catalogues is None:
        return prepare_split(parts, rule, source=whole, clients=clients)
    return with_targets(whole, parts, clients, rule, None, terms.trained, len(whole), Grouping(published=clients))


def _with_catalogues(prepared: Prepared, terms: Terms) -> Prepared:
    """Rank new items among all new items of the federation, not only those that users of this node have met."""
    if terms.catalogues is None:
        return prepared
    valid, test = terms.catalogues
    ranked = None if prepared.valid is None else replace(prepared.valid, catalogue=valid)
    return replace(prepared, valid=ranked, test=replace(prepared.test, catalogue=test))


def _widen_items(data: Interactions, items: np.ndarray) -> Interactions:
    """Put the items that filtering dropped back: nobody here has met them, other nodes' users have."""
    number = {str(item): k for k, item in enumerate(items.tolist())}
    where = np.array([number[str(item)] for item in data.item_ids.tolist()], dtype=np.int64)
    return replace(data, item=where[data.item], item_ids=items)


def _by_items(data: Interactions, terms: Terms) -> Split:
    """Split by the agreed lists of items that are new at validation and at test."""
    assert terms.catalogues is not None
    valid, test = (np.isin(data.item, catalogue) for catalogue in terms.catalogues)
    train = data.item < terms.trained
    return Split(data.select(train), data.select(valid), data.select(test), "cold_items")


def _partition(data: Interactions, own: NodeData) -> Partition:
    if own.places is not None:
        return _read_places(data.user_ids, own.places)[0]
    count = data.n_users
    return Partition(np.arange(count), np.array([0, count]) if own.silo else np.arange(count + 1))


def _read_places(user_ids: np.ndarray, path: Path) -> tuple[Partition, Places]:
    """Clients and numbers by a file of user, client and number, client after client."""
    with path.open(encoding="utf-8", newline="") as file:
        rows = {line["user"]: (int(line["client"]), int(line["number"])) for line in csv.DictReader(file)}
    index = {str(name): k for k, name in enumerate(user_ids.tolist())}
    order = [(rows[name], index[name]) for name in rows if name in index]
    if len(order) < len(index):
        raise FedrecError(f"{path} lacks {len(index) - len(order)} users; write it again")
    users = np.array([local for _, local in order])
    owners = np.array([client for (client, _), _ in order])
    numbers = np.empty(len(index), np.int64)
    numbers[users] = [number for (_, number), _ in order]
    clients, counts = np.unique(owners, return_counts=True)
    return Partition(users, np.concatenate([[0], np.cumsum(counts)])), Places(clients, numbers)


def write_places(path: Path, rows: Sequence[tuple[str, int, int]]) -> None:
    """Users with their client and number, client after client."""
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["user", "client", "number"])
        writer.writerows(rows)
