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
from typing import Annotated, ClassVar, Literal

import numpy as np
import torch
from torch import Tensor

from fedrec import method as fm
from fedrec.models.sasrec import BlockKind
from fedrec.training.averaging import MEAN, mean_with
from fedrec.training.changes import ChangeTrainer
from fedrec.training.next_item_training import next_item_trainer
from fedrec.training.sequences import Crop, SequenceLoss

Beta = Annotated[float, "[0, 1)"]
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
class FedOpt(fm.LocalMethod):
    info: ClassVar[fm.MethodInfo] = fm.MethodInfo(
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
    shares: fm.Shares = "equal"  # samples: the mean is weighted by clients' samples
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
    tau: fm.Positive = 1e-8
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
    cooldown: Annotated[float, "[0, 1]"] = 0.0
    averaging: Beta = 0.0
    personal_steps: int = 0
    personal_lr: fm.Positive = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        # Refused before anything runs: a setting without effect would be reported with the result as if it had one.
        if self.loss == "ce" and not self.trainer.sequential:
            raise fm.FedrecError(f"loss=ce ranks the next item of a sequence; use bce or bpr with {self.backbone}")
        if not self.trainer.sequential:
            self._require_usual(OF_SEQUENCES, "backbone=sasrec", f"{self.backbone} reads no sequences")
        if self.sends == "gradient":
            self._require_usual(OF_STEPS, "sends=change", "a gradient is computed once, without local steps")

    def _require_usual(self, names: tuple[str, ...], needed: str, why: str) -> None:
        """Refuse a setting that would have no effect: whoever asks for it expects one."""
        usual = {field.name: field.default for field in fields(self)}
        for name in names:
            if (value := getattr(self, name)) != usual[name]:
                raise fm.FedrecError(f"{name}={value} needs {needed}: {why}")

    @cached_property
    def trainer(self) -> fm.LocalTrainer:
        return next_item_trainer(
            self,
            softmax=self.loss == "ce",
            sampled=self.sampled,
            crop=self.crop,
            personal_steps=self.personal_steps,
            personal_rate=self.personal_lr,
        )

    @cached_property
    def train(self) -> ChangeTrainer:
        return ChangeTrainer(
            self.trainer,
            gradient=self.sends == "gradient",
            network=not self.own_head,
            clip=self.clip,
            among_all=self.loss == "ce" and not self.sampled,
        )

    @property
    def own_head(self) -> bool:
        """Whether the network is the user: without one of its own, every client would rank alike."""
        return not self.model.has_user and not self.trainer.sequential

    @property
    def private_network(self) -> bool:  # type: ignore[override]
        return self.own_head

    def init_server(self, world: fm.World, attributes: Tensor | None = None) -> fm.Tensors:
        if self.sampled > world.items:  # every place beyond the last item would cost time and hold nothing
            raise fm.FedrecError(
                f"sampled={self.sampled} is more than the {world.items} items there are; "
                f"use at most {world.items}, or 0 for all"
            )
        x = {"item": self.trainer.init_items(world), **({} if self.own_head else self.trainer.init_network(world))}
        m = {FIRST + name: torch.zeros_like(value) for name, value in x.items()}
        # Where Algorithm 2 starts, which has no correction.
        start = 0.0 if self.bias_correction else self.tau**2
        v = {SECOND + name: torch.full_like(value, start) for name, value in x.items()}
        a = {MEAN + name: value.clone() for name, value in x.items() if self.averaging}
        return x | m | ({} if self.server_optimiser == "sgd" else v) | a | {"steps": torch.zeros((), dtype=torch.int64)}

    def init_clients(self, world: fm.World, chunk: fm.Chunk) -> fm.State:
        return self.trainer.init_state(world, chunk, self.trainer.init_dense(world) if self.own_head else None)

    def plan(self, world: fm.World, server: fm.Tensors, round: int) -> fm.Plan:
        fraction = self.clients_per_round / world.clients if self.clients_per_round else world.participation
        return fm.Plan(fm.participants(world, round, fraction))

    def broadcast(self, server: fm.Tensors, clients: np.ndarray, round: int) -> fm.Down:
        return fm.Down(shared={name: server[name] for name in _shared_names(server)})

    # -- clients --

    def local(self, state: fm.State, down: fm.Down, chunk: fm.Chunk, round: int) -> tuple[fm.State, fm.Uploads]:
        weight, user = self.client_weight(chunk), state.per_user["user"]
        new, change = self.train(chunk, round, user, state.per_client, down.shared, weight)
        kept = {name: new.dense[name] for name in state.per_client}
        payload: fm.Uploads = {CHANGE + name: fm.Mean(value, weight) for name, value in change.items()}
        return fm.State(kept, {"user": new.user}), payload

    # -- server --

    def aggregate(self, server: fm.Tensors, ups: fm.Ups, round: int) -> fm.Tensors:
        new, rate = {"steps": server["steps"] + 1}, self._rate_at(round)
        for name in _shared_names(server):
            new |= self._step(server, name, ups[CHANGE + name], int(new["steps"]), rate)
            if self.averaging:
                new[MEAN + name] = mean_with(server[MEAN + name], new[name], int(new["steps"]), self.averaging)
        return {name: new[name] for name in server}

    def _rate_at(self, round: int) -> float:
        """The server's, which falls linearly over the last rounds; the last of all still has a step."""
        last = self.cooldown * self.rounds
        return self.server_lr * min(1.0, max(0.0, self.rounds - round) / last) if last else self.server_lr

    def _step(self, server: fm.Tensors, name: str, d: Tensor, t: int, rate: float) -> fm.Tensors:
        # Decay apart from the gradient (AdamW): within it, the second moment would divide it away.
        x, m = server[name] * (1 - rate * self.server_decay), self.beta1 * server[FIRST + name]
        if self.server_optimiser == "sgd":
            m = m + d
            return {name: x + rate * m, FIRST + name: m}
        m, v = m + (1 - self.beta1) * d, self._second_moment(server[SECOND + name], d.square())
        mean, square = m, v
        if self.bias_correction:
            mean = m / (1 - self.beta1**t)
            # Adagrad's v is a sum and not a mean whose weights begin below one, so there is nothing to correct.
            square = v if self.server_optimiser == "adagrad" else v / (1 - self.beta2**t)
        return {name: x + rate * mean / (square.sqrt() + self.tau), FIRST + name: m, SECOND + name: v}

    def _second_moment(self, v: Tensor, square: Tensor) -> Tensor:
        if self.server_optimiser == "adagrad":
            return v + square
        if self.server_optimiser == "yogi":
            # By the sign of the difference, so that v falls slowly after a large D instead of at once.
            return v - (1 - self.beta2) * square * torch.sign(v - square)
        return self.beta2 * v + (1 - self.beta2) * square

    # -- scores --

    def offer(self, server: fm.Tensors, clients: np.ndarray, round: int, items: Tensor) -> fm.Down:
        """The mean of the models so far, or the latest."""
        return fm.Down(shared={name: server[(MEAN if self.averaging else "") + name] for name in _shared_names(server)})

    def score(self, state: fm.State, down: fm.Down, chunk: fm.Chunk, items: Tensor) -> Tensor:
        if self.own_head:
            # Expanded and not repeated: a table per client is not needed to read one common table.
            own = {"item": down.shared["item"].expand(len(chunk.clients), -1, -1), **state.per_client}
            return self.trainer.own_scores(state.per_user["user"], own, chunk, items)
        return super().score(state, down, chunk, items)

    def footprint(self, world: fm.World) -> fm.Footprint:
        """A network with its gradient, its change and copies; with ce also so many rows, and a table of logits."""
        rows = (self.sampled or world.items) if self.loss == "ce" else 0
        usual = self.trainer.footprint(world, dense=8)
        logits = 4 * rows * self.length
        each = (6 * rows * self.dim + logits) * world.dtype.itemsize
        return replace(usual, client=usual.client + each, cache=AT_ONCE)


def _shared_names(server: fm.Tensors) -> list[str]:
    """What clients receive: all but what the server keeps for itself."""
    return [name for name in server if name != "steps" and not name.startswith((FIRST, SECOND, MEAN))]
