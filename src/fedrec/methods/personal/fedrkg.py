"""FedRKG: every client keeps one table of its own, into which the mean of all tables is mixed now and then.

"Personalized Federated Recommendation with Knowledge Guidance". Between two guidance rounds nothing is sent. In a
guidance round all clients upload their tables, receive the mean P_g and commit, for every item i,

    P_ui <- beta P_ui + 2 (1 - beta) g_ui P_gi,   g_ui = sigmoid(W_u . [P_ui; P_gi; P_ui - P_gi] + b_u)   (5, 6)

with a private gate (W_u, b_u) that is trained just before on the client's own samples. A gate of 1/2 is plain guidance
(3), which is a gradient step on the squared distance to P_g; gates start there.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

import numpy as np
import torch
from torch import Tensor

from fedrec.errors import FedrecError
from fedrec.federation.clients import Chunk, ClientData, concatenated_ranges
from fedrec.federation.contract import (
    Answer,
    Disclosure,
    Down,
    Footprint,
    Mean,
    MethodInfo,
    OwnNoise,
    Plan,
    Reduction,
    State,
    Tensors,
    Ups,
    World,
    participants,
    replicate,
)
from fedrec.federation.noise import Gaussian, UploadContext
from fedrec.federation.ranges import Count, Interval, Positive
from fedrec.federation.stages import Clip
from fedrec.models import BACKBONES, NCF, Backbone
from fedrec.random import Purpose, fold_tensor, normal, stream, uniform
from fedrec.training.compiled import CompiledKernel, GateSettings, kernel_for, work_of
from fedrec.training.local_training import Descent, Fitted, Group, LocalTraining
from fedrec.training.samples import Batch

if TYPE_CHECKING:
    pass

GATE = 3  # the stream of initial gates
GATE_SAMPLES = 1 << 40  # added to the round: negatives of their own for the gate
STEP_NOISE = 1  # the stream of noise on rows that a batch touched


@dataclass(frozen=True)
class FedRKG(LocalTraining):
    info: ClassVar[MethodInfo] = MethodInfo(
        name="fedrkg",
        summary="own tables, guided now and then by the mean of all through a private gate",
        paper="Personalized Federated Recommendation with Knowledge Guidance",
        backbones={"mf": {}, "ncf": {}, "linear": {}, "scorer": {}},
        presets={
            "paper": {},
            "lastfm": {"rounds": 3000, "beta": 0.999},
        },
    )  # fmt: skip

    rounds: Count = 1000
    init_std: float = 0.1
    lr: float = 0.1
    reduction: Literal["mean", "sum"] = "sum"
    interval: Count = 100  # guidance every so many rounds
    beta: Annotated[float, Interval("[0, 1]")] = 0.99  # part of the own table that a commit keeps
    gate: bool = True  # False: plain guidance
    gate_init: Literal["zero", "linear"] = "zero"
    gate_epochs: int = 5
    lr_gate: float = 0.1
    variant: Literal["full", "GIE", "PIE"] = "full"  # GIE: the mean replaces the table every round; PIE: no exchange
    dp: Literal["none", "gradient", "output"] = "none"  # noise on every step's gradient of the table, or on uploads
    clip: Positive = 0.1  # with dp: norm of a gradient, or of the change since the last upload
    noise: Positive = 0.001  # with dp: standard deviation
    delta: Annotated[float, Interval("(0, 1)")] = 1e-5  # with dp: for the epsilon that is reported

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.dp == "gradient" and self.optimiser != "sgd":
            raise FedrecError(f"optimiser={self.optimiser} does not fit fedrkg: it must be sgd with dp=gradient")
        if self.dp == "gradient" and self.early_exit:
            raise FedrecError(f"early_exit={self.early_exit} does not fit fedrkg: it must be 0 with dp=gradient, where "
                              "every client takes all its steps")  # fmt: skip

    @cached_property
    def model(self) -> Backbone:
        """The network of backbone ncf has one hidden layer: 2d -> d -> 1."""
        return NCF(self.dim, (self.dim,)) if self.backbone == "ncf" else BACKBONES[self.backbone](self.dim)

    @property
    def gated(self) -> bool:
        return self.gate and self.variant == "full"

    @property
    def disclosure(self) -> Disclosure:
        gate = ("gate", "gate_bias") if self.gated else ()
        private = ("user", *self.model.dense_shapes(), *gate)
        return Disclosure(private=private, own_noise=("item",) if self.dp == "output" else ())

    def guides(self, round: int) -> bool:
        """Whether tables are exchanged in this round (the first is 0)."""
        if self.variant == "full":
            return (round + 1) % self.interval == 0
        return self.variant == "GIE"

    # -- start --

    def init_server(self, world: World, attributes: Tensor | None = None) -> Tensors:
        return {"item": self.init_items(world)}

    def init_clients(self, world: World, chunk: Chunk) -> State:
        own = replicate({"item": self.init_items(world), **self.init_dense(world)}, len(chunk.clients))
        if self.gated:
            own |= self._init_gates(world, chunk)
        if self.dp == "output":
            own["sent"] = own["item"].clone()
        return State(own, {"user": self.init_users(world, chunk.users)})

    def _init_gates(self, world: World, chunk: Chunk) -> Tensors:
        width = 3 * self.dim
        values = torch.zeros(len(chunk.clients), width + 1, dtype=world.dtype)
        if self.gate_init == "linear":
            key = fold_tensor(stream(world.seed, Purpose.INIT, GATE), torch.from_numpy(chunk.clients))
            values = (2 * uniform(fold_tensor(key[:, None], torch.arange(width + 1)), world.dtype) - 1) / width**0.5
        values = values.to(world.device)
        return {"gate": values[:, :-1].contiguous(), "gate_bias": values[:, -1:].contiguous()}

    # -- one round --

    def plan(self, world: World, server: Tensors, round: int) -> Plan:
        """Guidance concerns everybody, also those who do not train in this round."""
        chosen, everyone = participants(world, round, world.participation), np.arange(world.clients)
        if not self.guides(round):
            return Plan(chosen, upload=everyone[:0])
        return Plan(chosen) if self.variant == "GIE" else Plan(everyone)

    def local(self, state: State, down: Down, chunk: Chunk, round: int) -> tuple[State, dict[str, Reduction]]:
        trains = np.ones(len(chunk.clients), dtype=bool)
        if self.guides(round) and self.variant == "full":
            trains = np.isin(chunk.clients, participants(chunk.world, round, chunk.world.participation))
        state = self._train(state, chunk, round) if trains.all() else self._train_some(state, chunk, round, trains)
        if not self.guides(round):
            return state, {}
        if self.dp == "output":
            state.per_client["sent"] = self._noised(state, chunk, round)
            return state, {"item": Mean(state.per_client["sent"])}
        return state, {"item": Mean(state.per_client["item"])}

    def _train(self, state: State, chunk: Chunk, round: int) -> State:
        held, user = state.per_client, state.per_user["user"]
        dense = {name: held[name] for name in self.model.dense_shapes()}
        if self.dp == "gradient":
            fitted = NoisedDescent(self, chunk, round, user, held["item"], dense).run()
        else:
            fitted = self.fit(chunk, round, user, held["item"], dense)
        assert isinstance(fitted.table, Tensor)
        return State(held | {"item": fitted.table} | fitted.dense, {"user": fitted.user})

    def _train_some(self, state: State, chunk: Chunk, round: int, trains: np.ndarray) -> State:
        """The others only exchange tables in this round."""
        at = np.flatnonzero(trains)
        if not len(at):
            return state
        clients = chunk.tensor(at)
        users = chunk.tensor(concatenated_ranges(chunk.client_ptr[at], chunk.client_ptr[at + 1]))
        some = chunk.data.chunk(chunk.clients[at], chunk.cohort)
        part = State({name: value[clients] for name, value in state.per_client.items()},
                     {name: value[users] for name, value in state.per_user.items()})  # fmt: skip
        part = self._train(part, some, round)
        chunk.observed.update(some.observed)
        for whole, new, index in ((state.per_client, part.per_client, clients), (state.per_user, part.per_user, users)):
            for name, value in new.items():
                whole[name][index] = value
        return state

    def _noised(self, state: State, chunk: Chunk, round: int) -> Tensor:
        """What the client shows: its last upload plus the change since, clipped and noised. Its table stays clean."""
        sent, place = state.per_client["sent"], UploadContext(chunk.world, chunk.clients, round, {})
        change = Clip(self.clip).apply({"item": state.per_client["item"] - sent}, place)
        noised = Gaussian(self.noise).apply(change, place)["item"]
        assert isinstance(noised, Tensor)
        return sent + noised

    def aggregate(self, server: Tensors, ups: Ups, round: int) -> Tensors:
        return {"item": ups["item"]} if "item" in ups else server

    def answer(self, server: Tensors, plan: Plan, arrived: np.ndarray, round: int) -> Answer | None:
        return Answer(None, lambda some: Down(shared={"item": server["item"]})) if self.guides(round) else None

    def receive(self, state: State, down: Down, chunk: Chunk, round: int) -> State:
        """Train the gate through the fused table (8), then commit with it (9)."""
        held, common = state.per_client, down.shared["item"]
        if not self.gated:
            beta = 0.0 if self.variant == "GIE" else self.beta
            return State({"item": held["item"].mul_(beta).add_(common, alpha=1 - beta)}, state.per_user)
        kernel = self._compiled_kernel(chunk)
        if kernel is not None:
            return self._guided(kernel, state, common, chunk, round)
        gate = {name: held[name] for name in ("gate", "gate_bias")}
        if self.gate_epochs:
            gate = GateDescent(self, state, chunk, round, common).run().dense
        guide_(held["item"], common, gate["gate"], gate["gate_bias"], self.beta)
        return State({"item": held["item"], **gate}, state.per_user)

    def _compiled_kernel(self, chunk: Chunk) -> CompiledKernel | None:
        fits = self.backbone == "mf" and self.loss == "bce" and chunk.data.single
        return kernel_for("gate", chunk.world) if fits else None

    def _guided(self, guide: CompiledKernel, state: State, common: Tensor, chunk: Chunk, round: int) -> State:
        """The same, compiled: gates and tables in place."""
        held, user = state.per_client, state.per_user["user"]
        work = work_of(self, chunk, GATE_SAMPLES + round, user, held["item"])
        settings = GateSettings(
            rate=float(self.lr_gate),
            batch=self.batch,
            epochs=self.gate_epochs,
            mean=self.reduction == "mean",
            keep=float(self.beta),
        )
        guide(work.data(), chunk.world.items, chunk.data.negatives, work.keys, settings, work.user, work.tables, common,
              held["gate"], held["gate_bias"], work.blocks, work.loss, work.seen)  # fmt: skip
        work.observe()
        return state

    def score(self, state: State, down: Down, chunk: Chunk, items: Tensor) -> Tensor:
        return self.own_scores(state.per_user["user"], state.per_client, chunk, items)

    def footprint(self, world: World) -> Footprint:
        tables = 2 if self.dp == "none" else 5  # beside the table: a commit, a mean; what noise is made of
        batch = 8 * self.batch * self.dim * world.dtype.itemsize if self.gated else 0
        client = self.model_bytes(world, dense=8, tables=tables) + batch
        return replace(super().footprint(world), client=client, training_only=("gate", "gate_bias", "sent"))

    # -- what noise guarantees --

    def remarks(self, world: World) -> Sequence[str]:
        if self.dp != "gradient" or not self._gate_learns():
            return ()
        return [
            "dp=gradient: no epsilon, because the gate learns from interactions without noise and acts on the table "
            "that goes up later; gate=false or dp=output have one"
        ]

    def _gate_learns(self) -> bool:
        return self.gated and self.gate_epochs > 0

    def noise_spent(self, data: ClientData) -> OwnNoise | None:
        if self.dp == "none" or self.remarks(data.world):
            return None
        settings = f"dp={self.dp}: norm {self.clip}, noise {self.noise}"
        if self.dp == "output":
            uploads = sum(self.guides(round) for round in range(self.rounds))
            return OwnNoise(settings, self.noise, 2 * self.clip, uploads, "uploads", self.delta)
        batches = self.batches(data)
        steps, counted = self.rounds * self.epochs * batches, f"steps (batches an epoch: {batches} at most)"
        return OwnNoise(settings, self.noise, 2 * self.clip, steps, counted, self.delta, self._limits(batches))

    def _limits(self, batches: int) -> str:
        """Of noised steps: with fewer batches a table carries less noise, which shows how many there were."""
        apart = self.update_sensitivity(batches)
        return f"against other data of as many batches; uploads of two such data sets differ by at most {apart:.4g}"

    def batches(self, data: ClientData) -> int:
        """Of the client with the most samples, in an epoch."""
        samples = int(data.positives.max(initial=0)) * (data.negatives + (self.loss == "bce"))
        return -(-samples // self.batch)

    def update_sensitivity(self, batches: int = 1) -> float:
        """How far two data sets can drive a table apart between two guidance rounds, with clipped gradients (14)."""
        item = self.rates()["item"]
        return 2 * item * self.interval * self.epochs * batches * self.clip


def gate_logits(tables: Tensor, common: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """W . [P; P_g; P - P_g] + b for tables [clients, rows, d] and common rows [rows, d] or [clients, rows, d]."""
    own, shared, difference = weight.chunk(3, -1)
    mine = (tables @ (own + difference).unsqueeze(-1)).squeeze(-1)
    return mine + (common @ (shared - difference).unsqueeze(-1)).squeeze(-1) + bias


def guide_(tables: Tensor, common: Tensor, weight: Tensor, bias: Tensor, beta: float) -> None:
    """Commit (6) in place, client by client: a temporary of the size of all tables is never needed."""
    for table, w, b in zip(tables, weight, bias, strict=True):
        gate = torch.sigmoid(gate_logits(table[None], common, w[None], b[None])[0])
        table.mul_(beta).add_(common * gate[:, None], alpha=2 * (1 - beta))


class GateDescent(Descent):
    """Descent on the gates alone; the samples' rows are those that a commit with the present gate would give."""

    method: FedRKG

    def __init__(self, method: FedRKG, state: State, chunk: Chunk, round: int, common: Tensor) -> None:
        held = state.per_client
        dense = {name: held[name] for name in method.model.dense_shapes()}
        plain = replace(method, epochs=method.gate_epochs, optimiser="sgd", early_exit=0.0)
        super().__init__(plain, chunk, GATE_SAMPLES + round, state.per_user["user"], held["item"], dense)
        order = self.samples.order
        each, ends = torch.arange(len(order), device=order.device), list(range(len(order) + 1))
        for part, name in (("weight", "gate"), ("bias", "gate_bias")):
            self.groups["gate." + part] = Group(held[name][order], each, ends, method.lr_gate)
        self.common = common[self.samples.item]

    def _step(self, batch: Batch) -> Tensor:
        return self._by_hand(batch) if self.method.backbone == "mf" else self._phase(batch, ("gate",))

    def _losses(self, leaves: Tensors, batch: Batch) -> Tensor:
        own, common, beta = leaves["item"][batch.pos], self.common[batch.pos], self.method.beta
        gate = torch.sigmoid(gate_logits(own, common, leaves["gate.weight"], leaves["gate.bias"]))
        fused = beta * own + 2 * (1 - beta) * gate.unsqueeze(-1) * common
        every = torch.arange(batch.pos.numel(), device=fused.device).reshape(batch.pos.shape)
        return super()._losses(leaves | {"item": fused.flatten(0, 1)}, replace(batch, pos=every))

    def _by_hand(self, batch: Batch) -> Tensor:
        """The gradient of an inner product in closed form, 2 (1 - beta) delta_i g_i (1 - g_i) (e . P_gi) by logit."""
        count, beta = batch.clients, self.method.beta
        weight, bias = (self.groups["gate." + part] for part in ("weight", "bias"))
        own, common = self.groups["item"].value[batch.pos], self.common[batch.pos]
        user = self.groups["user"].value[batch.user]
        gate = torch.sigmoid(gate_logits(own, common, weight.value[:count], bias.value[:count]))
        towards = (user * common).sum(-1)
        score = beta * (user * own).sum(-1) + 2 * (1 - beta) * gate * towards
        error = (torch.sigmoid(score) - batch.label) * batch.valid
        if self.method.reduction == "mean":
            error = error / batch.size[:, None]
        slope = (error * 2 * (1 - beta) * gate * (1 - gate) * towards).unsqueeze(1)  # by the gate's logit
        mine, theirs = (slope @ own).squeeze(1), (slope @ common).squeeze(1)
        self.update(weight, torch.cat([mine, theirs, mine - theirs], 1))
        self.update(bias, slope.sum(2))
        losses = torch.nn.functional.binary_cross_entropy_with_logits(score, batch.label, reduction="none")
        return (losses * batch.valid).sum(1).double()

    def _result(self) -> Fitted:
        gates = {}
        for part, name in (("weight", "gate"), ("bias", "gate_bias")):
            value = self.groups["gate." + part].value
            gates[name] = torch.empty_like(value)
            gates[name][self.samples.order] = value
        return Fitted(torch.empty(0), self.table, gates)


def clipped(gradient: Tensor, owner: Tensor, clients: int, norm: float) -> Tensor:
    """Rows of several clients' gradients, each client's scaled down together to at most this norm."""
    square = gradient.new_zeros(clients).index_add_(0, owner, gradient.square().sum(1))
    return gradient * (norm / square.sqrt().clamp(min=1e-30)).clamp(max=1)[owner, None]


class NoisedDescent(Descent):
    """Descent with the gradient of each client's whole table clipped and noised at every step.

    Noise falls on rows without samples too, or they would show which rows have some. Nothing reads those within a
    round, so that their noise of all steps is one draw.
    """

    method: FedRKG

    def __init__(self, method: FedRKG, chunk: Chunk, round: int, user: Tensor, table: Tensor, dense: Tensors) -> None:
        super().__init__(method, chunk, round, user, table, dense)
        clients = chunk.tensor(chunk.clients)[self.samples.order]
        self.place = UploadContext(chunk.world, chunk.clients, round, {})
        self.key = fold_tensor(stream(chunk.world.seed, Purpose.NOISE, round, STEP_NOISE), clients)
        self.entry = torch.arange(method.dim, device=table.device)
        self.update = self._update

    def _update(self, group: Group, gradient: Tensor) -> None:
        if group is self.groups["item"]:
            owner = group.owner[: len(gradient)]
            bounded = clipped(gradient, owner, len(group.end), self.method.clip)
            key = fold_tensor(self.key, self.step_count)[owner, None]
            position = self.samples.item[: len(gradient), None] * self.method.dim + self.entry
            noise = normal(key, position, gradient.dtype)
            gradient = bounded + self.method.noise * noise
        self._sgd(group, gradient)

    def _result(self) -> Fitted:
        fitted, s = super()._result(), self.samples
        rest = Gaussian(1.0).apply({"rest": torch.zeros_like(self.table)}, self.place)["rest"]
        assert isinstance(rest, Tensor)
        rest[self.clients, s.item] = 0
        steps = torch.empty_like(s.steps)
        steps[s.order] = s.steps * self.method.epochs
        scale = self.groups["item"].rate * self.method.noise * steps.to(rest.dtype).sqrt()
        self.table -= scale[:, None, None] * rest
        return fitted
