"""Networks that learn, in one place, to make a new item's vector out of attributes, on factors trained beforehand.

The first round begins with `pretrain_epochs` epochs of matrix factorisation (pairwise loss, Adam), whose user and item
vectors then stay as they are. One round is one epoch of the network. Its weights, what its batch norms have seen and
what its optimiser remembers live at the server, which knows how wide attributes are. All items are scored from
attributes alone, those of training too.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from fedrec.errors import FedrecError
from fedrec.federation.clients import Chunk
from fedrec.federation.contract import Disclosure, Down, Footprint, Mean, Method, Reduction, State, Tensors, Ups, World
from fedrec.federation.ranges import Count, Positive
from fedrec.methods.cold.content import require_attributes, scored_once, with_attributes
from fedrec.methods.silo.silo import SiloLocal
from fedrec.random import Purpose, fold_tensor, permute, signed, stream, uniform
from fedrec.training.initial import DENSE, fan_in_uniform, initial_key

SEEN = (".mean", ".variance")  # of a batch norm: running figures, not trained
GIVEN = ("attributes", "warm")  # of the server: never trained


def batch_norm(x: Tensor, w: Tensors, name: str, training: bool, remember: bool = True) -> Tensor:
    """By the batch in training, which moves the running figures a tenth of the way; else by these."""
    seen = [w[name + ending] for ending in SEEN] if remember or not training else [None, None]
    return F.batch_norm(x, seen[0], seen[1], w[name + ".scale"], w[name + ".shift"], training, 0.1)


def affine(x: Tensor, w: Tensors, name: str) -> Tensor:
    return F.linear(x, w[name], w[name + "_bias"])


def dropped(x: Tensor, part: float, key: int) -> Tensor:
    """A part of the entries gone, the others larger by as much."""
    draws = uniform(fold_tensor(key, torch.arange(x.numel(), device=x.device)), x.dtype).reshape(x.shape)
    return x * (draws >= part) / (1 - part)


@dataclass(frozen=True)
class Pretrained(Method):
    centralised: ClassVar[bool] = True
    memory: ClassVar[tuple[str, ...]] = ()  # what the optimiser remembers of every weight

    dim: Count = 200
    pretrain_epochs: int = 50
    pretrain_lr: Positive = 0.005
    pretrain_decay: float = 0.001  # of the vectors in a triple
    lr: Positive = 0.001
    batch: Count = 1024

    @property
    def disclosure(self) -> Disclosure:
        return Disclosure(attributes="server")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.batch < 2:
            raise FedrecError(
                f"batch={self.batch} does not fit {self.info.name}: a batch norm needs at least 2 samples"
            )

    # -- what a network says of itself --

    def layers(self, width: int) -> dict[str, tuple[int, ...]]:
        """Its weights, each with the bias that follows, for attributes of this width."""
        raise NotImplementedError

    def norms(self) -> tuple[str, ...]:
        """Its batch norms, all of `dim` columns."""
        raise NotImplementedError

    def given(self, user: Tensor, item: Tensor) -> tuple[Tensor, Tensor]:
        """The factors as the network sees them."""
        return user, item

    def epoch(self, chunk: Chunk, round: int, w: Tensors, user: Tensor, item: Tensor, attributes: Tensor) -> None:
        """One epoch, in place."""
        raise NotImplementedError

    def vectors(self, w: Tensors, user: Tensor, attributes: Tensor) -> tuple[Tensor, Tensor]:
        """What users and items with these attributes are scored by: an inner product."""
        raise NotImplementedError

    # -- the parts of the contract --

    def factorisation(self) -> SiloLocal:
        return SiloLocal(backbone="mf", dim=self.dim, loss="bpr", lr=self.pretrain_lr, resample=True, batch=4096,
                         weight_decay=self.pretrain_decay)  # fmt: skip

    def init_server(self, world: World, attributes: Tensor | None = None) -> Tensors:
        x = require_attributes(attributes, self.info.name)
        w = fan_in_uniform(world, initial_key(world, DENSE), self.layers(x.shape[1]))
        one, zero = (torch.full((self.dim,), float(v), dtype=world.dtype, device=world.device) for v in (1, 0))
        for norm in self.norms():
            w |= {norm + ".scale": one, norm + ".shift": zero}
        remembered = {mark + name: torch.zeros_like(value) for name, value in w.items() for mark in self.memory}
        for norm in self.norms():
            w |= {norm + ".mean": zero, norm + ".variance": one}
        return {"attributes": x, "warm": torch.tensor(world.items), **w, **remembered}

    def init_clients(self, world: World, chunk: Chunk) -> State:
        start = self.factorisation().init_clients(world, chunk)
        return State({"item": start.per_client["item"]}, {"user": start.per_user["user"]})

    def broadcast(self, server: Tensors, clients: np.ndarray, round: int) -> Down:
        return Down(shared=server | {"attributes": server["attributes"][: int(server["warm"])]})

    def local(self, state: State, down: Down, chunk: Chunk, round: int) -> tuple[State, dict[str, Reduction]]:
        if round == 0:
            state = self._pretrained(chunk)
        w = {name: value.clone() for name, value in down.shared.items() if name not in GIVEN}
        self.epoch(chunk, round, w, state.per_user["user"], state.per_client["item"][0], down.shared["attributes"])
        return state, {name: Mean(value.unsqueeze(0)) for name, value in w.items()}

    def _pretrained(self, chunk: Chunk) -> State:
        mf = self.factorisation()
        state = mf.init_clients(chunk.world, chunk)
        for epoch in range(self.pretrain_epochs):
            state, _ = mf.local(state, Down(), chunk, epoch)
        user, item = self.given(state.per_user["user"], state.per_client["item"][0])
        return State({"item": item.unsqueeze(0)}, {"user": user})

    def aggregate(self, server: Tensors, ups: Ups, round: int) -> Tensors:
        return server | {name: ups[name] for name in server if name in ups}

    def offer(self, server: Tensors, clients: np.ndarray, round: int, items: Tensor) -> Down:
        return Down(shared=server | {"attributes": server["attributes"][items]})

    def with_items(self, server: Tensors, attributes: Tensor) -> Tensors:
        return with_attributes(server, attributes)

    def score(self, state: State, down: Down, chunk: Chunk, items: Tensor) -> Tensor:
        distinct, which = scored_once(down.shared["attributes"])
        user, item = self.vectors(down.shared, state.per_user["user"], distinct)
        return (user @ item.T)[:, which]

    def footprint(self, world: World) -> Footprint:
        client = 4096 + 8 * world.items * self.dim * world.dtype.itemsize
        return replace(super().footprint(world), client=client, sample=200)

    # -- for subclasses --

    def trained(self, w: Tensors) -> Tensors:
        """The weights as leaves; what batch norms have seen and optimisers remember is left out."""
        names = [name for name in w if not name.endswith(SEEN) and not name.startswith(self.memory)]
        return {name: w[name].detach().requires_grad_() for name in names}

    def parts(self, chunk: Chunk, round: int, count: int) -> Iterator[Tensor]:
        """The samples of an epoch in random order, batch by batch; a last one alone has no variance and is left out."""
        device = chunk.world.device
        key = torch.tensor([signed(stream(chunk.world.seed, Purpose.ORDER, round))], device=device)
        place = torch.arange(count, device=device)
        order = permute(key, torch.tensor([count], device=device), place, torch.zeros_like(place))
        yield from (part for part in order.split(self.batch) if len(part) > 1)


def positives(chunk: Chunk) -> tuple[Tensor, Tensor]:
    """Users (places in the chunk) and items of all interactions."""
    users = torch.arange(len(chunk.places), device=chunk.world.device)
    return torch.repeat_interleave(users, chunk.tensor(chunk.user_ptr).diff()), chunk.tensor(chunk.items)
