"""FedOpt: the server steps an optimiser of its own against the mean of what clients changed.

Reddi et al., ICLR 2021, Algorithm 2. In every round t, with x what clients and server share,

    each client i of S:    x_i,0 = x_t;  x_i,k+1 = x_i,k - lr g_i,k  for k < K;  D_i = x_i,K - x_t
    server:                D = 1/|S| sum_i D_i
                           m_t = beta1 m_t-1 + (1 - beta1) D
             adagrad       v_t = v_t-1 + D^2
             yogi          v_t = v_t-1 - (1 - beta2) D^2 sign(v_t-1 - D^2)
             adam          v_t = beta2 v_t-1 + (1 - beta2) D^2
                           x_t+1 = x_t + server_lr m_t / (sqrt(v_t) + tau)
             sgd           m_t = beta1 m_t-1 + D,   x_t+1 = x_t + server_lr m_t

With sends=change a client trains as in FedAvg and sends D_i. With sends=gradient it sends one gradient of the mean loss
of its own data, D_i = -g_i (K = 1, lr = 1): all clients together then are full-batch training, as with all data in one
place.
`clip` bounds the norm of the whole D_i, so that no client pulls farther than others; for privacy the wire has a stage
of that name. With `averaging` clients score with a mean of x_1 to x_t in which each counts `averaging` times what the
next one does (after Polyak & Juditsky, 1992); they train from x_t, and nothing more is sent. A sum is all that the
server needs. User vectors, and the head of backbone linear, never leave: clients train them at `lr`. Nor does the
private vector of backbone sasrec (`personal_steps`; `training/personal_head.py`).
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
import torch
from torch import Tensor

from fedrec.errors import FedrecError
from fedrec.federation.clients import Chunk
from fedrec.federation.contract import (
    Disclosure,
    Down,
    Footprint,
    Mean,
    MethodInfo,
    PartialSum,
    Plan,
    Reduction,
    Rows,
    State,
    Tensors,
    Ups,
    World,
    participants,
    replicate,
)
from fedrec.federation.noise import UploadContext
from fedrec.federation.ranges import Interval, Positive
from fedrec.federation.stages import Clip
from fedrec.models import Sequential
from fedrec.models.sasrec import BlockKind
from fedrec.training.averaging import MEAN, mean_with
from fedrec.training.descent import Fitted
from fedrec.training.local_training import LocalMethod, LocalTrainer, Shares
from fedrec.training.next_item_training import AmongAllDescent, AmongDrawnDescent
from fedrec.training.one_gradient import OneGradient
from fedrec.training.personal_head import PersonalHead
from fedrec.training.sequences import Crop, SequenceLoss, packed, unpacked

Beta = Annotated[float, Interval("[0, 1)")]
CHANGE = "change."  # uploads are changes, not values: a wire that rounds or clips measures them from zero
FIRST, SECOND = "first.", "second."  # the server's m and v
AT_ONCE = 256 << 20  # bytes of clients side by side on a processor
# what nothing reads with another backbone, and what nothing reads where no step is taken on what is sent
OF_SEQUENCES = (
    "length",
    "dropout",
    "sampled",
    "blocks",
    "heads",
    "block_kind",
    "crop",
    "personal_steps",
    "personal_lr",
)
OF_STEPS = ("epochs", "early_exit", "optimiser", "lr_item", "weight_decay_dense")


@dataclass(frozen=True)
class FedOpt(LocalMethod):
    info: ClassVar[MethodInfo] = MethodInfo(
        name="fedopt",
        summary="a server optimiser applied to the mean of clients' updates or gradients",
        paper="Reddi et al., ICLR 2021",
        aliases={
            "fedadam": {"server_optimiser": "adam"},
            "fedyogi": {"server_optimiser": "yogi"},
            "fedadagrad": {"server_optimiser": "adagrad"},
        },
        backbones={
            "mf": {},
            "ncf": {"init_std": 0.1, "lr": 1.0},
            "linear": {"init_std": 0.1, "lr": 1.0},
            "sasrec": {
                "loss": "ce",
                "dim": 64,
                "length": 100,
                "init_std": 0.03,
                "server_lr": 0.001,
                "clip": 0.5,
                "clients_per_round": 128,
                "rounds": 900,
                "lr": 0.1,
            },
        },
        new_users=30,
    )

    sends: Literal["gradient", "change"] = "gradient"
    """What a client uploads: a gradient, or its change after `epochs` of local training."""
    shares: Shares = "equal"  # samples: the mean is weighted by clients' samples
    clip: float = 0.0
    """Largest norm of a client's whole upload; 0: any."""
    clients_per_round: int = 0  # 0: as many as --participation says
    server_optimiser: Literal["sgd", "adam", "yogi", "adagrad"] = "adam"
    """How the server steps along the mean upload."""
    server_lr: float = 0.01
    server_decay: float = 0.0  # part of the parameters that a step takes away, times server_lr (AdamW)
    beta1: Beta = 0.9
    """Decay of the server's first moment."""
    beta2: Beta = 0.99
    """Decay of the server's second moment."""
    tau: Positive = 1e-8
    """Added to the root of the second moment: the smaller, the more adaptive."""
    bias_correction: bool = True
    """Whether moments are corrected for their start at 0; false: as in the paper, the second starts at tau^2."""
    loss: SequenceLoss = "bce"  # type: ignore[assignment]
    """bce on single items, bpr on pairs; ce: the next item among all items, with sasrec alone."""
    sampled: int = 0
    blocks: int = 2  # sasrec: layers
    heads: int = 1  # sasrec
    block_kind: BlockKind = "sasrec"
    crop: Crop = "last"
    cooldown: Annotated[float, Interval("[0, 1]")] = 0.0
    averaging: Beta = 0.0
    personal_steps: int = 0
    personal_lr: Positive = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.loss == "ce" and not self.sequential:
            raise FedrecError(f"loss=ce ranks the next item of a sequence; use bce or bpr with {self.backbone}")
        if not self.sequential:
            self._require_usual(OF_SEQUENCES, "backbone=sasrec", f"{self.backbone} reads no sequences")
        if self.sends == "gradient":
            self._require_usual(OF_STEPS, "sends=change", "a gradient is computed once, without local steps")

    def _require_usual(self, names: tuple[str, ...], needed: str, why: str) -> None:
        """Refuse a setting that would have no effect: whoever asks for it expects one."""
        usual = {field.name: field.default for field in fields(self)}
        for name in names:
            if (value := getattr(self, name)) != usual[name]:
                raise FedrecError(f"{name}={value} needs {needed}: {why}")

    @cached_property
    def trainer(self) -> LocalTrainer:
        softmax = AmongDrawnDescent if self.sampled else AmongAllDescent
        among = softmax if self.loss == "ce" else None
        head = PersonalHead(self.personal_steps, self.personal_lr) if self.personal_steps else None
        return LocalTrainer(self, slots=self.sampled or None, crop=self.crop, descent=among, head=head)

    @property
    def sequential(self) -> bool:
        return isinstance(self.model, Sequential)

    @cached_property
    def one_gradient(self) -> OneGradient | None:
        """Where a step moves nothing before the next: a shorter way to the gradient of the softmax over all items."""
        among_all = self.loss == "ce" and not self.sampled
        if not isinstance(self.model, Sequential) or not among_all or self.sends != "gradient":
            return None
        return OneGradient(self.model, self.reduction == "mean", self.crop)

    @property
    def own_head(self) -> bool:
        """Whether the network is the user: without one of its own, every client would rank alike."""
        return not self.model.has_user and not self.sequential

    @property
    def disclosure(self) -> Disclosure:
        own = tuple(self.model.dense_shapes()) if self.own_head else ()
        return Disclosure(private=("user", *own), covered_with={"shares": "equal"})

    def init_server(self, world: World, attributes: Tensor | None = None) -> Tensors:
        if self.sampled > world.items:  # every place beyond the last item would cost time and hold nothing
            raise FedrecError(
                f"sampled={self.sampled} is more than the {world.items} items there are; "
                f"use at most {world.items}, or 0 for all"
            )
        x = {"item": self.trainer.init_items(world), **({} if self.own_head else self._initial_network(world))}
        m = {FIRST + name: torch.zeros_like(value) for name, value in x.items()}
        start = 0.0 if self.bias_correction else self.tau**2
        v = {SECOND + name: torch.full_like(value, start) for name, value in x.items()}
        a = {MEAN + name: value.clone() for name, value in x.items() if self.averaging}
        return x | m | ({} if self.server_optimiser == "sgd" else v) | a | {"steps": torch.zeros((), dtype=torch.int64)}

    def _initial_network(self, world: World) -> Tensors:
        """That of a sequential backbone as one table: its many weights go all the same way."""
        dense = self.trainer.init_dense(world)
        return {"network": packed(self.model, dense)} if isinstance(self.model, Sequential) else dense

    def init_clients(self, world: World, chunk: Chunk) -> State:
        return self.trainer.init_state(world, chunk, self.trainer.init_dense(world) if self.own_head else None)

    def plan(self, world: World, server: Tensors, round: int) -> Plan:
        fraction = self.clients_per_round / world.clients if self.clients_per_round else world.participation
        return Plan(participants(world, round, fraction))

    def broadcast(self, server: Tensors, clients: np.ndarray, round: int) -> Down:
        return Down(shared={name: server[name] for name in _shared(server)})

    # -- clients --

    def local(self, state: State, down: Down, chunk: Chunk, round: int) -> tuple[State, dict[str, Reduction]]:
        new, change = self._trained(state, dict(down.shared), chunk, round)
        if self.clip:
            change = Clip(self.clip).apply(change, UploadContext(chunk.world, chunk.clients, round, reference={}))
        kept = {name: new.dense[name] for name in state.per_client}
        weight = self.client_weight(chunk)
        return State(kept, {"user": new.user}), {CHANGE + name: Mean(value, weight) for name, value in change.items()}

    def _trained(self, state: State, start: Tensors, chunk: Chunk, round: int) -> tuple[Fitted, dict[str, Any]]:
        """What clients then keep, and how what they share has changed."""
        user, table = state.per_user["user"], start.pop("item")
        if self.one_gradient is not None and chunk.data.single:
            by_item, by_network = self.one_gradient(chunk, round, table, start["network"])
            return Fitted(user, table), {"item": by_item, "network": by_network}
        dense = state.per_client if self.own_head else replicate(start, len(chunk.clients))
        work = self._one_gradient if self.sends == "gradient" else self._epochs
        return work(user, table, dense, chunk, round)

    def _one_gradient(
        self, user: Tensor, table: Tensor, dense: Tensors, chunk: Chunk, round: int
    ) -> tuple[Fitted, dict[str, Any]]:
        """K = 1 at rate 1: D_i = -g_i. What stays with the client takes its step."""
        rates, g = self.trainer.rates, self.trainer.gradient(chunk, round, user, table, dense)
        change: dict[str, Any] = {"item": _negative(g.table, table)}
        own = {name: value - rates["dense"] * g.dense[name] for name, value in dense.items() if self.own_head}
        change |= {name: value.neg_() for name, value in g.dense.items() if not self.own_head}
        return Fitted(user - rates["user"] * g.user, table, own), change

    def _epochs(
        self, user: Tensor, table: Tensor, dense: Tensors, chunk: Chunk, round: int
    ) -> tuple[Fitted, dict[str, Any]]:
        """K steps of local training: D_i = x_i,K - x_t."""
        weight = self.client_weight(chunk)
        x = self.trainer.fit(chunk, round, user, table, dense, weight=weight, fold=not self.clip)
        change: dict[str, Any] = {"item": _since(x.table, table)}
        change |= {name: value - dense[name] for name, value in x.dense.items() if not self.own_head}
        return x, change

    # -- server --

    def aggregate(self, server: Tensors, ups: Ups, round: int) -> Tensors:
        new, rate = {"steps": server["steps"] + 1}, self._rate(round)
        for name in _shared(server):
            new |= self._stepped(server, name, ups[CHANGE + name], int(new["steps"]), rate)
            if self.averaging:
                new[MEAN + name] = mean_with(server[MEAN + name], new[name], int(new["steps"]), self.averaging)
        return {name: new[name] for name in server}

    def _rate(self, round: int) -> float:
        """The server's, which falls linearly over the last rounds; the last of all still has a step."""
        last = self.cooldown * self.rounds
        return self.server_lr * min(1.0, max(0.0, self.rounds - round) / last) if last else self.server_lr

    def _stepped(self, server: Tensors, name: str, d: Tensor, t: int, rate: float) -> Tensors:
        x, m = server[name] * (1 - rate * self.server_decay), self.beta1 * server[FIRST + name]
        if self.server_optimiser == "sgd":
            m = m + d
            return {name: x + rate * m, FIRST + name: m}
        m, v = m + (1 - self.beta1) * d, self._second(server[SECOND + name], d.square())
        mean, square = m, v
        if self.bias_correction:
            mean = m / (1 - self.beta1**t)
            square = v if self.server_optimiser == "adagrad" else v / (1 - self.beta2**t)
        return {name: x + rate * mean / (square.sqrt() + self.tau), FIRST + name: m, SECOND + name: v}

    def _second(self, v: Tensor, square: Tensor) -> Tensor:
        if self.server_optimiser == "adagrad":
            return v + square
        if self.server_optimiser == "yogi":
            return v - (1 - self.beta2) * square * torch.sign(v - square)
        return self.beta2 * v + (1 - self.beta2) * square

    # -- scores --

    def offer(self, server: Tensors, clients: np.ndarray, round: int, items: Tensor) -> Down:
        """The mean of the models so far, or the latest."""
        return Down(shared={name: server[(MEAN if self.averaging else "") + name] for name in _shared(server)})

    def score(self, state: State, down: Down, chunk: Chunk, items: Tensor) -> Tensor:
        if self.own_head:
            own = {"item": down.shared["item"].expand(len(chunk.clients), -1, -1), **state.per_client}
            return self.trainer.own_scores(state.per_user["user"], own, chunk, items)
        common = down.shared
        if isinstance(self.model, Sequential):
            common = {"item": common["item"], **unpacked(self.model, common["network"])}
        return self.trainer.common_scores(state.per_user["user"], common, chunk, items)

    def footprint(self, world: World) -> Footprint:
        """A network with its gradient, its change and copies; with ce also so many rows, and a table of logits."""
        rows = (self.sampled or world.items) if self.loss == "ce" else 0
        usual = self.trainer.footprint(world, dense=8)
        logits = 4 * rows * self.length
        each = (6 * rows * self.dim + logits) * world.dtype.itemsize
        return replace(usual, client=usual.client + each, cache=AT_ONCE)


def _shared(server: Tensors) -> list[str]:
    """What clients receive: all but what the server keeps for itself."""
    return [name for name in server if name != "steps" and not name.startswith((FIRST, SECOND, MEAN))]


def _since(value: Rows | PartialSum | Tensor, start: Tensor) -> Rows | PartialSum | Tensor:
    """How far tables have gone from a common start."""
    if isinstance(value, Rows):
        return replace(value, base=_nowhere(start), value=value.value - start[value.item])
    return value - start if isinstance(value, Tensor) else replace(value, base=_nowhere(start))


def _negative(gradient: Rows | PartialSum | Tensor, start: Tensor) -> Rows | Tensor:
    if isinstance(gradient, Rows):
        return replace(gradient, base=_nowhere(start), value=gradient.value.neg_())
    assert isinstance(gradient, Tensor)
    return gradient.neg_()


def _nowhere(table: Tensor) -> Tensor:
    """Zeros of the shape of a table that take no room."""
    return table.new_zeros(1, 1).expand(table.shape)
