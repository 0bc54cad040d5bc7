"""From raw interactions and a protocol to what clients train on and what is ranked: the only module that knows both."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal, cast

import numpy as np

from fedrec import data as rooms
from fedrec.data import Filtered, Interactions, Partition, Split
from fedrec.data.attributes import Encoder, Scaler, item_attributes
from fedrec.data.companies import BY_COLUMN, BY_FILES
from fedrec.errors import FedrecError
from fedrec.evaluation import (
    UNDIVIDED,
    Evaluator,
    Protocol,
    Targets,
    candidate_targets,
    forbidden_negatives,
    select_rows,
)
from fedrec.experiment.aside import Aside, set_aside
from fedrec.federation.clients import ClientData, Forbidden, Histories, Unique
from fedrec.federation.contract import World
from fedrec.federation.secret import Secret

if TYPE_CHECKING:
    from fedrec.experiment.config import RunConfig

Part = Literal["valid", "test"]
TIED = 0.1
"""Share of tied new items above which a note is given."""
SETS = ("recall", "hr", "precision", "f1")
"""Metrics that depend on what is in a list, not on its order."""


@dataclass(frozen=True)
class Grouping:
    """How users are put together to clients: what was asked for, and the clients that a published split comes with."""

    silos: str | None = None
    centralised: bool = False
    published: Partition | None = None


@dataclass(frozen=True)
class Places:
    """Where the clients and users of a data set stand in a larger world: their numbers, in their own order."""

    clients: np.ndarray
    users: np.ndarray


@dataclass(frozen=True)
class Prepared:
    """A data set under a protocol. `valid` is None where a given split has no validation part.

    `source` says what the data is: ids, titles, version, filters. Its rows are of no further use.
    """

    source: Interactions
    split: Split
    partition: Partition
    protocol: Protocol
    valid: Targets | None
    test: Targets
    notes: tuple[str, ...]
    dropped: Interactions | None = None
    """Training rows kept from the clients in a sparsity study; `split.train` is without them."""
    warm: int | None = None
    """Under a split by items: how many are trained on. They come first in the numbering; None: all may be."""
    n_interactions: int = 0
    """Rows of the data before it was split."""
    grouping: Grouping = Grouping()
    aside: Aside | None = None
    """What filters left out of the run and serving still needs."""

    def regroup(self, silos: str | None, centralised: bool) -> Prepared:
        """The same data with other clients."""
        grouping = replace(self.grouping, silos=silos, centralised=centralised)
        # Several runs of a study share one preparation, and most of them ask for the same clients.
        if grouping == self.grouping:
            return self
        partition = _partition(self.split.train, self.source.n_users, self.protocol, grouping)
        return replace(self, partition=partition, grouping=grouping)

    @property
    def n_items(self) -> int:
        return self.source.n_items

    @property
    def n_trained(self) -> int:
        """Items that training can meet."""
        return self.n_items if self.warm is None else self.warm

    @cached_property
    def item_features(self) -> tuple[np.ndarray, Encoder | Scaler]:
        """The attributes of all items, and what turns those of a new item into the same kind of vector."""
        # Encoded from trained items alone: a scaling that new items had a part in would have seen the future.
        return item_attributes(self.source.info, self.n_trained, self.source.name)

    @cached_property
    def alike(self) -> tuple[str, ...]:
        """A note where many new items have the same attributes as another one, and so tie with it."""
        new = self.item_features[0][self.n_trained :]
        # Compared byte by byte, since rows that tie are exactly equal.
        tied = len(new) - len({row.tobytes() for row in new})
        if not tied or tied < TIED * len(new):
            return ()
        return (f"{tied:,} of {len(new):,} new items have the attributes of one before them and tie with it",)

    @property
    def filters(self) -> tuple[Filtered, ...]:
        """What was left out between the data and the run."""
        return (*self.source.filtered, *self.split.filtered)

    @property
    def users_before_filters(self) -> int:
        """Users of the data before any filter."""
        return self.source.n_users + sum(record.users for record in self.source.filtered)

    def item_counts(self) -> np.ndarray:
        """Training interactions per item."""
        # Items that nobody trained on need a count as well, or the array would be shorter than the catalogue.
        return np.bincount(self.split.train.item, minlength=self.n_items)

    @property
    def has_test(self) -> bool:
        """Whether anything is held out; a model that only serves trains on everything."""
        return self.protocol.split != UNDIVIDED

    def require_candidates(self) -> None:
        """Metrics at k need a user with more than k candidates at test: otherwise every list is a hit."""
        # A model that only serves holds nothing out, so there is nothing to be too easy.
        if not len(self.test):
            return
        most = int(self.test.n_candidates.max())
        if most < 2:
            raise FedrecError("no user has more than one candidate, so there is nothing to rank; add more items")
        if max(self.protocol.ks) >= most:
            # A quarter of the candidates leaves a list in which being found still says something.
            k = max(1, most // 4)
            raise FedrecError(
                f"k = {max(self.protocol.ks)} is too large for {most} candidates; "
                f"use --protocol {self.protocol.name},ks={k},select_metric=ndcg@{k}"
            )

    def clients(self, world: World, places: Places | None = None, secret: Secret | None = None) -> ClientData:
        """What the clients may see. Held-out items are handed over only under a leaked protocol, typed as such.

        `places`: which clients and users of a larger world they are; None: all of them. `secret`: their own.
        """
        places = places or Places(np.arange(self.partition.n_clients), np.arange(self.source.n_users))
        forbidden = None
        # Held-out items reach clients here and nowhere else, so there is a single place to audit.
        if self.protocol.neg_pool == "leaked":
            held = _pairs(self.split.valid), _pairs(self.split.test)
            dropped = None if self.dropped is None else _pairs(self.dropped)
            user, item = forbidden_negatives(*held, self.protocol, dropped=dropped)
            forbidden = Forbidden(places.users[user], item)
        return ClientData.build(
            world,
            places.users[self.split.train.user],
            self.split.train.item,
            users=places.users[self.partition.users],
            client_ptr=self.partition.offsets,
            clients=places.clients,
            negatives=self.protocol.negatives,
            forbidden=forbidden,
            unique=cast(Unique, self.protocol.neg_unique),
            secret=secret,
        )

    def evaluator(self, part: Part, metrics: Sequence[str] | None = None) -> tuple[Evaluator, np.ndarray | None]:
        """What ranks the held-out items of a part, and the items to score for it (None: all that were trained)."""
        targets = self.test if part == "test" else self.valid
        if targets is None:
            raise FedrecError("there is no validation part to evaluate; give one with --valid")
        counts, ranked = self.item_counts(), None
        if self.warm is not None and targets.catalogue is not None:
            ranked = targets.catalogue
            counts, targets = counts[ranked], targets.over_catalogue()
        chosen = self.protocol
        evaluator = Evaluator(
            targets, ks=chosen.ks, ties=chosen.ties, metrics=metrics or chosen.metrics, item_counts=counts
        )
        return evaluator, ranked

    def known_at_test(self, clients: ClientData, places: Places | None = None) -> Histories | None:
        """What users have met before the test items, to answer from; None where that is what was trained on."""
        # Without validation items nothing is known beyond what was trained on.
        if self.protocol.history_at_test == "train" or not len(self.split.valid):
            return None
        user, item = rooms.before_test(self.split)
        return clients.histories(user if places is None else places.users[user], item)

    def known_to_serve(self, clients: ClientData) -> Histories | None:
        """Everything that users have met, to answer from; None where that is what was trained on, or all that can be.

        Items that training never met are unknown to the model and stay out.
        """
        # Under a split by items, unknown to the model is exactly what was held out.
        if not self.has_test or self.warm is not None:
            return None
        return clients.histories(*rooms.all_in_time(self.split))


def prepare_config(config: RunConfig, protocol: Protocol, centralised: bool) -> Prepared:
    """Read the data that a config names, and prepare it."""
    silos, items = config.silos, config.attributes
    # A split of one's own wins over the data that is named, whose rows it replaces.
    if config.train is not None and config.test is not None:
        given = _as_asked(rooms.read(config.train, config.valid, config.test, config.columns), protocol)
        return prepare_split(given, protocol, silos, centralised, items=items)
    if rooms.find_published_split(config.data):
        # The columns of a published split are what they are; a choice would silently do nothing.
        rooms.require_no_columns(config.data, config.columns)
        stored, clients = rooms.load_split(config.data)
        given = _as_asked(rooms.disjoint(stored), protocol)
        return prepare_split(given, protocol, silos, centralised, clients=clients, items=items)
    return prepare(
        rooms.load(config.data, columns=config.columns, skip_bad=bool(config.skip_bad)),
        protocol,
        silos,
        centralised,
        items,
    )


def prepare(
    data: Interactions,
    protocol: Protocol,
    silos: str | None = None,
    centralised: bool = False,
    items: str | None = None,
) -> Prepared:
    """Filter, split and partition as the protocol says; `items` is a file that describes them."""
    minimum = protocol.min_interactions_for(data.name)
    # Repeats are dropped before users are counted, or one item bought ten times would pass for ten.
    kept = data.with_threshold(protocol.min_rating).drop_repeats().with_min_interactions(minimum)
    if protocol.split != UNDIVIDED and kept.n_users == 1:
        raise FedrecError(
            f"'{data.name}' has a single user with at least {minimum} different items, so there "
            "is nobody to learn from: give the interactions of several users"
        )
    # Filtered before the split, so that every user who is left has enough for all parts.
    prepared = prepare_split(split_by(protocol, kept), protocol, silos, centralised, source=kept, items=items)
    return replace(
        prepared,
        # Set aside from the data as it came: serving needs users and items that the protocol left out.
        aside=set_aside(data, prepared.source, protocol.min_rating),
        notes=(*prepared.notes, *rooms.ratings_note(data, protocol.min_rating)),
    )


def _as_asked(given: Split, protocol: Protocol) -> Split:
    """A given split as it is, or all of it in training where nothing is to be held out."""
    # Under a protocol that holds nothing out, a split only says in which files the rows lie.
    return rooms.reunite(given) if protocol.split == UNDIVIDED else given


def prepare_split(
    split: Split,
    protocol: Protocol,
    silos: str | None = None,
    centralised: bool = False,
    source: Interactions | None = None,
    clients: Partition | None = None,
    items: str | None = None,
) -> Prepared:
    """A given split, taken as it is, with its own clients unless others are asked for."""
    source, warm = source or split.train, None
    if items is not None:
        source = rooms.with_items(source, items)
        # The last note says where the description comes from; earlier ones are in the split already.
        split = replace(split, notes=(*split.notes, source.notes[-1]))
    if protocol.split == "cold-items":
        # Before rows are thinned out, because held-out items must be told from trained ones by all their rows.
        split, source, warm = _cold_last(split, source)
    split, rest = _thin(split, protocol.train_fraction)
    grouping = Grouping(silos, centralised, clients)
    # The partition is made of training rows alone: clients that were grouped by held-out taste would leak it.
    partition = _partition(split.train, source.n_users, protocol, grouping)
    return with_targets(source, split, partition, protocol, rest, warm, len(source), grouping)


def with_targets(
    source: Interactions,
    split: Split,
    partition: Partition,
    protocol: Protocol,
    dropped: Interactions | None,
    warm: int | None,
    n_interactions: int,
    grouping: Grouping,
    ranked: bool = True,
) -> Prepared:
    """A finished split with what is ranked in it; unless `ranked`, for serving alone."""
    train, valid, test = (_pairs(part) for part in (split.train, split.valid, split.test))
    rest = None if dropped is None else _pairs(dropped)
    ranked_valid: Targets | None
    # Ranking takes a mask of every user's items, which serving can do without.
    if protocol.split == UNDIVIDED or not ranked:
        ranked_valid, ranked_test = None, Targets.none(source.n_items)
    elif len(split.valid):
        ranked_valid, ranked_test = candidate_targets(
            train, valid, test, source.n_items, protocol, dropped=rest, seed=source.tie_seed
        )
    else:
        # Rows that were thinned out are known all the same, and must not be ranked as if they were new.
        known = [train] if rest is None else [train, rest]
        ranked_valid, ranked_test = (
            None,
            Targets.build(test, known, source.n_items, catalogue=None if warm is None else test[1]),
        )
    notes = (*split.notes, *_blind_choice(ranked_valid, protocol))
    return Prepared(
        source, split, partition, protocol, ranked_valid, ranked_test, notes, dropped, warm, n_interactions, grouping
    )


def _blind_choice(valid: Targets | None, protocol: Protocol) -> list[str]:
    """A note where so few items are ranked at validation that every list holds them all."""
    if valid is None or protocol.select_on == "test":
        # Where test items select the round, that is the worse problem, and the report names it as a leak.
        return []
    most = int(valid.n_candidates.max())
    names = protocol.select_metric.split("+")
    # Metrics that depend on order still tell rounds apart when every list holds everything.
    if any(name.split("@")[0] not in SETS or int(name.split("@")[1]) < most for name in names):
        return []
    return [
        f"validation ranks at most {most} items, so {' and '.join(names)} cannot distinguish rounds; choose a "
        "smaller k for select_metric"
    ]


def _cold_last(split: Split, source: Interactions) -> tuple[Split, Interactions, int]:
    """Renumber held-out items after all others, both in their old order; also returns the number of the others."""
    cold = np.zeros(source.n_items, dtype=bool)
    cold[split.valid.item] = cold[split.test.item] = True
    both = (
        np.intersect1d(np.flatnonzero(cold), split.train.item).size
        + np.intersect1d(split.valid.item, split.test.item).size
    )
    # An item in two parts would be trained and called new, which is the leak that this split is there to avoid.
    if both:
        raise FedrecError(
            f"{both} items are in more than one part, so they are not new at test; split by items, or "
            "use a protocol for known items such as honest"
        )
    # A stable sort keeps the old order on both sides, so that the same data always gets the same numbers.
    order = np.argsort(cold, kind="stable")
    train, valid, test = (part.renumber_items(order) for part in (split.train, split.valid, split.test))
    return replace(split, train=train, valid=valid, test=test), source.renumber_items(order), int((~cold).sum())


def _thin(split: Split, fraction: float) -> tuple[Split, Interactions | None]:
    """The split with a share of every user's training rows, and the rows left out."""
    if fraction == 1:
        return split, None
    # Its seed is that of the data and not of the run, so that all methods lose the same rows.
    kept = select_rows(_pairs(split.train), fraction, split.train.tie_seed)
    rest = split.train.select(~kept)
    record = Filtered(f"training rows kept from clients by train_fraction={fraction:g}", 0, 0, len(rest))
    return replace(split, train=split.train.select(kept), filtered=(*split.filtered, record)), rest


def split_by(protocol: Protocol, data: Interactions) -> Split:
    """Cut into parts as the protocol says."""
    makers = {
        "leave-one-out": lambda: rooms.leave_one_out(
            data,
            time=cast(Any, _time_rule(data, protocol)),
            ties=cast(Any, protocol.split_ties),
        ),
        "ratio": lambda: rooms.ratio(data, protocol.test_share, protocol.valid_share, data.tie_seed),
        "cold-items": lambda: rooms.cold_items(data, protocol.test_share, protocol.valid_share, data.tie_seed),
        "global-time": lambda: rooms.global_time(data, protocol.test_share, protocol.valid_share),
        UNDIVIDED: lambda: rooms.train_on_all(data),
    }
    return makers[protocol.split]()


def _time_rule(data: Interactions, protocol: Protocol) -> str:
    """Where times are missing, `real` falls back to `random` in the split itself, which then says so in its notes."""
    rule = protocol.time_rule(data.timestamp is not None)
    # Missing times are noted by the split itself, so the rule is passed on as it was asked for.
    return protocol.time if rule == "random" else rule


def _partition(train: Interactions, n_users: int, protocol: Protocol, grouping: Grouping) -> Partition:
    """One silo for a centralised reference, else what was asked for, else the published clients or the protocol's."""
    # A centralised reference ignores what was asked for: it is what the federation is compared with.
    if grouping.centralised:
        return Partition(np.arange(n_users), np.array([0, n_users]))
    if grouping.silos is None and grouping.published is not None:
        return grouping.published
    text = grouping.silos or (None if protocol.partition == "user" else protocol.partition)
    if text is None:
        return rooms.one_user_per_client(n_users)
    if text in (BY_FILES, BY_COLUMN):
        return rooms.partition_by_company(train)[0]
    count, _, how = text.partition(":")
    # The number of digits is bounded, since int() would take a million of them.
    if not re.fullmatch("[0-9]{1,18}", count):
        raise FedrecError(f"--silos {text}: write K, K:contiguous, K:random or K:taste, or files or column")
    return rooms.silos(train, int(count), cast(Any, how or "contiguous"), train.tie_seed)


def _pairs(part: Interactions) -> tuple[np.ndarray, np.ndarray]:
    return part.user, part.item
