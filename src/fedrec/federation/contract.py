"""The method contract: what a federated method is made of.

A method is a frozen dataclass (its fields are its hyper-parameters) with a handful of functions. Client code is
written once, batched over a leading client axis; a real device is the same code with a batch of one. One round is

    plan -> broadcast -> local -> (wire) -> aggregate -> answer -> (wire) -> receive

and `score` is what a client does at inference with its own state, the newest broadcast and its own data.
Nothing leaves a client but the uploads that `local` returns. A simple method writes `init_server`, `init_clients`,
`broadcast`, `local`, `aggregate` and `score`, and declares its `info`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar, Protocol, runtime_checkable

import numpy as np
import torch
from torch import Tensor

from fedrec.errors import FedrecError
from fedrec.federation.declarations import Disclosure, Footprint, MethodInfo, OwnNoise
from fedrec.federation.messages import (
    Answer,
    Down,
    Gather,
    Mean,
    PartialSum,
    Reduction,
    Rows,
    Sum,
    Tensors,
    Upload,
    Uploads,
    Ups,
    replicate,
)
from fedrec.federation.ranges import Count, require_in_range
from fedrec.federation.settings_files import with_settings_beside
from fedrec.plugins import answer_to_old_hooks
from fedrec.random import Purpose, fold_array, stream

if TYPE_CHECKING:
    from fedrec.federation.clients import Chunk, ClientData

__all__ = [
    "Answer",
    "Cohort",
    "Cohorted",
    "Disclosure",
    "Down",
    "Footprint",
    "Gather",
    "Mean",
    "Method",
    "MethodInfo",
    "NoisesItself",
    "OwnNoise",
    "PartialSum",
    "Plan",
    "Reduction",
    "Rows",
    "State",
    "Sum",
    "Tensors",
    "Upload",
    "Uploads",
    "Ups",
    "World",
    "cohorts_of",
    "participants",
    "replicate",
]


@dataclass(frozen=True)
class World:
    """Public facts: everybody may know them. Interactions are not among them, item attributes are the server's.

    `items` are those that training can meet; cold items have the numbers that follow.
    """

    items: int
    clients: int
    seed: int = 0
    # Float64 would double every message.
    participation: float = 1.0
    dtype: torch.dtype = torch.float32
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    # Can be turned off, because the plain implementation is the reference that the kernels are tested against.
    compiled: bool = True  # let training use compiled kernels where they apply
    most_users: int = 0  # of the largest client; 0: not known, as in a deployment


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
    """Who trains and who uploads this round; `upload` (a part of `train`) defaults to those who train.

    What a client outside `upload` wants to send is dropped before the wire: a silent round uploads nobody.
    """

    train: np.ndarray
    upload: np.ndarray | None = None

    def uploads(self) -> np.ndarray:
        return self.train if self.upload is None else self.upload


def participants(world: World, round: int, fraction: float) -> np.ndarray:
    """floor(fraction * clients), at least one, without replacement: the clients with the smallest hashes."""
    # A hair is added, since 0.29 * 100 is 28.999999999999996 in floating point and would lose a client.
    count = max(1, int(fraction * world.clients + 1e-9))
    # Everybody takes part in the usual case, and then no hash is needed.
    if count >= world.clients:
        return np.arange(world.clients)
    # Hashes rather than a shuffled list: nothing is consumed, so any process draws the same clients, before or after a
    # resume.
    draws = fold_array(stream(world.seed, Purpose.PARTICIPATION, round), np.arange(world.clients))
    # A partition finds the smallest without a sort of all; the sort of the few makes clients ascend, as everybody
    # expects.
    return np.sort(np.argpartition(draws, count)[:count])


@dataclass(frozen=True)
class Method:
    """Base of all methods. Subclasses are frozen dataclasses; each field is a hyper-parameter with a default."""

    info: ClassVar[MethodInfo] = MethodInfo("")

    rounds: Count = 100
    """Communication rounds; of a centralised baseline, rounds of training."""

    def __init_subclass__(cls) -> None:
        """Refuse parameters that hide a member of the contract; read the settings that lie beside the method's file."""
        # Methods written for an older version go on working, under the name the hook had then.
        answer_to_old_hooks(cls, {"decided": "round_parameters"})
        if "info" in vars(cls):
            cls.info = with_settings_beside(cls.info, cls.__module__)
        own = [name for name, kind in vars(cls).get("__annotations__", {}).items() if "ClassVar" not in str(kind)]
        # A hyper-parameter called `plan` would silently replace the function, and the error would come rounds later.
        hidden = [name for name in own if hasattr(Method, name) and name not in Method.__dataclass_fields__]
        if hidden:
            raise TypeError(f"{cls.__name__}.{hidden[0]} has the name of a member of every method; choose another")

    def __post_init__(self) -> None:
        require_in_range(self)

    # -- what it declares --

    @property
    def disclosure(self) -> Disclosure:
        return Disclosure()

    def footprint(self, world: World) -> Footprint:
        return Footprint(score=6 * world.items * world.dtype.itemsize)

    def remarks(self, world: World) -> Sequence[str]:
        """What every report of a run should say about these parameters in this world."""
        return ()

    # -- what it does --

    def require_attributes(self, attributes: Tensor | None) -> Tensor:
        """Return the attributes of all items; refuse data that have none."""
        if attributes is None:
            raise FedrecError(f"{self.info.name} needs item attributes; use --protocol ifedrec with data that has them")
        return attributes

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

    def answer(self, server: Tensors, plan: Plan, arrived: np.ndarray, round: int) -> Answer | None:
        """Who gets what after the aggregation, given whose uploads arrived; None: nothing but the next broadcast."""
        return None

    def receive(self, state: State, down: Down, chunk: Chunk, round: int) -> State:
        return state

    def round_parameters(self, round: int) -> Mapping[str, float]:
        """Parameters that change from round to round, with their values in this one: choosing a round chooses them."""
        return {}

    def with_items(self, server: Tensors, attributes: Tensor) -> Tensors:
        """Number items that arrive after training behind all others, known by their attributes alone.

        This is for methods that disclose attributes to somebody and whose server keeps them under that name.
        """
        return server | {"attributes": torch.cat([server["attributes"], attributes])}

    def offer(self, server: Tensors, clients: np.ndarray, round: int, items: Tensor) -> Down:
        """What a client receives in order to score `items`, which need not be those it was trained on."""
        return self.broadcast(server, clients, round)

    def score(self, state: State, down: Down, chunk: Chunk, items: Tensor) -> Tensor:
        """Logits of `items` for every user of the chunk: [users, items].

        A model that reads a user's items to answer reads `chunk.context`, which may hold more than was trained on.
        """
        raise NotImplementedError(f"{type(self).__name__} does not score")


# -- what only some methods can do --


@runtime_checkable
class Cohorted(Protocol):
    """Clients of several shapes."""

    def cohorts(self, world: World) -> Sequence[Cohort]: ...


@runtime_checkable
class NoisesItself(Protocol):
    """Noise that the method itself adds, besides that of the wire."""

    def noise_spent(self, data: ClientData) -> OwnNoise | None:
        """What a client goes through in a whole run; None where no epsilon can be claimed for it."""
        ...


def cohorts_of(method: Method, world: World) -> Sequence[Cohort]:
    # Most methods have clients of one shape, so these need not know that cohorts exist.
    return method.cohorts(world) if isinstance(method, Cohorted) else [Cohort("all", np.arange(world.clients))]
