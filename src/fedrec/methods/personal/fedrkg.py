"""FedRKG: every client keeps one table of its own, into which the mean of all tables is mixed now and then.

Lim et al. 2025, "Personalized Federated Recommendation with Knowledge Guidance" (not the FedRKG of Yao et al. 2024,
which is about a knowledge graph). Between two guidance rounds nothing is sent. In a guidance round all clients upload
their tables, receive the mean P_g and commit, for every item i,

    P_ui <- beta P_ui + 2 (1 - beta) g_ui P_gi,   g_ui = sigmoid(W_u . [P_ui; P_gi; P_ui - P_gi] + b_u)   (4 to 6)

with a private gate (W_u, b_u) that is trained just before on the client's own samples. A gate of 1/2 is plain guidance
(3), which is a gradient step on the squared distance to P_g; gates start there.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated, ClassVar, Literal

import numpy as np
from torch import Tensor

from fedrec import method as fm
from fedrec.methods.personal.gate import GATE, commit_with_gate, init_gates
from fedrec.methods.personal.noised_descent import NoisedDescent, noise_change
from fedrec.methods.some_clients import SomeClients

# So far up that no round of training has the number.
GATE_SAMPLES = 1 << 40  # added to the round: negatives of their own for the gate


@dataclass(frozen=True)
class FedRKG(fm.LocalMethod):
    info: ClassVar[fm.MethodInfo] = fm.MethodInfo(
        name="fedrkg",
        summary="personal tables, guided from time to time by the mean of all through a private gate",
        paper="Lim et al., arXiv:2511.12959, 2025",
        backbones={"mf": {}, "ncf": {}, "linear": {}, "scorer": {}},
    )
    models = "own"
    private_network = True
    layers = 1  # of the network of backbone ncf: 2d -> d -> 1

    rounds: fm.Count = 1000
    init_std: float = 0.1
    lr: float = 0.1
    reduction: Literal["mean", "sum"] = "sum"
    interval: fm.Count = 100
    """Rounds from one guidance by the mean table to the next."""
    beta: Annotated[float, "[0, 1]"] = 0.99
    """Share of a client's own table that guidance keeps."""
    gate: bool = True
    """Whether a learned gate decides what guidance changes; false: plain guidance."""
    gate_init: Literal["zero", "linear"] = "zero"
    """How the gate starts."""
    gate_epochs: int = 5
    """Epochs of the gate's training."""
    lr_gate: float = 0.1  # ours: the paper gives the grid 0.0001 to 0.1 alone
    """Learning rate of the gate."""
    variant: Literal["full", "GIE", "PIE"] = "full"
    """full; GIE: the mean replaces the table every round; PIE: no exchange at all."""
    dp: Literal["none", "gradient", "output"] = "none"
    """Noise on every step's gradient of the table, on uploads, or none."""
    clip: Annotated[float, "(0, inf)"] = 0.1
    """With dp: norm of a gradient, or of the change since the last upload."""
    noise: Annotated[float, "(0, inf)"] = 0.001  # with dp: standard deviation
    delta: Annotated[float, "(0, 1)"] = 1e-5
    """With dp: the delta for which epsilon is reported."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.dp == "gradient" and self.optimiser != "sgd":
            raise fm.FedrecError(f"optimiser={self.optimiser} does not fit fedrkg: it must be sgd with dp=gradient")
        if self.dp == "gradient" and self.early_exit:
            raise fm.FedrecError(
                f"early_exit={self.early_exit} does not fit fedrkg: it must be 0 with dp=gradient, where "
                "every client takes all its steps"
            )

    @property
    def has_gate(self) -> bool:
        return self.gate and self.variant == "full"

    @property
    def disclosure(self) -> fm.Disclosure:
        usual = super().disclosure
        gate = GATE if self.has_gate else ()
        return replace(usual, private=(*usual.private, *gate), own_noise=("item",) if self.dp == "output" else ())

    def guides(self, round: int) -> bool:
        """Whether tables are exchanged in this round (the first is 0)."""
        if self.variant == "full":
            return (round + 1) % self.interval == 0
        return self.variant == "GIE"

    # -- start --

    def init_server(self, world: fm.World, attributes: Tensor | None = None) -> fm.Tensors:
        return {"item": self.trainer.init_items(world)}

    def init_clients(self, world: fm.World, chunk: fm.Chunk) -> fm.State:
        state = super().init_clients(world, chunk)
        if self.has_gate:
            state.per_client |= init_gates(world, chunk, self.dim, self.gate_init)
        if self.dp == "output":
            # The common start stands for the last upload: everybody knows it, so nothing is told by it.
            state.per_client["sent"] = state.per_client["item"].clone()
        return state

    # -- one round --

    def plan(self, world: fm.World, server: fm.Tensors, round: int) -> fm.Plan:
        """Guidance concerns everybody, also those who do not train in this round."""
        chosen, everyone = super().plan(world, server, round).train, np.arange(world.clients)
        if not self.guides(round):
            # Nobody uploads between two guidance rounds: that is what the method saves.
            return fm.Plan(chosen, upload=everyone[:0])
        return fm.Plan(chosen) if self.variant == "GIE" else fm.Plan(everyone)

    def local(self, state: fm.State, down: fm.Down, chunk: fm.Chunk, round: int) -> tuple[fm.State, fm.Uploads]:
        trains = self._training(chunk, round)
        # The usual case apart, because picking clients out copies their tables.
        if trains.all():
            state = self._train(state, chunk, round)
        elif trains.any():
            some = SomeClients(chunk, chunk.tensor(np.flatnonzero(trains)))
            some.write(self._train(some.take(state), some.chunk, round), state)
        if not self.guides(round):
            return state, {}
        if self.dp == "output":
            # a client shows its last upload plus the noised change since; its own table stays clean
            sent, own = state.per_client["sent"], state.per_client["item"]
            state.per_client["sent"] = sent + noise_change(own - sent, self.clip, self.noise, chunk, round)
            return state, {"item": fm.Mean(state.per_client["sent"])}
        return state, {"item": fm.Mean(state.per_client["item"])}

    def _training(self, chunk: fm.Chunk, round: int) -> np.ndarray:
        """All, but in a guidance round of everybody: there, those who are not chosen only exchange tables."""
        if self.guides(round) and self.variant == "full":
            return np.isin(chunk.clients, super().plan(chunk.world, {}, round).train)
        return np.ones(len(chunk.clients), dtype=bool)

    def _train(self, state: fm.State, chunk: fm.Chunk, round: int) -> fm.State:
        held, user = state.per_client, state.per_user["user"]
        dense = {name: held[name] for name in self.model.dense_shapes()}
        if self.dp == "gradient":
            noised = NoisedDescent(self.trainer, chunk, round, user, held["item"], dense, self.clip, self.noise)
            fitted = noised.run()
        else:
            fitted = self.trainer.fit(chunk, round, user, held["item"], dense)
        assert isinstance(fitted.table, Tensor)
        return fm.State(held | {"item": fitted.table} | fitted.dense, {"user": fitted.user})

    def aggregate(self, server: fm.Tensors, ups: fm.Ups, round: int) -> fm.Tensors:
        """P_g is the mean of the tables (section 4.2)."""
        return {"item": ups["item"]} if "item" in ups else server

    def answer(self, server: fm.Tensors, plan: fm.Plan, arrived: np.ndarray, round: int) -> fm.Answer | None:
        return fm.Answer(None, lambda some: fm.Down(shared={"item": server["item"]})) if self.guides(round) else None

    def receive(self, state: fm.State, down: fm.Down, chunk: fm.Chunk, round: int) -> fm.State:
        """Train the gate through the fused table (7, 8), then commit with it (9)."""
        held, common = state.per_client, down.shared["item"]
        if not self.has_gate:
            # Plain guidance is a gate of 1/2 everywhere, where the factor 2 (1 - beta) / 2 is 1 - beta.
            beta = 0.0 if self.variant == "GIE" else self.beta
            return fm.State({"item": held["item"].mul_(beta).add_(common, alpha=1 - beta)}, state.per_user)
        own = commit_with_gate(self, chunk, GATE_SAMPLES + round, state.per_user["user"], held, common)
        return fm.State(own, state.per_user)

    def footprint(self, world: fm.World) -> fm.Footprint:
        tables = 2 if self.dp == "none" else 5  # beside the table: a commit, a mean; what noise is made of
        batch = 8 * self.batch * self.dim * world.dtype.itemsize if self.has_gate else 0
        usual = self.trainer.footprint(world, dense=8, tables=tables)
        return replace(usual, client=usual.client + batch, training_only=(*GATE, "sent"))

    # -- what noise guarantees --

    def remarks(self, world: fm.World) -> Sequence[str]:
        if self.dp != "gradient" or not self._gate_learns():
            return ()
        return [
            "dp=gradient: no epsilon, because the gate learns from interactions without noise and affects later "
            "uploads of the table; gate=false and dp=output have one"
        ]

    def _gate_learns(self) -> bool:
        return self.has_gate and self.gate_epochs > 0

    def noise_spent(self, data: fm.ClientData) -> fm.OwnNoise | None:
        if self.dp == "none" or self.remarks(data.world):
            return None
        settings = f"dp={self.dp}: norm {self.clip}, noise {self.noise}"
        if self.dp == "output":
            # Rounds without an upload show nothing, so they spend nothing.
            uploads = sum(self.guides(round) for round in range(self.rounds))
            return fm.OwnNoise(settings, self.noise, 2 * self.clip, uploads, "uploads", self.delta)
        # Of the client with the most samples, because the claim has to hold for everybody.
        batches = self.batches(data)
        steps, counted = self.rounds * self.epochs * batches, f"steps (batches an epoch: {batches} at most)"
        return fm.OwnNoise(settings, self.noise, 2 * self.clip, steps, counted, self.delta, self._limits(batches))

    def _limits(self, batches: int) -> str:
        """Of noised steps: with fewer batches a table carries less noise, which shows how many there were."""
        apart = self.update_sensitivity(batches)
        return f"against other data of as many batches; uploads of two such data sets differ by at most {apart:.4g}"

    def batches(self, data: fm.ClientData) -> int:
        """Of the client with the most samples, in an epoch."""
        samples = int(data.positives.max(initial=0)) * (data.negatives + (self.loss == "bce"))
        return -(-samples // self.batch)

    def update_sensitivity(self, batches: int = 1) -> float:
        """How far two data sets can drive a table apart between guidance rounds, with clipped gradients (10 to 14)."""
        item = self.trainer.rates["item"]
        return 2 * item * self.interval * self.epochs * batches * self.clip
