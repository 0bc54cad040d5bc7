"""Local training of devices: hyper-parameters, which a method has as fields, and the trainer that it has as a member.

A method says what is special about its training when it makes its trainer:

    @cached_property
    def trainer(self) -> LocalTrainer:
        return LocalTrainer(self, phases=IN_TURN, pull=self.proximal)
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from functools import cache, cached_property, partial
from typing import Annotated, Any, ClassVar, Literal, get_args, get_type_hints

import numpy as np
import torch
from torch import Tensor

from fedrec.errors import FedrecError
from fedrec.federation.clients import Chunk
from fedrec.federation.contract import (
    Disclosure,
    Down,
    Footprint,
    Method,
    Plan,
    Rows,
    State,
    Tensors,
    World,
    replicate,
)
from fedrec.federation.declarations import Settings, with_defaults
from fedrec.federation.ranges import Count, Interval
from fedrec.federation.secret import Secret
from fedrec.kernels import log_path
from fedrec.models import BACKBONES, Backbone, Sequential
from fedrec.training.compiled import Kernel, fit_compiled, kernel_for, kernel_of
from fedrec.training.descent import Descent, Fitted
from fedrec.training.initial import (
    DENSE,
    ITEM,
    fan_in_uniform,
    initial_key,
    normal_values,
    uniform_values,
    user_keys,
)
from fedrec.training.losses import Saturate
from fedrec.training.optimisers import MOMENTS
from fedrec.training.participation import plan_part
from fedrec.training.personal_head import PersonalHead
from fedrec.training.precision import HALF, TableDtype, narrow, widen
from fedrec.training.proximal import Proximal, ProximalSequences
from fedrec.training.samples import Loss
from fedrec.training.sequence_training import Products, SequenceDescent
from fedrec.training.sequences import Crop, pack, unpack, user_vectors

Phases = tuple[tuple[str, ...], ...]
"""Each batch is gone through once per phase: a new forward pass, then a step on the groups named."""

TOGETHER: Phases = (("user", "item", "dense"),)
IN_TURN: Phases = (("user", "dense"), ("item",))  # a step on the head, then one on the table

# A network needs gentler steps than the bare inner product: Adam at the rate of FedCA's comparison.
DEFAULTS: Mapping[str, Settings] = {
    "ncf": {"optimiser": "adam", "lr": 0.01, "init_std": 0.1},
    "sasrec": {"optimiser": "adam", "lr": 0.01, "init_std": 0.1, "dim": 16},
}


usual_backbones = partial(with_defaults, DEFAULTS)


Models = Literal["common", "own"]
Shares = Literal["samples", "equal"]
ScoreWith = Literal["received", "local"]  # local: the client's own model after training


@dataclass(frozen=True)
class LocalMethod(Method):
    """Base of the methods whose clients train a backbone by gradient descent: the hyper-parameters of that, and what
    such methods usually do, by a few declarations and by fields of these names that some have:

    `aggregated_fraction`: all that take part train, a part of them uploads; `score_with`: "local" lets clients score
    with what they trained instead of the common model; `shares`: "samples" weighs clients by theirs, "equal" does not;
    `table_dtype`: own tables rest in half precision. What a method does otherwise, its own functions say.
    """

    models: ClassVar[Models] = "common"
    """common: the server holds one model and sends it, users keep their vectors; own: every client keeps a model."""
    private_network: ClassVar[bool] = False
    """Whether the network's weights, like user vectors, never leave."""
    gathers: ClassVar[bool] = False
    """Whether the server works with single uploads, which it must see."""
    attributes: ClassVar[Literal["none", "server", "clients"]] = "none"
    """Who sees the attributes of items."""
    reveals: ClassVar[str] = ""
    """What a single upload tells of its client; empty: what any trained upload tells."""
    working_tables: ClassVar[int] = 0
    """Item tables that a client's training holds at once, for the estimate of memory."""

    backbone: str = "mf"
    dim: Count = 32
    init: Literal["normal", "uniform"] = "normal"
    """Initial weights: normal with standard deviation init_std, or uniform within 1 / sqrt(dim)."""
    init_std: float = 0.01
    common_user: bool = False
    """Whether all user vectors start equal."""
    lr: float = 10.0
    lr_item: float | None = None
    """Learning rate of the item table; none: lr."""
    lr_dense: float | None = None
    """Learning rate of the network's weights; none: lr."""
    weight_decay_dense: float = 0.0
    """Weight decay of the network's weights, added to their gradient."""
    epochs: Count = 1
    early_exit: Annotated[float, Interval("[0, 1)")] = 0.0
    """A round's local training ends when an epoch changes the mean loss since its start by less than this share."""
    batch: Count = 256
    optimiser: Literal["sgd", "adam"] = "sgd"
    """Optimiser of local training."""
    loss: Loss = "bce"
    reduction: Literal["mean", "sum"] = "mean"
    """Whether the loss of a batch is the mean or the sum over its samples."""
    length: int = 50  # sasrec: items of a sequence that are read, the last ones; there, batch counts sequences
    dropout: Annotated[float, Interval("[0, 1)")] = 0.2  # sasrec: part of the activations that training drops

    def __post_init__(self) -> None:
        super().__post_init__()
        # Here and not at first use: a wrong setting should be refused before data are read, not in the first round.
        _ = self.model  # refuses what it cannot be made with
        kind: Any = type(self)  # mypy takes no class for hashable whose objects hash by their fields
        if self.loss not in _losses(kind):
            wanted = " or ".join(_losses(kind))
            raise FedrecError(f"loss={self.loss} does not fit {self.info.name}: it must be {wanted}")

    @cached_property
    def model(self) -> Backbone:
        """The backbone, with those of its settings that the method has as parameters."""
        kind: Any = BACKBONES[self.backbone]
        return kind(**{f.name: getattr(self, f.name) for f in fields(kind) if hasattr(self, f.name)})

    @cached_property
    def trainer(self) -> LocalTrainer:
        return LocalTrainer(self)

    # -- what it declares --

    @property
    def disclosure(self) -> Disclosure:
        network = self.model.dense_shapes() if self.private_network else ()
        # a mean's weights are sent as they are, so no noise hides them
        covered = {"shares": "equal"} if hasattr(self, "shares") else {}
        return Disclosure(
            private=("user", *network),
            gathers=self.gathers,
            reveals=self.reveals,
            attributes=self.attributes,
            covered_with=covered,
        )

    @property
    def keeps_models(self) -> bool:
        """Whether clients keep the models that they trained."""
        return self.models == "own" or getattr(self, "score_with", "received") == "local"

    def client_weight(self, chunk: Chunk) -> Tensor | None:
        """Return N_u, the samples of every client, on the host; None: all clients count alike."""
        return torch.from_numpy(chunk.samples) if getattr(self, "shares", "equal") == "samples" else None

    def footprint(self, world: World) -> Footprint:
        return self.trainer.footprint(world, dense=8, tables=self.working_tables)

    # -- what it does --

    def init_server(self, world: World, attributes: Tensor | None = None) -> Tensors:
        return self.trainer.init_model(world) if self.models == "common" else {}

    def init_clients(self, world: World, chunk: Chunk) -> State:
        return self.trainer.init_state(world, chunk, self.trainer.init_model(world) if self.keeps_models else None)

    def plan(self, world: World, server: Tensors, round: int) -> Plan:
        return plan_part(world, round, getattr(self, "aggregated_fraction", 1.0))

    def broadcast(self, server: Tensors, clients: np.ndarray, round: int) -> Down:
        return Down(shared={name: server[name] for name in self.trainer.names} if self.models == "common" else {})

    def score(self, state: State, down: Down, chunk: Chunk, items: Tensor) -> Tensor:
        user = state.per_user["user"]
        if self.keeps_models:
            return self.trainer.own_scores(user, state.per_client, chunk, items)
        return self.trainer.common_scores(user, down.shared, chunk, items)


@cache
def _losses(kind: Any) -> tuple[str, ...]:
    """Those that a method's field takes."""
    return get_args(get_type_hints(kind)["loss"])


class LocalTrainer:
    """Trains the clients of a chunk with a method's hyper-parameters; makes what they start from, scores with what
    they have."""

    def __init__(
        self,
        settings: LocalMethod,
        *,
        rates: Mapping[str, float] | None = None,
        phases: Phases = TOGETHER,
        pull: float = 0.0,
        pulled: tuple[str, ...] = ("item", "dense"),
        moments: tuple[float, float] = MOMENTS,
        shrink: float = 0.0,
        saturation: Saturate = "none",
        slots: int | None = None,
        products: Products = "full",
        crop: Crop = "last",
        descent: type[Descent] | None = None,
        head: PersonalHead | None = None,
    ) -> None:
        """
        settings: the method, for its hyper-parameters and its backbone
        rates: of groups that do not move at the usual ones
        pull: weight of the squared distance to where the round started, added to the loss of the groups `pulled`
        moments: of Adam
        shrink: part of every trained parameter that a step takes away, times its rate: a decay apart from the gradient
        saturation: what a pointwise loss does with scores beyond single precision
        slots: how many of the negatives that were drawn a sequential backbone uses at each position; None: all
        products: how a sequential backbone multiplies matrices
        crop: what a sequential backbone trains on of a long history
        descent: where the local loss has further terms
        head: what every user of a common sequential model adds to it in private
        """
        self.settings, self.model = settings, settings.model
        self.rates = {
            "user": settings.lr,
            "item": settings.lr if settings.lr_item is None else settings.lr_item,
            "dense": settings.lr if settings.lr_dense is None else settings.lr_dense,
        } | dict(rates or {})
        self.phases, self.pull, self.pulled = phases, pull, pulled
        self.moments, self.shrink, self.saturation, self.slots = moments, shrink, saturation, slots
        self.products, self.crop, self.head = products, crop, head
        self.descent = descent or (SequenceDescent if isinstance(self.model, Sequential) else Descent)
        self.table_dtype: TableDtype = getattr(settings, "table_dtype", "full")

    @property
    def sequential(self) -> bool:
        """Whether the backbone reads sequences."""
        return isinstance(self.model, Sequential)

    @property
    def names(self) -> list[str]:
        """What a model consists of: the item table, and the network's weights."""
        return ["item", *self.model.dense_shapes()]

    # -- initial values: a function of the seed and of who it is for, never of a batch --

    def init_items(self, world: World) -> Tensor:
        """The common item table."""
        return self.init_table(world, ITEM)

    def init_table(self, world: World, *where: int) -> Tensor:
        """A table of items from its own stream."""
        position = torch.arange(world.items * self.settings.dim)
        return self._initial(initial_key(world, *where), position, world).reshape(world.items, self.settings.dim)

    def init_users(self, world: World, users: np.ndarray, secret: Secret | None = None) -> Tensor:
        """Independent user vectors, unless they are asked to be equal; of width zero where the backbone has none."""
        # Equal vectors are keyed by user 0 and without secrets: a key that is secret would make every one different.
        common = self.settings.common_user
        keys = user_keys(world, np.zeros_like(users)) if common else user_keys(world, users, secret)
        width = self.settings.dim if self.model.has_user else 0
        return self._initial(keys, torch.arange(width)[None], world)

    def _initial(self, key: Tensor | int, position: Tensor, world: World) -> Tensor:
        if self.settings.init == "normal":
            return normal_values(world, key, position, self.settings.init_std)
        return uniform_values(world, key, position, self.settings.dim)

    def init_dense(self, world: World) -> Tensors:
        """Dense weights, uniform within 1/sqrt(fan-in) (a bias has the fan-in of its weight), or as a sequential
        backbone says."""
        key = initial_key(world, DENSE)
        if isinstance(self.model, Sequential):
            made = self.model.initial(key, world.dtype)
            return {name: value.to(world.device) for name, value in made.items()}
        return fan_in_uniform(world, key, self.model.dense_shapes())

    def init_network(self, world: World) -> Tensors:
        """The dense weights; of a sequential backbone as one table, because its many weights go all the same way."""
        dense = self.init_dense(world)
        return {"network": pack(self.model, dense)} if isinstance(self.model, Sequential) else dense

    def init_model(self, world: World) -> Tensors:
        """The item table and the dense weights."""
        return {"item": self.init_items(world), **self.init_dense(world)}

    def init_state(self, world: World, chunk: Chunk, own: Tensors | None = None) -> State:
        """Every user's own vector; and, of these tensors, a copy with every client."""
        user = self.init_users(world, chunk.users, chunk.secret)
        return State(replicate(self.narrow(own or {}), len(chunk.clients)), {"user": user})

    # -- storage: what reads a state computes in full precision --

    def narrow(self, tensors: Tensors) -> Tensors:
        """Return tensors as clients store them, in the method's `table_dtype`, if it has that parameter."""
        return narrow(tensors, self.table_dtype)

    def widen(self, tensors: Tensors, world: World) -> Tensors:
        """Return stored tensors in the precision of the run."""
        return widen(tensors, world)

    # -- training --

    def fit(
        self,
        chunk: Chunk,
        round: int,
        user: Tensor,
        table: Tensor,
        dense: Tensors | None = None,
        weight: Tensor | None = None,
        fold: bool = True,
        own: Tensor | None = None,
    ) -> Fitted:
        """Train from `table`: [items, d] common to all, or [clients, items, d], which is then updated in place.

        `dense` has a leading client axis. `weight` (one per client) is what a mean will use; with `fold` and a
        chunk from which only sums leave, the weighted sum is formed on the fly. From a common start, `own` [clients,
        items, d] becomes what each client then has.
        """
        # The kernel first: torch starts a dozen operations for each step, which cost more than a small client's step.
        kernel = self._kernel(chunk, table, fold)
        if kernel is not None:
            return fit_compiled(kernel, self, chunk, round, user, table, dense or {}, weight, own)
        fitted = self.descent(self, chunk, round, user, table, dense or {}).run()
        if own is not None:
            assert isinstance(fitted.table, Rows)
            fitted.table.dense(own)
        return fitted

    def gradient(self, chunk: Chunk, round: int, user: Tensor, table: Tensor, dense: Tensors) -> Fitted:
        """One gradient of every client's loss, in the places of what `fit` would train."""
        return self.descent(self, chunk, round, user, table, dense).gradient()

    def fit_common(
        self,
        chunk: Chunk,
        round: int,
        user: Tensor,
        common: Tensors,
        weight: Tensor | None = None,
        own: Tensor | None = None,
    ) -> Fitted:
        """Train every client from the common model; `weight` and `own` as for `fit`."""
        dense = replicate({name: common[name] for name in self.model.dense_shapes()}, len(chunk.clients))
        return self.fit(chunk, round, user, common["item"], dense, weight=weight, own=own)

    def fit_copies(self, chunk: Chunk, round: int, user: Tensor, common: Tensors) -> tuple[Tensor, Tensors]:
        """Train a copy of the common model with every client, as `fit_own` does."""
        return self.fit_own(chunk, round, user, replicate(common, len(chunk.clients)))

    def fit_own(
        self, chunk: Chunk, round: int, user: Tensor, own: Tensors, towards: Tensor | None = None
    ) -> tuple[Tensor, Tensors]:
        """Train every client from its own item table and weights; what it then has: its users, and table and weights.

        With `towards` [clients, items, d] all rows, those without samples too, are pulled there instead of to where
        the round began. Tables that are stored in full are updated in place.
        """
        own = widen(own, chunk.world)
        # Tables were widened before, because a step of a small rate is lost when it is added in half precision.
        dense = {name: own[name] for name in self.model.dense_shapes()}
        if towards is None:
            fitted = self.fit(chunk, round, user, own["item"], dense)
        else:
            # The usual pull knows only rows with samples; towards another table than the start the others move too.
            near = ProximalSequences if isinstance(self.model, Sequential) else Proximal
            fitted = near(self, chunk, round, user, own["item"], dense, towards).run()
        return fitted.user, fitted.own

    def _kernel(self, chunk: Chunk, table: Tensor, fold: bool) -> Kernel | None:
        """The backbone's compiled kernel, where there is one and all that is asked for is in it."""
        kernel = kernel_of(self.model)
        if kernel is None:
            log_path(self.settings.backbone, chunk.world.device, compiled=False)
            return None
        fits = (
            kernel.only(self.settings)
            and (kernel.saturates or self.saturation == "none")
            and self.phases in (TOGETHER, IN_TURN)
            # Kernels have the moments of the libraries as constants, and no decay apart from the gradient.
            and self.moments == MOMENTS
            and self.shrink == 0
            # A pull moves all rows at every step, and steepest descent, compiled, visits those of the batch alone.
            and (self.pull == 0 or self.settings.optimiser in kernel.pulls)
            and self.descent is Descent
            # Kernels know one user vector per client; a silo has several.
            and chunk.data.single
            and (table.dim() == 3 or (fold and chunk.foldable))
        )
        return None if kernel_for(kernel.name, chunk.world, fits) is None else kernel

    # -- scores --

    def common_scores(self, user: Tensor, common: Tensors, chunk: Chunk, items: Tensor) -> Tensor:
        """Scores where all clients have the same model: `common` holds `item` and dense weights, or `network`."""
        # Networks of sequences travel as one table (`init_network`), but are computed with by name.
        if isinstance(self.model, Sequential) and "network" in common:
            common = {"item": common["item"], **unpack(self.model, common["network"])}
        user = self._vectors(user, common, chunk)
        table = _columns(common["item"][None], items)[0]
        return self.model.scores(user, table, {k: v for k, v in common.items() if k != "item"})

    def _vectors(self, user: Tensor, tensors: Tensors, chunk: Chunk) -> Tensor:
        """What users are scored with: their own vectors, or what a sequential backbone makes of their items."""
        return user_vectors(self.model, chunk, tensors, self.head) if isinstance(self.model, Sequential) else user

    def own_scores(self, user: Tensor, own: Tensors, chunk: Chunk, items: Tensor) -> Tensor:
        """Scores where every client has its own model: `own` holds `item` and dense weights, one per client."""
        own = widen(own, chunk.world)
        user = self._vectors(user, own, chunk)
        own = {name: _columns(value, items) if name == "item" else value for name, value in own.items()}
        if chunk.data.single:
            table = own.pop("item")
            return self.model.scores(user, table, own)
        # One client at a time: silos differ in their number of users, and filling up would make the largest decide.
        ends, parts = chunk.client_ptr, []
        for k in range(len(chunk.clients)):
            mine = {name: value[k] for name, value in own.items()}
            parts.append(self.model.scores(user[ends[k] : ends[k + 1]], mine.pop("item"), mine))
        return torch.cat(parts)

    # -- memory --

    def footprint(self, world: World, dense: int = 0, tables: int = 0, scored: int = 0) -> Footprint:
        """Of a client that in training holds its dense weights and a table of items as many times as this, and for
        every user that it scores so many tables more, and another one where its own is stored in half precision."""
        # The widened copy that scores are made from lives beside the stored table.
        scored += self.table_dtype in HALF
        size = world.dtype.itemsize
        shapes = self.model.dense_shapes().values()
        table = world.items * self.settings.dim
        # a network holds its widest layer, twice, for every pair of user and item; one of sequences keeps to a budget
        widest = 0 if isinstance(self.model, Sequential) else max((shape[0] for shape in shapes), default=0)
        usual = Method.footprint(self.settings, world)
        return replace(
            usual,
            client=4096 + (dense * sum(int(np.prod(shape)) for shape in shapes) + tables * table) * size,
            # indices and masks, and per group of parameters: rows, gradient, two moments, gathered copies
            sample=200 + 8 * self.settings.dim * size,
            score=usual.score + (2 * widest * world.items + scored * table) * size,
        )


def _columns(tables: Tensor, items: Tensor) -> Tensor:
    """The rows of some items in every client's table, without a copy when these are all."""
    everything = torch.arange(tables.shape[1], device=items.device)
    return tables if torch.equal(items, everything) else tables[:, items]
