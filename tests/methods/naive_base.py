"""What all naive references share: the draws of one client, torch's losses and steps, and results in the data's order.

Only the drawn samples and their order come from the library (`Samples`, tested on its own), and the initial values.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedrec.federation.clients import ClientData
from fedrec.federation.contract import participants
from fedrec.training.samples import Samples


class Batch(NamedTuple):
    """The samples of one step of one client, without padding."""

    user: Tensor
    """Which of the client's users."""
    item: Tensor
    label: Tensor
    """Of pointwise losses."""
    other: Tensor | None
    """The negatives of pairwise losses, whose `item` are the positives."""


class Draws:
    """What a client draws in a round."""

    def __init__(self, data: ClientData, number: int, round: int, batch: int, loss: str = "bce") -> None:
        self.samples = Samples(data.chunk(np.array([number])), round, loss, batch)

    def epoch(self, epoch: int = 0) -> Iterator[Batch]:
        for batch in self.samples.epoch(epoch):
            real, item = batch.valid[0], self.samples.item
            other = None if batch.neg is None else item[batch.neg[0][real]]
            yield Batch(batch.user[0][real], item[batch.pos[0][real]], batch.label[0][real], other)


def draws(method: Any, data: ClientData, number: int, round: int) -> Draws:
    """Those of a method that trains on samples."""
    return Draws(data, number, round, method.batch, method.loss)


def bce(logits: Tensor, label: Tensor, reduction: str = "mean", saturate: str = "none") -> Tensor:
    """Of logits; or, as published code has it, of a sigmoid in single precision."""
    if saturate == "released":
        return F.binary_cross_entropy(torch.sigmoid(logits.float()), label.float(), reduction=reduction)
    return F.binary_cross_entropy_with_logits(logits, label, reduction=reduction)


def bpr(positive: Tensor, negative: Tensor, reduction: str = "mean") -> Tensor:
    losses = -F.logsigmoid(positive - negative)
    return losses.mean() if reduction == "mean" else losses.sum()


def descend(loss: Tensor, module: nn.Module, *optimisers: torch.optim.Optimizer) -> None:
    """One step of these optimisers against a loss of the module."""
    module.zero_grad()
    loss.backward()
    for optimiser in optimisers:
        optimiser.step()


class Model(nn.Module):
    """A client's model with a whole item table and the weights of a network."""

    item: Tensor

    def dense(self) -> dict[str, Tensor]:
        """Copies of the weights, under the library's names."""
        raise NotImplementedError

    def lock(self) -> dict[str, Tensor]:
        """Its table and weights as they are now."""
        return {"item": self.item.detach().clone(), **self.dense()}


def linear(weight: Tensor, bias: Tensor) -> nn.Linear:
    """torch's layer with these values."""
    made = nn.Linear(weight.shape[1], weight.shape[0], dtype=weight.dtype)
    made.load_state_dict({"weight": weight, "bias": bias})
    return made


def taking_part(data: ClientData, round: int) -> list[int]:
    return participants(data.world, round, data.world.participation).tolist()


def users_of(data: ClientData) -> list[np.ndarray]:
    """The users of every client."""
    return [data.users[a:b] for a, b in pairwise(data.client_ptr)]


def by_index(data: ClientData, rows: Tensor | np.ndarray) -> Tensor:
    """Rows of users, client after client, in the order of the data set's user index."""
    return torch.as_tensor(rows)[torch.from_numpy(np.argsort(data.users))]


def mean(tables: Sequence[Tensor]) -> Tensor:
    return torch.stack(list(tables)).mean(0)


def stacked(held: Sequence[Mapping[str, Tensor]], room: str = "client") -> dict[str, Tensor]:
    """What clients hold, under the names of `fedrec.testing.outcome`."""
    return {f"{room}.{name}": torch.stack([mine[name].detach() for mine in held]) for name in held[0]}
