"""FedDAE: an autoencoder of a user's row with two encoders, one of its own and one for all, mixed by a gate.

Li et al., "Personalized Federated Collaborative Filtering: A Variational AutoEncoder Approach" (AAAI 2025). The input
x_u is the binary row of a user's training items. Either encoder takes x / |x| to a mean and a variance; the gate turns
x into two weights, and z = w_1 z_own + w_2 z_shared goes through the decoder. The loss of a client is

    - sum_i x_i log softmax(decoder(z))_i + beta_t * KL(N(mu, sigma^2) || N(0, 1))

with mu = w_1 mu_own + w_2 mu_shared and sigma^2 = w_1^2 sigma_own^2 + w_2^2 sigma_shared^2. Clients train their encoder
and gate, and send the gradient of the shared encoder and the decoder; the server steps along its mean.

The input never changes outside a user's items, so the first layers of its own encoder and gate are held only in the
rows of these items: no other row has an influence on anything.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, ClassVar

import numpy as np
import torch
from torch import Tensor

from fedrec import method as fm
from fedrec.training.autoencoder import DECODER, GATE, OWN, SHARED, Autoencoder, Inputs
from fedrec.training.optimisers import fused_adam

FIRST, SECOND, STEPS = "first.", "second.", "steps"  # of the server's Adam; it is not sent
GRADIENT = "gradient."


@dataclass(frozen=True)
class FedDAE(fm.Method):
    info: ClassVar[fm.MethodInfo] = fm.MethodInfo(
        name="feddae",
        summary="variational autoencoder: personal and shared encoder mixed by a gate, shared decoder",
        paper="Li et al., AAAI 2025",
    )

    dim: fm.Count = 256
    """Width of the latent vector, and hidden units of the gate."""
    layers: Annotated[int, "[2, 2147483648]"] = 3
    """Layers of encoders and decoder; hidden ones are 3 and 2 times dim wide (with 2 layers: 2 times)."""
    lr: float = 1e-3
    """Learning rate of the clients' Adam, which starts afresh every round."""
    lr_server: float = 1e-3  # of the server's
    weight_decay: float = 1e-8
    """Weight decay of what clients train."""
    epochs: fm.Count = 5
    """Local steps on a client's one row in a round."""
    dropout: Annotated[float, "[0, 1)"] = 0.5
    """Share of a client's items that training hides from the encoders."""
    beta: float = 1.0
    """Weight of the KL term once it is annealed."""
    anneal_cap: Annotated[float, "[0, 1]"] = 1.0
    """The KL term's weight grows as min(this, tanh(round / 10))."""
    loss_stop: float = 0.0
    """The run ends when a round changes the mean loss by less than this share; 0: never."""
    half: bool = False
    """Whether clients' own parts are kept in bfloat16 between rounds, for half the memory."""

    @property
    def disclosure(self) -> fm.Disclosure:
        return fm.Disclosure(private=self.network.own_names())

    @property
    def sent(self) -> tuple[str, ...]:
        """The parts that the server trains."""
        return (SHARED, DECODER)

    def strength(self, round: int) -> float:
        """beta_t of the KL term."""
        # From 0: at full weight at once, the KL term would empty the code before the decoder reads it.
        return self.beta * min(self.anneal_cap, math.tanh(round / 10))

    @cached_property
    def network(self) -> Autoencoder:
        return Autoencoder(self.dim, self.layers, self.dropout)

    # -- start --

    def init_server(self, world: fm.World, attributes: Tensor | None = None) -> fm.Tensors:
        sent = {name: value for part in self.sent for name, value in self.network.initial(world, part).items()}
        moments = {mark + name: torch.zeros_like(value) for mark in (FIRST, SECOND) for name, value in sent.items()}
        return sent | moments | {STEPS: torch.zeros((), dtype=torch.float64)}

    def init_clients(self, world: fm.World, chunk: fm.Chunk) -> fm.State:
        if not chunk.data.single:
            raise fm.FedrecError(
                "feddae learns from one row per client: it needs one user per client; leave --silos out"
            )
        return fm.State(self.network.keep_own(chunk, self.half))

    # -- one round --

    def broadcast(self, server: fm.Tensors, clients: np.ndarray, round: int) -> fm.Down:
        return fm.Down(shared={name: value for name, value in server.items() if name.startswith(self.sent)})

    def local(self, state: fm.State, down: fm.Down, chunk: fm.Chunk, round: int) -> tuple[fm.State, fm.Uploads]:
        payload: fm.Uploads = {}
        for name, value in self.find_gradients(state, down.shared, chunk, round).items():
            # A gradient is measured from zero, and zeros that are expanded take no room.
            base = value.new_zeros(()).expand(value.shape)
            summed = fm.PartialSum(base, value.double(), len(chunk.clients)) if chunk.foldable else value
            payload[GRADIENT + name] = fm.Mean(summed)
        return state, payload

    def take_own(self, state: fm.State, chunk: fm.Chunk) -> fm.Tensors:
        """Return copies of what clients train alone."""
        return self.network.take_own(state.per_client, chunk)

    def find_gradients(self, state: fm.State, sent: fm.Tensors, chunk: fm.Chunk, round: int) -> fm.Tensors:
        """Train own encoder and gate by Adam, in place; return the gradients of what is sent, summed over epochs."""
        own = self.take_own(state, chunk)
        # Where only sums leave, one leaf for all collects the sum by itself; a leaf per client would be a model each.
        common = sent if chunk.foldable else fm.replicate(sent, len(chunk.clients))
        fixed = {name: value.detach().requires_grad_() for name, value in common.items()}
        for _ in self.descend(own, fixed, chunk, round):
            for value in own.values():
                value.grad = None  # those of `fixed` go on adding up: that is their sum
        self.network.write_own(own, state.per_client, chunk)
        return self.network.find_slopes(fixed)

    def descend(self, moving: fm.Tensors, fixed: fm.Tensors, chunk: fm.Chunk, round: int) -> Iterator[None]:
        """A step of Adam on what moves, by the loss with what is fixed, once for each turn of the caller's loop."""
        view, beta = Inputs(chunk), self.strength(round)
        leaves = [value.requires_grad_() for value in moving.values()]
        steps = fused_adam(leaves, self.lr, self.weight_decay)
        for epoch in range(self.epochs):
            loss = self.network.loss(moving | view.gather(fixed), view, beta, (round, epoch))
            loss.sum().backward()
            chunk.observe("loss", float(loss.detach().sum()), len(loss))
            steps.step()
            yield

    def aggregate(self, server: fm.Tensors, ups: fm.Ups, round: int) -> fm.Tensors:
        """Adam on the mean gradient."""
        if not len(ups.clients):
            return server
        # Copies, because Adam works in place and the former state may still be needed.
        new = {name: value.clone() for name, value in server.items()}
        new[STEPS] += 1
        for name in [name for name in server if GRADIENT + name in ups]:
            moments = new[FIRST + name], new[SECOND + name]
            new[name] -= fm.adam_step(ups[GRADIENT + name], *moments, int(new[STEPS]), self.lr_server)
        return new

    def score(self, state: fm.State, down: fm.Down, chunk: fm.Chunk, items: Tensor) -> Tensor:
        view, own = Inputs(chunk), self.take_own(state, chunk)
        weights = self.network.extend_own(own, chunk) | view.gather(down.shared)
        return self.network.scores(weights, view)[:, items]

    def footprint(self, world: fm.World) -> fm.Footprint:
        size, own = world.dtype.itemsize, self.network.entries(OWN, GATE, items=0)
        # own weights, gradient, two moments; what is sent, and its gradient, per client where stages act on it
        client = 6 * own + 2 * self.network.entries(SHARED, DECODER, items=world.items)
        rows = world.items // 4 * (self.layers + 1) * self.dim
        return fm.Footprint(
            client=4096 + client * size,
            # counted for each of five samples per item: there are only items
            sample=2 * (self.layers + 1) * self.dim * size,
            score=super().footprint(world).score + (own + rows) * size,
        )
