"""Networks that learn, centralised, to make a new item's vector out of attributes, on factors trained beforehand.

The first round begins with `pretrain_epochs` epochs of matrix factorisation (pairwise loss, Adam), whose user and item
vectors then stay as they are. One round is one epoch of the network. Its weights, what its batch norms have seen and
what its optimiser remembers live at the server, which knows how wide attributes are. All items are scored from
attributes alone, those of training too.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from fedrec import method as fm
from fedrec.methods.cold.networks import Network
from fedrec.training.silo_training import SiloTrainer, own_models

GIVEN = ("attributes", "warm")  # of the server: never trained


@dataclass(frozen=True)
class Pretrained(fm.Method):
    """Does what the contract asks for, around a `network` that the method has."""

    dim: fm.Count = 200
    pretrain_epochs: int = 50
    """Epochs of the matrix factorisation whose factors are learned from."""
    pretrain_lr: fm.Positive = 0.005
    """Learning rate of that factorisation."""
    pretrain_decay: float = 0.001
    """Weight decay there, of the vectors of a triple."""
    lr: fm.Positive = 0.001
    batch: fm.Count = 1024

    @property
    def disclosure(self) -> fm.Disclosure:
        return fm.Disclosure(attributes="server")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.batch < 2:
            raise fm.FedrecError(
                f"batch={self.batch} does not fit {self.info.name}: a batch norm needs at least 2 samples"
            )

    @cached_property
    def network(self) -> Network:
        raise NotImplementedError(f"{type(self).__name__} has no network")

    @cached_property
    def factorisation(self) -> SiloTrainer:
        return SiloTrainer(fm.MF(self.dim), "bpr", self.pretrain_lr, self.pretrain_decay, batch=4096, resample=True)

    def init_server(self, world: fm.World, attributes: Tensor | None = None) -> fm.Tensors:
        x, network = self.require_attributes(attributes), self.network
        w = fm.draw_layers(world, "network", network.layers(x.shape[1]))
        one, zero = (torch.full((self.dim,), float(v), dtype=world.dtype, device=world.device) for v in (1, 0))
        for norm in network.norms:
            w |= {norm + ".scale": one, norm + ".shift": zero}
        remembered = {mark + name: torch.zeros_like(value) for name, value in w.items() for mark in network.memory}
        for norm in network.norms:
            w |= {norm + ".mean": zero, norm + ".variance": one}
        return {"attributes": x, "warm": torch.tensor(world.items), **w, **remembered}

    def init_clients(self, world: fm.World, chunk: fm.Chunk) -> fm.State:
        start = self._start_factors(world, chunk)
        return fm.State({"item": start.per_client["item"]}, {"user": start.per_user["user"]})

    def _start_factors(self, world: fm.World, chunk: fm.Chunk) -> fm.State:
        """Draw where the factorisation starts."""
        return self.factorisation.start(world, chunk, own_models(self.factorisation, world, chunk.clients))

    def broadcast(self, server: fm.Tensors, clients: np.ndarray, round: int) -> fm.Down:
        return fm.Down(shared=server | {"attributes": server["attributes"][: int(server["warm"])]})

    def local(self, state: fm.State, down: fm.Down, chunk: fm.Chunk, round: int) -> tuple[fm.State, fm.Uploads]:
        if round == 0:
            state = self.pretrain(chunk)
        # Copies, because an epoch trains in place what the server still has.
        w = {name: value.clone() for name, value in down.shared.items() if name not in GIVEN}
        user, item = state.per_user["user"], state.per_client["item"][0]
        self.network.epoch(chunk, round, w, user, item, down.shared["attributes"])
        return state, {name: fm.Mean(value.unsqueeze(0)) for name, value in w.items()}

    def pretrain(self, chunk: fm.Chunk) -> fm.State:
        """Train the factors; return them as the network sees them."""
        state = self._start_factors(chunk.world, chunk)
        for epoch in range(self.pretrain_epochs):
            state = self.factorisation.train(state, chunk, epoch)
        user, item = self.network.prepare(state.per_user["user"], state.per_client["item"][0])
        return fm.State({"item": item.unsqueeze(0)}, {"user": user})

    def aggregate(self, server: fm.Tensors, ups: fm.Ups, round: int) -> fm.Tensors:
        return server | {name: ups[name] for name in server if name in ups}

    def offer(self, server: fm.Tensors, clients: np.ndarray, round: int, items: Tensor) -> fm.Down:
        return fm.Down(shared=server | {"attributes": server["attributes"][items]})

    def score(self, state: fm.State, down: fm.Down, chunk: fm.Chunk, items: Tensor) -> Tensor:
        # each distinct row is scored once: equal items must tie to the last bit, wherever they stand
        distinct, which = torch.unique(down.shared["attributes"], dim=0, return_inverse=True)
        user, item = self.network.vectors(down.shared, state.per_user["user"], distinct)
        return (user @ item.T)[:, which]

    def footprint(self, world: fm.World) -> fm.Footprint:
        client = 4096 + 8 * world.items * self.dim * world.dtype.itemsize
        return replace(super().footprint(world), client=client, sample=200)
