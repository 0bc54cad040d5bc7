"""The training data of the clients, and nothing else: held-out items are not in here.

What a user's recommendations are computed from may be longer than what was trained on: at test the validation items
are known too. Such histories are handed to scoring alone, beside the training data and never inside it.

A client's number is its name in the whole federation, never a position: a group of hosted clients may be any of them.
Users are numbered by place: those of one client lie together, clients in order, so a run of clients is a slice.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Literal, Protocol

import numpy as np
import scipy.sparse as sp
from torch import Tensor

from fedrec.errors import FedrecError
from fedrec.federation.contract import World
from fedrec.federation.secret import Secret, SeededSecret
from fedrec.kernels.device import to_device

Unique = Literal["positive", "user"]
"""Among which negatives of a round no item comes twice: those of one positive, or all of a user's."""

Figure = float | Tensor
"""A number, or a tensor of one in double precision."""


@dataclass(frozen=True)
class Forbidden:
    """Held-out items that a leaked protocol keeps out of the negative pool. Only a leaked protocol makes one."""

    user: np.ndarray
    item: np.ndarray


@dataclass(frozen=True)
class Pool:
    """What a user's negatives may not be, as `gap[k] = excluded[k] - k` of the sorted excluded items.

    The r-th allowed item of a user is `r + #{k: gap[k] <= r}`: uniform draws without rejection.
    """

    indptr: np.ndarray
    gap: np.ndarray

    @staticmethod
    def excluding(user: np.ndarray, item: np.ndarray, n_users: int) -> Pool:
        span = int(item.max(initial=0)) + 1
        # One number for each pair, since a single sort key is sorted faster than two.
        pairs = np.sort(user * span + item)
        # Excluded twice, an item would shift every allowed one behind it.
        pairs = pairs[np.diff(pairs, prepend=-1) > 0]
        indptr = pointers(np.bincount(pairs // span, minlength=n_users))
        rank = np.arange(len(pairs)) - np.repeat(indptr[:-1], np.diff(indptr))
        return Pool(indptr, pairs % span - rank)


@dataclass(frozen=True)
class Histories:
    """Users' items in time order: those of the user at place k are `items[ptr[k]:ptr[k + 1]]`."""

    ptr: np.ndarray
    items: np.ndarray

    def take(self, places: np.ndarray) -> Histories:
        """Of some users, in the order given."""
        where = concatenate_ranges(self.ptr[places], self.ptr[places + 1])
        return Histories(pointers(np.diff(self.ptr)[places]), self.items[where])

    def below(self, n_items: int) -> Histories:
        """The same without items from number `n_items` on."""
        # Cold items have numbers behind all others, which a model that never met them cannot look up.
        inside = self.items < n_items
        return Histories(np.concatenate([[0], np.cumsum(inside)])[self.ptr], self.items[inside])

    def by_item(self) -> np.ndarray:
        """The items ascending within each user, for models that know no order: sums then round alike in any order."""
        return self.items[np.lexsort((self.items, np.repeat(np.arange(len(self.ptr) - 1), np.diff(self.ptr))))]


@dataclass(frozen=True)
class ClientData:
    """The training items of a group of clients. `users[k]` is the data set's index of the user at place k."""

    world: World
    clients: np.ndarray  # their numbers, ascending
    users: np.ndarray
    client_ptr: np.ndarray  # places of the client at position c: client_ptr[c]:client_ptr[c + 1]
    user_ptr: np.ndarray  # items of place k: user_ptr[k]:user_ptr[k + 1]
    items: np.ndarray  # ascending within a user
    history: np.ndarray  # the same items in time order
    negatives: int
    pool: Pool
    unique: Unique = "positive"
    longest: int = 0  # items of the client that has most, here or in the groups that this one was split from
    own_secret: Secret | None = None  # None: a simulation, which derives it from the run's seed

    @staticmethod
    def build(
        world: World,
        user: np.ndarray,
        item: np.ndarray,
        *,
        users: np.ndarray,
        client_ptr: np.ndarray,
        clients: np.ndarray | None = None,
        negatives: int = 4,
        forbidden: Forbidden | None = None,
        unique: Unique = "positive",
        secret: Secret | None = None,
    ) -> ClientData:
        """From training pairs in time order; `users` and `client_ptr` are the partition of `clients` (default: all)."""
        user, item, users, client_ptr = (_int64(array) for array in (user, item, users, client_ptr))
        where = _find_places(users, user)
        # A stable sort, since pairs come in time order and that order is the history.
        by_time = np.argsort(where, kind="stable")
        by_item = np.lexsort((item, where))
        user_ptr = np.zeros(len(users) + 1, dtype=np.int64)
        np.cumsum(np.bincount(where, minlength=len(users)), out=user_ptr[1:])
        out_user, out_item = where, item
        if forbidden is not None:
            out_user = np.concatenate([where, _find_places(users, forbidden.user)])
            out_item = np.concatenate([item, forbidden.item])
        pool = Pool.excluding(out_user, out_item, len(users))
        # A user without a single allowed item would make the sampler draw beyond the catalogue.
        full = np.flatnonzero(np.diff(pool.indptr) >= world.items)
        if negatives and len(full):
            raise FedrecError(
                f"{len(full)} user(s) interacted with every one of the {world.items} items: no negatives can be "
                "drawn; raise the rating threshold or remove them"
            )
        hosted = np.arange(len(client_ptr) - 1) if clients is None else clients
        return ClientData(
            world,
            _int64(hosted),
            users,
            client_ptr,
            user_ptr,
            # Contiguous, because kernels walk through them by address.
            np.ascontiguousarray(item[by_item]),
            np.ascontiguousarray(item[by_time]),
            negatives,
            pool,
            unique,
            int(np.diff(user_ptr[client_ptr]).max(initial=0)),
            secret,
        )

    def shard(self, clients: np.ndarray) -> ClientData:
        """Some of these clients as a group of their own."""
        clients = sort_if_needed(_int64(clients))
        at = self.positions(clients)
        places = concatenate_ranges(self.client_ptr[at], self.client_ptr[at + 1])
        where = concatenate_ranges(self.user_ptr[places], self.user_ptr[places + 1])
        out = concatenate_ranges(self.pool.indptr[places], self.pool.indptr[places + 1])
        return replace(
            self,
            clients=clients,
            users=self.users[places],
            client_ptr=pointers(np.diff(self.client_ptr)[at]),
            user_ptr=pointers(np.diff(self.user_ptr)[places]),
            items=self.items[where],
            history=self.history[where],
            pool=Pool(pointers(np.diff(self.pool.indptr)[places]), self.pool.gap[out]),
        )

    def isolate_user(self, place: int) -> ClientData:
        """One user as the only one of its client."""
        at = int(np.searchsorted(self.client_ptr, place, side="right")) - 1
        mine, out = (slice(ptr[place], ptr[place + 1]) for ptr in (self.user_ptr, self.pool.indptr))
        items, gap = self.items[mine], self.pool.gap[out]
        return replace(
            self,
            clients=self.clients[at : at + 1],
            users=self.users[place : place + 1],
            client_ptr=np.array([0, 1]),
            user_ptr=np.array([0, len(items)]),
            items=items,
            history=self.history[mine],
            pool=Pool(np.array([0, len(gap)]), gap),
        )

    def clients_of(self, users: np.ndarray) -> np.ndarray:
        """The clients of some of the data set's users, ascending, each once."""
        at = np.searchsorted(self.client_ptr, self.place_of[users], side="right") - 1
        return np.unique(self.clients[at])

    @cached_property
    def place_of(self) -> np.ndarray:
        """The place of every user of the data set; -1 for those who are not here."""
        # Minus one rather than a missing key, for a lookup in an array serves all users at once.
        place = np.full(int(self.users.max(initial=-1)) + 1, -1, dtype=np.int64)
        place[self.users] = np.arange(len(self.users))
        return place

    @property
    def secret(self) -> Secret:
        return self.own_secret or SeededSecret(self.world.seed)

    @cached_property
    def complete(self) -> bool:
        """Whether these are the clients 0, 1, ...: then a number is a position."""
        return len(self.clients) == 0 or int(self.clients[-1]) + 1 == len(self.clients)

    def positions(self, clients: np.ndarray) -> np.ndarray:
        """Where in this group some of its clients stand."""
        return clients if self.complete else np.searchsorted(self.clients, clients)

    def select_hosted(self, clients: np.ndarray) -> np.ndarray:
        """Those of some clients that are in this group."""
        # Only a group that is a part of the world needs to look.
        return clients[np.isin(clients, self.clients)] if len(self.clients) < self.world.clients else clients

    def histories(self, user: np.ndarray, item: np.ndarray) -> Histories:
        """What these clients' users have met by pairs in time order, to answer from; nothing is trained on it."""
        if len(self.clients) < self.world.clients:
            here = np.isin(user, self.users)
            user, item = user[here], item[here]
        where = _find_places(self.users, user)
        return Histories(
            pointers(np.bincount(where, minlength=len(self.users))), _int64(item[np.argsort(where, kind="stable")])
        )

    @property
    def training_histories(self) -> Histories:
        """What was trained on, as a history."""
        return Histories(self.user_ptr, self.history)

    @cached_property
    def positives(self) -> np.ndarray:
        """Training items per client, in order of position."""
        return np.diff(self.user_ptr[self.client_ptr])

    @cached_property
    def single(self) -> bool:
        """One user per client."""
        return len(self.users) == len(self.clients) and bool((np.diff(self.client_ptr) == 1).all())

    def chunk(
        self, clients: np.ndarray, cohort: str = "all", foldable: bool = False, later: list[DeferredWork] | None = None
    ) -> Chunk:
        return Chunk(self, _int64(clients), cohort, foldable, later)


class DeferredWork(Protocol):
    """What training has put off. Doing it twice is as good as once."""

    def __call__(self) -> None: ...

    @property
    def nbytes(self) -> int:
        """How much it writes."""


@dataclass(frozen=True)
class Chunk:
    """Some clients of one cohort. `foldable`: only sums leave, so a kernel may fold uploads as it goes."""

    data: ClientData
    clients: np.ndarray
    cohort: str = "all"
    foldable: bool = False
    later: list[DeferredWork] | None = None
    """Where training may leave work on tensors of the state that it wrote in place, such as rows that did not change.

    It is done when somebody looks at the state, but not for these clients' next training: a method that leaves work
    never reads those tensors in `local`, and writes them anew. None: nothing can be left.
    """
    observed: dict[str, tuple[Figure, Figure]] = field(default_factory=dict)
    known: Histories | None = None
    """Everybody's histories to answer from, where they are longer than what was trained on."""

    def observe(self, name: str, total: Figure, count: Figure) -> None:
        """A figure for the progress display of a simulation. It is not sent and no server code can read it.

        A tensor stays where it is until the round has ended: to read it is to wait for the device.
        """
        # In double precision, because losses of many chunks are added up.
        new = (_exact(total), _exact(count))
        old = self.observed.get(name)
        self.observed[name] = new if old is None else (old[0] + new[0], old[1] + new[1])

    @property
    def world(self) -> World:
        return self.data.world

    @property
    def secret(self) -> Secret:
        return self.data.secret

    @cached_property
    def positions(self) -> np.ndarray:
        """Where in the group these clients stand."""
        return self.data.positions(self.clients)

    @cached_property
    def places(self) -> np.ndarray:
        """Places of the users of these clients, client after client."""
        ptr = self.data.client_ptr
        return concatenate_ranges(ptr[self.positions], ptr[self.positions + 1])

    @property
    def users(self) -> np.ndarray:
        """The data set's user indices, client after client."""
        return self.data.users[self.places]

    @cached_property
    def client_ptr(self) -> np.ndarray:
        return pointers(np.diff(self.data.client_ptr)[self.positions])

    @cached_property
    def user_ptr(self) -> np.ndarray:
        return pointers(np.diff(self.data.user_ptr)[self.places])

    @cached_property
    def positives(self) -> np.ndarray:
        return self.data.positives[self.positions]

    @cached_property
    def where(self) -> np.ndarray:
        """Where these users' items lie in the flat arrays of all clients."""
        ptr = self.data.user_ptr
        return concatenate_ranges(ptr[self.places], ptr[self.places + 1])

    @cached_property
    def items(self) -> np.ndarray:
        return self.data.items[self.where]

    @cached_property
    def history(self) -> np.ndarray:
        return self.data.history[self.where]

    @cached_property
    def context(self) -> Histories:
        """These users' histories to answer from; all that `score` may use beside what was trained on."""
        return (self.known or self.data.training_histories).take(self.places)

    @cached_property
    def owner(self) -> Tensor:
        """The client (position in the chunk) of every user."""
        return self.tensor(np.repeat(np.arange(len(self.clients)), np.diff(self.client_ptr)))

    def matrix(self) -> sp.csr_matrix:
        """The users' binary rows, sparse: [users, items]."""
        ones = np.ones(len(self.items), dtype=np.float64)
        return sp.csr_matrix((ones, self.items, self.user_ptr), shape=(len(self.places), self.world.items))

    @property
    def samples(self) -> np.ndarray:
        """Samples per client with negatives: the N_u of size-weighted means."""
        return self.positives * (1 + self.data.negatives)

    def sample_counts(self) -> Tensor:
        """`samples` where the clients are computed."""
        return self.tensor(self.samples)

    def tensor(self, array: np.ndarray) -> Tensor:
        return to_device(np.ascontiguousarray(array), self.world.device)


def _exact(figure: Figure) -> Figure:
    return figure.double() if isinstance(figure, Tensor) else figure


def _int64(array: np.ndarray) -> np.ndarray:
    """One type and layout for all indices: a kernel is compiled for each that it meets."""
    # Kernels are compiled for each type and layout that they meet, so there is one.
    return np.ascontiguousarray(array, dtype=np.int64)


def _find_places(users: np.ndarray, user: np.ndarray) -> np.ndarray:
    """Where in `users` each of some of them stands."""
    place = np.full(int(users.max(initial=-1)) + 1, -1, dtype=np.int64)
    place[users] = np.arange(len(users))
    return place[user]


def sort_if_needed(numbers: np.ndarray) -> np.ndarray:
    """Sorted; as they are where they are so already."""
    # To test the order costs one pass, a sort several, and clients nearly always ascend.
    return numbers if (numbers[1:] >= numbers[:-1]).all() else np.sort(numbers)


def pointers(counts: np.ndarray) -> np.ndarray:
    ptr = np.zeros(len(counts) + 1, dtype=np.int64)
    np.cumsum(counts, out=ptr[1:])
    return ptr


def concatenate_ranges(start: np.ndarray, stop: np.ndarray) -> np.ndarray:
    """start[0]..stop[0]-1, start[1]..stop[1]-1, ... in one array."""
    count = stop - start
    if len(count) == 0:
        return np.zeros(0, dtype=np.int64)
    # A run without gaps, which is the usual case, needs no table of offsets.
    if (start[1:] == stop[:-1]).all():
        return np.arange(start[0], stop[-1])
    offset = np.repeat(start - pointers(count)[:-1], count)
    return np.arange(len(offset)) + offset
