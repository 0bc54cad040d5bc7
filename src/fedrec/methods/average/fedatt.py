"""FedAtt: the server steps towards its clients, each weighted by attention to how far it went.

Ji et al., "Learning Private Neural Language Modeling with Attentive Aggregation" (IJCNN 2019), algorithm 2. Layer by
layer (the item table is one, every dense weight and bias another), clients farther from the server weigh more.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np
import torch
from torch import Tensor

from fedrec.federation.clients import Chunk
from fedrec.federation.contract import (
    Disclosure,
    Down,
    Footprint,
    Gather,
    MethodInfo,
    Plan,
    Reduction,
    State,
    Tensors,
    Ups,
    World,
    replicate,
)
from fedrec.federation.ranges import Share
from fedrec.federation.settings_files import settings_beside
from fedrec.methods.average import choices
from fedrec.methods.average.choices import ScoreWith, Shares
from fedrec.methods.comparison import compared, plan_part
from fedrec.random import Purpose, fold_tensor, normal, signed, stream
from fedrec.training.local_training import LocalMethod

KEY = "noise_key"  # the server's own; it is not sent


@dataclass(frozen=True)
@compared
class FedAtt(LocalMethod):
    info: ClassVar[MethodInfo] = MethodInfo(
        name="fedatt",
        summary="attentive mean: clients farther from the server weigh more",
        paper="Ji et al., IJCNN 2019",
        backbones={"mf": {}, "ncf": {}, "sasrec": {}},
        **settings_beside(__file__),
        new_users=30,
    )

    aggregated_fraction: Share = 1.0
    shares: Shares = "samples"
    """Without effect here: attention is what weighs clients."""
    score_with: ScoreWith = "received"  # local: the client's own model after training
    step: float = 1.2
    """How far the server moves towards the attentive mean; 1: all the way."""
    attention_norm: Literal["frobenius", "spectral"] = "frobenius"
    """Norm of the difference of two matrices; of a bias it is always the Euclidean one."""
    attention_scale: Literal["none", "mean"] = "none"
    """mean: distances are divided by their mean; otherwise the softmax is close to one-hot."""
    noise_scale: float = 0.0
    """Scale of the Gaussian noise on the server's new parameters."""

    @property
    def disclosure(self) -> Disclosure:
        return Disclosure(private=("user",), gathers=True, covered_with={"shares": "equal"})

    def init_server(self, world: World, attributes: Tensor | None = None) -> Tensors:
        key = torch.tensor(signed(stream(world.seed, Purpose.NOISE)))
        return {**self.trainer.init_model(world), KEY: key}

    def init_clients(self, world: World, chunk: Chunk) -> State:
        return choices.init_clients(self.trainer, self.score_with, world, chunk)

    def plan(self, world: World, server: Tensors, round: int) -> Plan:
        return plan_part(world, round, self.aggregated_fraction)

    def broadcast(self, server: Tensors, clients: np.ndarray, round: int) -> Down:
        return Down(shared={name: value for name, value in server.items() if name != KEY})

    def local(self, state: State, down: Down, chunk: Chunk, round: int) -> tuple[State, dict[str, Reduction]]:
        own = replicate(down.shared, len(chunk.clients))
        user, trained = self.trainer.fit_own(chunk, round, state.per_user["user"], own)
        kept = trained if self.score_with == "local" else {}
        return State(kept, {"user": user}), {name: Gather(value) for name, value in trained.items()}

    def aggregate(self, server: Tensors, ups: Ups, round: int) -> Tensors:
        new = dict(server)
        for layer, name in enumerate(name for name in server if name in ups):
            new[name] = self.attend(server[name], ups.stacked(name)[1])
            if self.noise_scale:
                key = fold_tensor(fold_tensor(server[KEY], round), layer).to(new[name].device)
                position = torch.arange(new[name].numel(), device=new[name].device)
                noise = normal(key, position, new[name].dtype).reshape(new[name].shape)
                new[name] = new[name] + self.noise_scale * noise
        return new

    def attend(self, weight: Tensor, clients: Tensor) -> Tensor:
        """w - step * sum_u a_u (w - w_u), one client after another: a stack of tables is not copied."""
        attention = self.attention(weight, clients)
        pull = torch.zeros_like(weight, dtype=torch.float64)
        for share, theirs in zip(attention, clients, strict=True):
            pull += share * (weight - theirs).double()
        return (weight - self.step * pull).to(weight.dtype)

    def attention(self, weight: Tensor, clients: Tensor) -> Tensor:
        """a = softmax(s), s_u = |w - w_u|."""
        matrix_norm = self.attention_norm == "spectral" and weight.dim() == 2
        order = 2 if matrix_norm else None  # None: the square root of the summed squares, whatever the shape
        distance = torch.stack([torch.linalg.norm((weight - theirs).double(), ord=order) for theirs in clients])
        if self.attention_scale == "mean":
            distance = distance / distance.mean().clamp(min=1e-12)
        return distance.softmax(0)

    def score(self, state: State, down: Down, chunk: Chunk, items: Tensor) -> Tensor:
        return choices.score(self.trainer, self.score_with, state, down, chunk, items)

    def footprint(self, world: World) -> Footprint:
        return self.trainer.footprint(world, dense=8, tables=2)
