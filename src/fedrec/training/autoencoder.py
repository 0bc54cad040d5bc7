"""The autoencoder of FedDAE for many clients at once: two encoders, a gate that mixes them, a decoder.

Weights come by name, common to all clients or one per client. Of the first layers of encoders and gate, which read a
user's row, only the rows of the user's items are at hand: those of all clients one after another (`Inputs`).
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from math import prod

import numpy as np
import torch
from torch import Tensor

from fedrec.federation.clients import Chunk, Histories
from fedrec.federation.contract import Tensors, World, replicate
from fedrec.random import Purpose, fold_tensor, normal, uniform
from fedrec.training.initial import fan_in_uniform, initial_key

OWN, SHARED, GATE, DECODER = "own.", "shared.", "gate.", "decoder."
PARTS = (OWN, SHARED, GATE, DECODER)  # each with its own stream of initial values
SITES = {OWN: 0, SHARED: 1, GATE: 2}  # streams of dropout and noise
ROWS = "weight0"  # of encoders and gate: what a client trains of it are the rows of its items
ROWED = (OWN + ROWS, SHARED + ROWS, GATE + ROWS)


@dataclass(frozen=True)
class Autoencoder:
    dim: int  # of z, and hidden units of the gate
    layers: int  # of encoders and decoder
    dropout: float

    def shapes(self, part: str, items: int) -> dict[str, tuple[int, ...]]:
        """Weights [in, out] and biases: encoders m - 3d - 2d - 2d (mean, variance), decoder d - 2d - 3d - m."""
        hidden = [self.dim * k for k in range(self.layers, 1, -1)]
        sizes = {
            OWN: [items, *hidden, 2 * self.dim],
            SHARED: [items, *hidden, 2 * self.dim],
            GATE: [items, self.dim, 2],
            DECODER: [self.dim, *hidden[::-1], items],
        }[part]
        shapes: dict[str, tuple[int, ...]] = {}
        for layer, (fan_in, out) in enumerate(pairwise(sizes)):
            shapes |= {f"weight{layer}": (fan_in, out), f"bias{layer}": (out,)}
        return shapes

    def initial(self, world: World, part: str) -> Tensors:
        """Uniform within 1 / sqrt(fan-in)."""
        key, shapes = initial_key(world, PARTS.index(part)), self.shapes(part, world.items)
        return {part + name: value for name, value in fan_in_uniform(world, key, shapes, axis=0).items()}

    def entries(self, *parts: str, items: int) -> int:
        """Numbers in these parts."""
        return sum(prod(shape) for part in parts for shape in self.shapes(part, items).values())

    def loss(self, weights: Tensors, view: Inputs, beta: float, when: tuple[int, int]) -> Tensor:
        """Of every client."""
        gate = self._gate(weights, view, when)
        (mu_own, log_own), (mu_shared, log_shared) = (self._encode(weights, part, view, when) for part in (OWN, SHARED))
        z_own = mu_own + (log_own / 2).exp() * view.noise(OWN, when, self.dim)
        z_shared = mu_shared + (log_shared / 2).exp() * view.noise(SHARED, when, self.dim)
        scores = self._decode(weights, gate[:, :1] * z_own + gate[:, 1:] * z_shared).log_softmax(1)
        loss = -view.sum_by_client(scores[view.owner, view.item, None]).squeeze(1)
        if beta == 0:
            return loss
        mean = gate[:, :1] * mu_own + gate[:, 1:] * mu_shared
        variance = gate[:, :1].square() * log_own.exp() + gate[:, 1:].square() * log_shared.exp()
        return loss - beta / 2 * (1 + variance.log() - mean.square() - variance).sum(1)

    def _encode(self, weights: Tensors, part: str, view: Inputs, when: tuple[int, int] | None) -> tuple[Tensor, Tensor]:
        """Mean and logarithm of the variance; `when` (round, epoch) is None at inference, without dropout."""
        value = (
            view.value
            if when is None
            else view.value * view.dropout_factors(part, when, view.owner, view.item, self.dropout)
        )
        hidden = view.first(weights, part, value)
        for layer in range(1, self.layers):
            hidden = _layer(weights, part, layer, hidden.tanh())
        mean, log_variance = hidden.split(self.dim, 1)
        return mean, log_variance

    def _gate(self, weights: Tensors, view: Inputs, when: tuple[int, int] | None) -> Tensor:
        hidden = view.first(weights, GATE, torch.ones_like(view.value)).relu()
        if when is not None:
            clients, units = torch.arange(len(hidden))[:, None], torch.arange(hidden.shape[1])[None]
            place = (clients.to(hidden.device), units.to(hidden.device))
            hidden = hidden * view.dropout_factors(GATE, when, *place, self.dropout)
        return _layer(weights, GATE, 1, hidden).softmax(1)

    def _decode(self, weights: Tensors, z: Tensor) -> Tensor:
        hidden = _layer(weights, DECODER, 0, z)
        for layer in range(1, self.layers):
            hidden = _layer(weights, DECODER, layer, hidden.tanh())
        return hidden

    def scores(self, weights: Tensors, view: Inputs) -> Tensor:
        """Of all items, with the means and without dropout."""
        gate = self._gate(weights, view, None)
        own, shared = (self._encode(weights, part, view, None)[0] for part in (OWN, SHARED))
        return self._decode(weights, gate[:, :1] * own + gate[:, 1:] * shared)

    # -- own parts, of which only the rows of a client's items are kept --

    def find_slopes(self, leaves: Tensors) -> Tensors:
        """Return the gradients that have piled up."""
        return {name: find_slope(leaf) for name, leaf in leaves.items()}

    def own_names(self) -> tuple[str, ...]:
        return tuple(part + name for part in (OWN, GATE) for name in self.shapes(part, 1))

    def _initial_own(self, world: World) -> Tensors:
        return self.initial(world, OWN) | self.initial(world, GATE)

    def keep_own(self, chunk: Chunk, half: bool) -> Tensors:
        """Return every client's own weights as they are kept: rows of its items in as many places as anybody needs."""
        kept, clients, width = {}, len(chunk.clients), chunk.data.longest
        for name, value in self._initial_own(chunk.world).items():
            dtype = torch.bfloat16 if half else value.dtype
            if name.endswith(ROWS):
                kept[name] = torch.zeros(clients, width, value.shape[1], dtype=dtype, device=value.device)
                kept[name][_mask_places(chunk, width)] = value[chunk.tensor(chunk.items)].to(dtype)
            else:
                kept |= replicate({name: value.to(dtype)}, clients)
        return kept

    def take_own(self, kept: Tensors, chunk: Chunk) -> Tensors:
        """Return copies to train: first layers as the rows of all their items, one client after another."""
        held = {}
        for name, value in kept.items():
            mine = value[_mask_places(chunk, value.shape[1])] if name.endswith(ROWS) else value
            held[name] = mine.to(chunk.world.dtype, copy=True)
        return held

    def write_own(self, own: Tensors, kept: Tensors, chunk: Chunk) -> None:
        """Write what was trained to where it is kept."""
        for name, value in own.items():
            place = _mask_places(chunk, kept[name].shape[1]) if name.endswith(ROWS) else slice(None)
            kept[name][place] = value.detach().to(kept[name].dtype)

    def extend_own(self, own: Tensors, chunk: Chunk) -> Tensors:
        """Return first layers in the rows of the histories to answer from; those of items never trained on are new."""
        if chunk.known is None:
            return own
        met, trained = (
            _keys(chunk, some) for some in (chunk.context, chunk.data.training_histories.take(chunk.places))
        )
        at, item = chunk.tensor(np.searchsorted(met, trained)), chunk.tensor(met % chunk.world.items)
        first = {
            name: value[item].index_copy(0, at, own[name])
            for name, value in self._initial_own(chunk.world).items()
            if name.endswith(ROWS) and name in own
        }
        return own | first


class Inputs:
    """The rows x_u of a chunk's clients, as (owner, item) of every one in them, and the draws that belong to them."""

    def __init__(self, chunk: Chunk) -> None:
        self.world, self.secret, self.count = chunk.world, chunk.secret, len(chunk.clients)
        self.client = chunk.tensor(chunk.clients)
        length = chunk.tensor(chunk.context.ptr).diff()  # each client has one user
        self.owner = torch.repeat_interleave(torch.arange(self.count, device=length.device), length)
        self.item = chunk.tensor(chunk.context.by_item())
        self.value = length.to(chunk.world.dtype).rsqrt()[self.owner]  # x / |x|

    def sum_by_client(self, rows: Tensor) -> Tensor:
        """One row per (owner, item) to one per client."""
        return rows.new_zeros(self.count, rows.shape[1]).index_add(0, self.owner, rows)

    def gather(self, weights: Tensors) -> Tensors:
        """The same, first layers as the rows of all clients' items."""
        first = {name: weights[name] for name in ROWED if name in weights}
        rows = {
            name: table[self.item] if table.dim() == 2 else table[self.owner, self.item]
            for name, table in first.items()
        }
        return weights | rows

    def first(self, weights: Tensors, part: str, value: Tensor) -> Tensor:
        """The first layer on an input with these entries."""
        return self.sum_by_client(weights[part + ROWS] * value[:, None]) + weights[part + "bias0"]

    def dropout_factors(
        self, part: str, when: tuple[int, int], owner: Tensor, position: Tensor, dropout: float
    ) -> Tensor:
        """0 where dropout strikes, else the factor that keeps the expectation."""
        key = fold_tensor(self.secret.stream(Purpose.DROPOUT, *when, SITES[part]), self.client)
        draws = uniform(fold_tensor(key[owner], position), self.world.dtype)
        return (draws >= dropout).to(self.world.dtype) / (1 - dropout)

    def noise(self, part: str, when: tuple[int, int], width: int) -> Tensor:
        key = fold_tensor(self.secret.stream(Purpose.NOISE, *when, SITES[part]), self.client)
        return normal(key[:, None], torch.arange(width, device=key.device)[None], self.world.dtype)


def _layer(weights: Tensors, part: str, layer: int, hidden: Tensor) -> Tensor:
    """x W + b, with weights common to all clients or one per client."""
    weight, bias = weights[f"{part}weight{layer}"], weights[f"{part}bias{layer}"]
    through = hidden @ weight if weight.dim() == 2 else torch.bmm(hidden.unsqueeze(1), weight).squeeze(1)
    return through + bias


def find_slope(leaf: Tensor) -> Tensor:
    """Return the gradient that has piled up, zero where there is none."""
    return torch.zeros_like(leaf) if leaf.grad is None else leaf.grad


def _keys(chunk: Chunk, history: Histories) -> np.ndarray:
    """Every (client, item) of some histories as one number, ascending."""
    owner = np.repeat(np.arange(len(chunk.clients)), np.diff(history.ptr))
    return np.asarray(owner * chunk.world.items + history.by_item())


def _mask_places(chunk: Chunk, width: int) -> Tensor:
    """Which of `width` places per client hold a row."""
    length = chunk.tensor(chunk.positives)
    return torch.arange(width, device=length.device)[None] < length[:, None]
