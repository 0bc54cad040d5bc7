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
from typing import Annotated, ClassVar, Literal

import numpy as np
import torch
from torch import Tensor

from fedrec.errors import FedrecError
from fedrec.federation.clients import Chunk, Histories
from fedrec.federation.contract import (
    Disclosure,
    Down,
    Footprint,
    Mean,
    Method,
    MethodInfo,
    PartialSum,
    Reduction,
    State,
    Tensors,
    Ups,
    World,
    replicate,
)
from fedrec.federation.ranges import MOST, Count, Interval
from fedrec.federation.settings_files import settings_beside
from fedrec.methods.personal.autoencoder import DECODER, GATE, OWN, PARTS, ROWED, ROWS, SHARED, Autoencoder, Inputs
from fedrec.training.optimisers import adam_step, fused_adam

FIRST, SECOND, STEPS = "first.", "second.", "steps"  # of the server's Adam; it is not sent
GRADIENT = "gradient."


@dataclass(frozen=True)
class FedDAE(Method):
    info: ClassVar[MethodInfo] = MethodInfo(
        name="feddae",
        summary="variational autoencoder: personal and shared encoder mixed by a gate, shared decoder",
        paper="Li et al., AAAI 2025",
        **settings_beside(__file__),
    )

    dim: Count = 256
    """Width of the latent vector, and hidden units of the gate."""
    layers: Annotated[int, Interval(f"[2, {MOST}]")] = 3
    """Layers of encoders and decoder; hidden ones are 3 and 2 times dim wide (with 2 layers: 2 times)."""
    lr: float = 1e-3
    """Learning rate of the clients' Adam, which starts afresh every round."""
    lr_server: float = 1e-3  # of the server's
    weight_decay: float = 1e-8
    """Weight decay of what clients train."""
    epochs: Count = 5
    """Local steps on a client's one row in a round."""
    dropout: Annotated[float, Interval("[0, 1)")] = 0.5
    """Share of a client's items that training hides from the encoders."""
    beta: float = 1.0
    """Weight of the KL term once it is annealed."""
    anneal_cap: Annotated[float, Interval("[0, 1]")] = 1.0
    """The KL term's weight grows as min(this, tanh(round / 10))."""
    # released: nothing is a client's own. All load the server's own encoder, which it trains like the shared one, and
    # start from the first gate; they step on everything between epochs, gradients pile up over the epochs, and beta is
    # there in the first round only.
    variant: Literal["paper", "released"] = "paper"
    """Equations as printed in the paper, or as in the released code."""
    loss_stop: float = 0.0
    """The run ends when a round changes the mean loss by less than this share; 0: never."""
    half: bool = False
    """Whether clients' own parts are kept in bfloat16 between rounds, for half the memory."""

    @property
    def disclosure(self) -> Disclosure:
        if self.variant == "released":
            return Disclosure()
        return Disclosure(private=tuple(part + name for part in (OWN, GATE) for name in self.network.shapes(part, 1)))

    def sent(self) -> tuple[str, ...]:
        """The parts that the server trains."""
        return (OWN, SHARED, DECODER) if self.variant == "released" else (SHARED, DECODER)

    def strength(self, round: int) -> float:
        """beta_t of the KL term."""
        if self.variant == "released":
            return self.beta if round == 0 else 0.0
        return self.beta * min(self.anneal_cap, math.tanh(round / 10))

    @cached_property
    def network(self) -> Autoencoder:
        return Autoencoder(self.dim, self.layers, self.dropout)

    # -- start --

    def init_server(self, world: World, attributes: Tensor | None = None) -> Tensors:
        sent = {name: value for part in self.sent() for name, value in self.network.initial(world, part).items()}
        moments = {mark + name: torch.zeros_like(value) for mark in (FIRST, SECOND) for name, value in sent.items()}
        return sent | moments | {STEPS: torch.zeros((), dtype=torch.float64)}

    def init_clients(self, world: World, chunk: Chunk) -> State:
        if not chunk.data.single:
            raise FedrecError("feddae learns from one row per client: it needs one user per client; leave --silos out")
        if self.variant == "released":
            return State()
        kept, clients = {}, len(chunk.clients)
        width = chunk.data.longest  # rows of the client with most items
        for name, value in (self.network.initial(world, OWN) | self.network.initial(world, GATE)).items():
            dtype = torch.bfloat16 if self.half else value.dtype
            if name.endswith(ROWS):
                kept[name] = torch.zeros(clients, width, value.shape[1], dtype=dtype, device=value.device)
                kept[name][_filled(chunk, width)] = value[chunk.tensor(chunk.items)].to(dtype)
            else:
                kept |= replicate({name: value.to(dtype)}, clients)
        return State(kept)

    # -- one round --

    def broadcast(self, server: Tensors, clients: np.ndarray, round: int) -> Down:
        return Down(shared={name: value for name, value in server.items() if name.startswith(self.sent())})

    def local(self, state: State, down: Down, chunk: Chunk, round: int) -> tuple[State, dict[str, Reduction]]:
        train = self._train_all if self.variant == "released" else self._train_own
        payload: dict[str, Reduction] = {}
        for name, value in train(state, down.shared, chunk, round).items():
            base = value.new_zeros(()).expand(value.shape)
            summed = PartialSum(base, value.double(), len(chunk.clients)) if chunk.foldable else value
            payload[GRADIENT + name] = Mean(summed)
        return state, payload

    def _own(self, state: State, chunk: Chunk) -> Tensors:
        """What clients train alone: first layers as the rows of all their items, one client after another."""
        if self.variant == "released":
            return _rows_and_copies(self.network.initial(chunk.world, GATE), chunk)
        held = {}
        for name, value in state.per_client.items():
            mine = value[_filled(chunk, value.shape[1])] if name.endswith(ROWS) else value
            held[name] = mine.to(chunk.world.dtype, copy=True)
        return held

    def _train_own(self, state: State, sent: Tensors, chunk: Chunk, round: int) -> Tensors:
        """Adam on own encoder and gate, in place; returns the gradients of what is sent, summed over epochs."""
        own = self._own(state, chunk)
        common = sent if chunk.foldable else replicate(sent, len(chunk.clients))
        fixed = {name: value.detach().requires_grad_() for name, value in common.items()}
        for _ in self._epochs(own, fixed, chunk, round):
            for value in own.values():
                value.grad = None  # those of `fixed` go on adding up: that is their sum
        for name, value in own.items():
            kept = state.per_client[name]
            kept[_filled(chunk, kept.shape[1]) if name.endswith(ROWS) else slice(None)] = value.detach().to(kept.dtype)
        return {name: _slope(leaf) for name, leaf in fixed.items()}

    def _train_all(self, state: State, sent: Tensors, chunk: Chunk, round: int) -> Tensors:
        """Adam on copies of everything, gradients never cleared; returns their sum over epochs, sums of sums."""
        copies = _rows_and_copies(sent, chunk)
        total: Tensors = {}
        for _ in self._epochs(self._own(state, chunk) | copies, {}, chunk, round):
            total = {name: total.get(name, 0) + _slope(leaf) for name, leaf in copies.items()}
        whole = {name: _whole(value, sent[name], chunk) if name in ROWED else value for name, value in total.items()}
        return {name: value.sum(0) for name, value in whole.items()} if chunk.foldable else whole

    def _epochs(self, moving: Tensors, fixed: Tensors, chunk: Chunk, round: int) -> Iterator[None]:
        """A step of Adam on what moves, by the loss with what is fixed, once for each turn of the caller's loop."""
        view, beta = Inputs(chunk), self.strength(round)
        leaves = [value.requires_grad_() for value in moving.values()]
        steps = fused_adam(leaves, self.lr, self.weight_decay)
        for epoch in range(self.epochs):
            loss = self.network.loss(moving | view.gathered(fixed), view, beta, (round, epoch))
            loss.sum().backward()
            chunk.observe("loss", float(loss.detach().sum()), len(loss))
            steps.step()
            yield

    def aggregate(self, server: Tensors, ups: Ups, round: int) -> Tensors:
        """Adam on the mean gradient."""
        if not len(ups.clients):
            return server
        new = {name: value.clone() for name, value in server.items()}
        new[STEPS] += 1
        for name in [name for name in server if GRADIENT + name in ups]:
            moments = new[FIRST + name], new[SECOND + name]
            new[name] -= adam_step(ups[GRADIENT + name], *moments, int(new[STEPS]), self.lr_server)
        return new

    def score(self, state: State, down: Down, chunk: Chunk, items: Tensor) -> Tensor:
        view = Inputs(chunk)
        weights = self._in_context(self._own(state, chunk), chunk) | view.gathered(down.shared)
        return self.network.scores(weights, view)[:, items]

    def _in_context(self, own: Tensors, chunk: Chunk) -> Tensors:
        """First layers in the rows of the histories to answer from: those of items never trained on are initial."""
        if chunk.known is None:
            return own
        met, trained = (
            _keys(chunk, some) for some in (chunk.context, chunk.data.training_histories.take(chunk.places))
        )
        at, item = chunk.tensor(np.searchsorted(met, trained)), chunk.tensor(met % chunk.world.items)
        first = {}
        for name, value in (self.network.initial(chunk.world, OWN) | self.network.initial(chunk.world, GATE)).items():
            if name.endswith(ROWS) and name in own:
                first[name] = value[item].index_copy(0, at, own[name])
        return own | first

    def footprint(self, world: World) -> Footprint:
        size, own = world.dtype.itemsize, self.network.entries(OWN, GATE, items=0)
        # own weights, gradient, two moments; what is sent, and its gradient, per client where stages act on it
        if self.variant == "released":
            client = 6 * self.network.entries(*PARTS, items=world.items)
        else:
            client = 6 * own + 2 * self.network.entries(SHARED, DECODER, items=world.items)
        rows = world.items // 4 * (self.layers + 1) * self.dim
        return Footprint(
            client=4096 + client * size,
            # counted for each of five samples per item: there are only items
            sample=2 * (self.layers + 1) * self.dim * size,
            score=super().footprint(world).score + (own + rows) * size,
        )


def _keys(chunk: Chunk, history: Histories) -> np.ndarray:
    """Every (client, item) of some histories as one number, ascending."""
    owner = np.repeat(np.arange(len(chunk.clients)), np.diff(history.ptr))
    return np.asarray(owner * chunk.world.items + history.by_item())


def _rows_and_copies(common: Tensors, chunk: Chunk) -> Tensors:
    """What every client trains of common weights: the rows of its items, one client after another, and copies."""
    items = chunk.tensor(chunk.items)
    first = {name: value[items] for name, value in common.items() if name in ROWED}
    return first | replicate({name: value for name, value in common.items() if name not in first}, len(chunk.clients))


def _whole(rows: Tensor, like: Tensor, chunk: Chunk) -> Tensor:
    """[1, items, d] the sum of all clients' rows, or [clients, items, d] where each is sent by itself."""
    items = chunk.tensor(chunk.items)
    if chunk.foldable:
        return torch.zeros_like(like).index_add(0, items, rows).unsqueeze(0)
    table = like.new_zeros(len(chunk.clients), *like.shape)
    table[torch.repeat_interleave(chunk.tensor(chunk.positives)), items] = rows
    return table


def _slope(leaf: Tensor) -> Tensor:
    return torch.zeros_like(leaf) if leaf.grad is None else leaf.grad


def _filled(chunk: Chunk, width: int) -> Tensor:
    """Which of `width` places per client hold a row."""
    length = chunk.tensor(chunk.positives)
    return torch.arange(width, device=length.device)[None] < length[:, None]
