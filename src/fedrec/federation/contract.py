"""The method contract: what a federated method is made of.

A method is a frozen dataclass (its fields are its hyper-parameters) with a handful of functions. Client code is
written once, batched over a leading client axis; a real device is the same code with a batch of one. One round is

    plan -> broadcast -> local -> (wire) -> aggregate -> answer -> (wire) -> receive

and `score` is what a client does at inference with its own state, the newest broadcast and its own data.
Nothing leaves a client but the uploads that `local` returns.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, ClassVar

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad

from fedrec.federation.ranges import require_in_range
from fedrec.random import Purpose, fold_array, stream

if TYPE_CHECKING:
    from fedrec.federation.clients import Chunk, ClientData
    from fedrec.federation.simulator import Simulator

Tensors = dict[str, Tensor]


@dataclass(frozen=True)
class World:
    """Public facts: everybody may know them. Interactions are not among them, item attributes are the server's.

    `items` are those that training can meet; cold items have the numbers that follow.
    """

    items: int
    clients: int
    seed: int = 0
    participation: float = 1.0
    dtype: torch.dtype = torch.float32
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    compiled: bool = True  # let training use compiled kernels where they apply


@dataclass
class State:
    """What clients keep to themselves. Leading axis: clients, or users (those of one client lie together)."""

    per_client: Tensors = field(default_factory=dict)
    per_user: Tensors = field(default_factory=dict)


@dataclass(frozen=True)
class Cohort:
    """Clients of identical shape. A chunk never crosses a cohort, a state never mixes two."""

    name: str
    clients: np.ndarray


@dataclass(frozen=True)
class Plan:
    """Who does what this round; `upload` (a part of `train`) and `receive` default to those who train.

    What a client outside `upload` wants to send is dropped before the wire: a silent round uploads nobody.
    """

    train: np.ndarray
    upload: np.ndarray | None = None
    receive: np.ndarray | None = None

    def uploads(self) -> np.ndarray:
        return self.train if self.upload is None else self.upload

    def receives(self) -> np.ndarray:
        return self.train if self.receive is None else self.receive


@dataclass(frozen=True)
class Down:
    """What goes to clients: tensors that are the same for all, and tensors with one slice per client."""

    shared: Tensors = field(default_factory=dict)
    own: Tensors = field(default_factory=dict)


@dataclass(frozen=True)
class Rows:
    """One table per client that equals the common `base` except in a few rows: dense on the wire, sparse in here.

    `owner[r]` is the client (position in the chunk) of changed row r, `item[r]` its index, `value[r]` its content.
    With `shift` (one number per client), all other rows have gone that share of the way from `base` to `towards`.
    """

    base: Tensor
    owner: Tensor
    item: Tensor
    value: Tensor
    clients: int
    shift: Tensor | None = None
    towards: Tensor | None = None

    def way(self) -> Tensor | None:
        """Where rows that no sample touched are going, as seen from `base`."""
        return None if self.towards is None else self.towards - self.base

    def untouched(self) -> Tensor:
        """What the changed rows would be, had no sample touched them."""
        start, way = self.base[self.item], self.way()
        return start if way is None or self.shift is None else start + self.shift[self.owner, None] * way[self.item]

    def dense(self, out: Tensor | None = None) -> Tensor:
        """All tables whole, into `out` if it is given."""
        shape, way = (self.clients, *self.base.shape), self.way()
        table = (self.base.new_empty(shape) if out is None else out).copy_(self.base.expand(shape))
        if way is not None and self.shift is not None:
            table += self.shift[:, None, None] * way
        table[self.owner, self.item] = self.value
        return table


@dataclass(frozen=True)
class Folded:
    """The weighted sum over a chunk of `table - base`, already folded in by a kernel (no stage asked for more)."""

    base: Tensor
    total: Tensor
    clients: int


Upload = Tensor | Rows | Folded


def content(value: Upload) -> Tensor:
    """A tensor of the type, and in its last axis of the width, of what is sent."""
    return value if isinstance(value, Tensor) else value.base


def is_exact(value: Upload) -> bool:
    """Whole numbers and whatever else no stage knows how to change."""
    return not content(value).is_floating_point()


@dataclass(frozen=True)
class Sum:
    """The server needs only the sum over clients. `by_cohort`: one sum per cohort, under `name@cohort`."""

    value: Upload
    by_cohort: bool = False


@dataclass(frozen=True)
class Mean:
    """The server needs only the mean, weighted by one number per client (default: all equal)."""

    value: Upload
    weight: Tensor | None = None
    by_cohort: bool = False


@dataclass(frozen=True)
class Each:
    """The server needs every client's own upload (similarity, clustering): kept one by one, which costs memory.

    `lengths`: how much of the last axis each client really sends. What is beyond is zero, never noise, and not counted.
    """

    value: Tensor | Rows
    lengths: Tensor | None = None

    def sent(self) -> Tensor:
        """Which entries of the last axis are real: [clients, ..., last]."""
        assert isinstance(self.value, Tensor)
        assert self.lengths is not None
        real = torch.arange(self.value.shape[-1], device=self.value.device) < self.lengths[:, None]
        return real.reshape(len(self.value), *[1] * (self.value.dim() - 2), -1)


Reduction = Sum | Mean | Each


@dataclass(frozen=True)
class Ups:
    """What reached the server this round, reduced as declared."""

    reduced: Tensors
    each: Mapping[str, list[tuple[np.ndarray, Tensor]]]
    clients: np.ndarray

    def __getitem__(self, name: str) -> Tensor:
        return self.reduced[name]

    def __contains__(self, name: str) -> bool:
        return name in self.reduced or name in self.each

    def stacked(self, name: str) -> tuple[np.ndarray, Tensor]:
        """Individual uploads: client ids (ascending) and one tensor with a leading client axis.

        Where last axes differ in length, the shorter ones are filled up with zeros.
        """
        parts = self.each[name]
        ids = np.concatenate([clients for clients, _ in parts])
        longest = max(value.shape[-1] for _, value in parts)
        # a copy even of one part: it is the server's, and clients go on with theirs
        values = torch.cat([_filled(value, longest) for _, value in parts])
        if (np.diff(ids) > 0).all():  # as it is without cohorts: no second copy of all tables
            return ids, values
        order = np.argsort(ids, kind="stable")
        return ids[order], values[torch.from_numpy(order)]


def _filled(value: Tensor, length: int) -> Tensor:
    """The last axis filled up with zeros, unless it is the one of the clients."""
    full = value.dim() == 1 or value.shape[-1] == length
    return value if full else pad(value, (0, length - value.shape[-1]))


def replicate(tensors: Tensors, clients: int) -> Tensors:
    """One copy of every tensor per client."""
    return {name: value.unsqueeze(0).repeat(clients, *[1] * value.dim()) for name, value in tensors.items()}


def _is_rate(name: str) -> bool:
    return name == "lr" or name.startswith("lr_") or name.endswith(("_lr", "rate_scale"))


def participants(world: World, round: int, fraction: float) -> np.ndarray:
    """floor(fraction * clients), at least one, without replacement: the clients with the smallest hashes."""
    count = max(1, int(fraction * world.clients + 1e-9))
    if count >= world.clients:
        return np.arange(world.clients)
    draws = fold_array(stream(world.seed, Purpose.PARTICIPATION, round), np.arange(world.clients))
    return np.sort(np.argpartition(draws, count)[:count])


@dataclass(frozen=True)
class Method:
    """Base of all methods. Subclasses are frozen dataclasses; each field is a hyper-parameter with a default."""

    name: ClassVar[str] = ""
    aliases: ClassVar[Mapping[str, Mapping[str, object]]] = {}  # other names, with the parameters they imply
    summary: ClassVar[str] = ""
    paper: ClassVar[str] = ""
    centralised: ClassVar[bool] = False  # a reference: all users in one place
    backbones: ClassVar[tuple[str, ...]] = ()  # the first is the default; empty: no choice
    backbone_defaults: ClassVar[Mapping[str, Mapping[str, object]]] = {}  # where another backbone needs other rates
    presets: ClassVar[Mapping[str, Mapping[str, object]]] = {}
    # Intervals such as "(0, 1]" of parameters that take other numbers than usual (`ranges.py`): those from 0 on.
    ranges: ClassVar[Mapping[str, str]] = {}
    private: ClassVar[tuple[str, ...]] = ()  # names in State that must never influence an upload after `local`
    train_only: ClassVar[tuple[str, ...]] = ()  # names in State that scoring does not need
    fold_in_rounds: ClassVar[int | None] = None  # local rounds that a new user needs; None: new users are not possible
    attributes: ClassVar[str] = "none"  # who sees item attributes: none | server | clients; with them, ranks cold items
    # One client's upload would show everything, so nobody may see it: outside a simulation, secure sums or nothing.
    blind_sum: ClassVar[bool] = False
    covered_with: ClassVar[Mapping[str, object]] = {}  # parameters with which noise reaches all that is sent
    per_round: ClassVar[tuple[str, ...]] = ()  # server tensors with an entry for each round: more rounds, more entries
    cache_bytes: ClassVar[int | None] = None  # on a processor, chunks that train beyond this size only wait for memory

    rounds: int = 100

    def __init_subclass__(cls) -> None:
        """A parameter must not hide what the simulator or the accountant asks a method."""
        own = [name for name, kind in vars(cls).get("__annotations__", {}).items() if "ClassVar" not in str(kind)]
        hidden = [name for name in own if hasattr(Method, name) and name not in Method.__dataclass_fields__]
        if hidden:
            raise TypeError(f"{cls.__name__}.{hidden[0]} has the name of an attribute of every method; choose another")

    def __post_init__(self) -> None:
        require_in_range(self)

    @property
    def clips_apart(self) -> float:
        """How many clips two uploads of one client can lie apart once both are clipped: noise is measured by it."""
        return 2.0

    @property
    def own_noise(self) -> tuple[str, ...]:
        """Uploads to which clients themselves add noise under that name, before the wire does."""
        return ()

    def promise(self, data: ClientData) -> str:
        """The epsilon of noise within the method, in a sentence; empty where it claims none."""
        return ""

    def cohorts(self, world: World) -> Sequence[Cohort]:
        return [Cohort("all", np.arange(world.clients))]

    def init_server(self, world: World, attributes: Tensor | None = None) -> Tensors:
        return {}

    def init_clients(self, world: World, chunk: Chunk) -> State:
        return State()

    def plan(self, world: World, server: Tensors, round: int) -> Plan:
        return Plan(participants(world, round, world.participation))

    def broadcast(self, server: Tensors, clients: np.ndarray, round: int) -> Down:
        return Down()

    def local(self, state: State, down: Down, chunk: Chunk, round: int) -> tuple[State, dict[str, Reduction]]:
        return state, {}

    def aggregate(self, server: Tensors, ups: Ups, round: int) -> Tensors:
        return server

    def answered(self, server: Tensors, plan: Plan, round: int) -> np.ndarray:
        """Who gets an answer: those of the plan, unless it takes the aggregation to know."""
        return plan.receives()

    def answer(self, server: Tensors, clients: np.ndarray, round: int) -> Down | None:
        """What goes back after the aggregation; None: nothing but the next broadcast."""
        return None

    def receive(self, state: State, down: Down, chunk: Chunk, round: int) -> State:
        return state

    def offer(self, server: Tensors, clients: np.ndarray, round: int, items: Tensor) -> Down:
        """What a client receives in order to score `items`, which need not be those it was trained on."""
        return self.broadcast(server, clients, round)

    def commits(self, round: int) -> bool:
        """Whether what comes back at the end of this round changes what clients score with: both are then recorded."""
        return False

    def insight(self, simulator: Simulator, round: int) -> Mapping[str, float]:
        """Figures for the record of a simulation that no server could know; asked for when a round is evaluated."""
        return {}

    def may_stop(self, round: int) -> bool:
        """Whether a run whose patience ran out may end after this round, or must see what the next one brings."""
        return True

    def settled(self, round: int, before: Mapping[str, float], now: Mapping[str, float]) -> bool:
        """Whether a run ends after this round, by what the round before and this one observed."""
        return False

    def with_items(self, server: Tensors, attributes: Tensor) -> Tensors:
        """The server when more items, known by their attributes alone, stand behind all others."""
        return server | {"attributes": torch.cat([server["attributes"], attributes])}

    def uses_order(self) -> bool:
        """Whether it matters in which order a user met the items."""
        return False

    def remarks(self, world: World) -> Sequence[str]:
        """What every report of a run should say about these parameters in this world."""
        return ()

    def remedy(self) -> str:
        """What to change when training diverged: the rates, with what they are."""
        found = [(f.name, getattr(self, f.name)) for f in fields(self) if _is_rate(f.name)]
        named = ", ".join(f"{name}={value:g}" for name, value in found if value is not None)
        return f"lower the learning rate ({named})" if named else "lower what is large among its parameters"

    def cover(self) -> str:
        """What to change so that noise reaches all that is sent."""
        wanted = {name: value for name, value in self.covered_with.items() if getattr(self, name) != value}
        settings = " ".join(f"--set {name}={value}" for name, value in wanted.items())
        return f"add {settings}" if settings else "use a method that sends none of it, such as fedmf"

    def score(self, state: State, down: Down, chunk: Chunk, items: Tensor) -> Tensor:
        """Logits of `items` for every user of the chunk: [users, items].

        A model that reads a user's items to answer reads `chunk.context`, which may hold more than was trained on.
        """
        raise NotImplementedError(f"{type(self).__name__} does not score")

    def client_bytes(self, world: World) -> int:
        """Working memory that one client adds to a chunk, beside its samples (sets the chunk size)."""
        return 4096

    def score_bytes(self, world: World) -> int:
        """Working memory that one user adds when all items are scored and ranked."""
        return 6 * world.items * world.dtype.itemsize

    def sample_bytes(self, world: World) -> int:
        """Working memory that one training sample adds to a chunk."""
        return 1024
