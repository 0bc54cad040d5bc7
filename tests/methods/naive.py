"""The same methods as anyone would first write them: one client after another, whole tables, torch.nn and torch.optim.

Only the drawn samples and their order come from the library (`Samples`, tested on its own), and the initial values.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedrec.federation.clients import ClientData
from fedrec.methods import Local
from fedrec.training.local_training import IN_TURN, LocalMethod, LocalTrainer
from methods.naive_base import Batch, Model, bce, bpr, by_index, descend, draws, linear, stacked, taking_part, users_of

# One epoch of plain steps from a normal start, where a method's own defaults would take ten of Adam.
SGD = {"optimiser": "sgd", "epochs": 1, "init": "normal", "weight_decay_dense": 0.0}


class LocalInTurn(Local):
    """What a method that trains in turn is where nothing is exchanged."""

    @cached_property
    def trainer(self) -> LocalTrainer:
        return LocalTrainer(self, phases=IN_TURN)


class Client(Model):
    """One client's whole model: its users, a whole item table, and the layers of a network on [user; item].

    Users of width zero make it a network of item rows alone.
    """

    def __init__(self, user: Tensor, table: Tensor, dense: Mapping[str, Tensor]) -> None:
        super().__init__()
        self.user = nn.Parameter(user.clone())
        self.item = nn.Parameter(table.clone())
        layers = range(len(dense) // 2)
        self.layers = nn.ModuleList(linear(dense[f"weight{layer}"], dense[f"bias{layer}"]) for layer in layers)

    def rated(self, user: Tensor, rows: Tensor) -> Tensor:
        """Logits of some rows of the table, each for one user."""
        if not self.layers:
            return (self.user[user] * rows).sum(-1)
        x = torch.cat([self.user[user], rows], -1)
        for layer in list(self.layers)[:-1]:
            x = F.relu(layer(x))
        return cast(Tensor, self.layers[-1](x)).squeeze(-1)

    def forward(self, user: Tensor, item: Tensor) -> Tensor:
        return self.rated(user, self.item[item])

    def dense(self) -> dict[str, Tensor]:
        named = {}
        for k, layer in enumerate(self.layers):
            named |= {f"weight{k}": layer.weight.detach().clone(), f"bias{k}": layer.bias.detach().clone()}
        return named

    def everything(self) -> Tensor:
        """Logits of every user for every item, pair by pair."""
        users, items = len(self.user), len(self.item)
        pairs = torch.cartesian_prod(torch.arange(users), torch.arange(items))
        with torch.no_grad():
            return self(pairs[:, 0], pairs[:, 1]).reshape(users, items)


def optimiser(method: LocalMethod, client: Client) -> torch.optim.Optimizer:
    rates = method.trainer.rates
    groups = [
        {"params": [client.user], "lr": rates["user"]},
        {"params": [client.item], "lr": rates["item"]},
    ]
    if client.layers:
        decay = method.weight_decay_dense
        groups.append({"params": list(client.layers.parameters()), "lr": rates["dense"], "weight_decay": decay})
    return torch.optim.Adam(groups) if method.optimiser == "adam" else torch.optim.SGD(groups)


def loss_of(method: LocalMethod, client: Client, batch: Batch) -> Tensor:
    if batch.other is None:
        return bce(client(batch.user, batch.item), batch.label, method.reduction)
    return bpr(client(batch.user, batch.item), client(batch.user, batch.other), method.reduction)


def train(
    method: LocalMethod, client: Client, data: ClientData, number: int, round: int, towards: Tensor | None = None
) -> None:
    """All local epochs of client `number`. `towards`: the table that a pull of items draws to; default: the start."""
    drawn, steps = draws(method, data, number, round), optimiser(method, client)
    pull, names = method.trainer.pull, method.trainer.pulled
    pulled = [client.item] * ("item" in names) + [*client.layers.parameters()] * ("dense" in names)
    start = [p.detach().clone() if towards is None else towards for p in pulled]
    total, seen, means = 0.0, 0, []  # of the losses since the start
    for epoch in range(method.epochs):
        for batch in drawn.epoch(epoch):
            loss = loss_of(method, client, batch)
            total += loss.item() * (len(batch.user) if method.reduction == "mean" else 1)
            seen += len(batch.user)
            if pull:
                loss = loss + pull * sum((p - s).square().sum() for p, s in zip(pulled, start, strict=True))
            descend(loss, client, steps)
        means.append(total / max(1, seen))
        if epoch and abs(means[-1] - means[-2]) / abs(means[-2] + 1e-5) < method.early_exit:
            break


@dataclass
class Federation:
    """Every client's model one by one, and the server's tensors."""

    method: LocalMethod
    data: ClientData
    kind: type[Client] = Client
    server: dict[str, Tensor] = field(init=False)
    clients: list[Client] = field(init=False)

    def __post_init__(self) -> None:
        world, method = self.data.world, self.method
        self.server = method.trainer.init_model(world)
        self.clients = [self.model(method.trainer.init_users(world, mine)) for mine in users_of(self.data)]

    def model(self, user: Tensor) -> Client:
        """A client that has just received the server's tensors."""
        return self.holding(user, self.server)

    def holding(self, user: Tensor, tensors: Mapping[str, Tensor]) -> Client:
        """A client with this table and these weights."""
        return self.kind(user, tensors["item"], {name: value for name, value in tensors.items() if name != "item"})

    def train(self, number: int, round: int) -> None:
        train(self.method, self.clients[number], self.data, number, round)

    def alone(self, rounds: int) -> None:
        """Each trains its own model; nothing is exchanged."""
        for round in range(rounds):
            for number in taking_part(self.data, round):
                self.train(number, round)

    def averaged(self, rounds: int, weighted: bool) -> None:
        """Those who take part receive, train and are averaged."""
        for round in range(rounds):
            chosen = taking_part(self.data, round)
            for number in chosen:
                self.clients[number] = self.model(self.clients[number].user.detach())
                self.train(number, round)
            sizes = [float(self.data.positives[k]) * (1 + self.data.negatives) for k in chosen]
            shares = [size / sum(sizes) if weighted else 1 / len(chosen) for size in sizes]
            uploads = [self.clients[k].lock() for k in chosen]
            for name in self.server:
                self.server[name] = sum((s * up[name] for s, up in zip(shares, uploads, strict=True)), torch.zeros(()))

    # -- results under the names of `fedrec.testing.outcome` --

    def users(self) -> Tensor:
        return torch.cat([client.user.detach() for client in self.clients])

    def scores(self, received: bool) -> Tensor:
        """By the data set's user index; with `received` after taking over the server's tensors."""
        models = [self.model(client.user.detach()) if received else client for client in self.clients]
        return by_index(self.data, torch.cat([model.everything() for model in models]))

    def own(self) -> dict[str, Tensor]:
        """Every client's own table and weights."""
        return stacked([client.lock() for client in self.clients])


def local(method: LocalMethod, data: ClientData, rounds: int) -> dict[str, Tensor]:
    federation = Federation(method, data)
    federation.alone(rounds)
    return {"user.user": federation.users(), "scores": federation.scores(received=False), **federation.own()}


def fedavg(method: LocalMethod, data: ClientData, rounds: int, weighted: bool) -> dict[str, Tensor]:
    federation = Federation(method, data)
    federation.averaged(rounds, weighted)
    server = {f"server.{name}": value for name, value in federation.server.items()}
    return {"user.user": federation.users(), "scores": federation.scores(received=True), **server}


def fedavg_own(method: LocalMethod, data: ClientData, rounds: int, weighted: bool) -> dict[str, Tensor]:
    """The same, scoring with what each client held after its last training."""
    federation = Federation(method, data)
    federation.averaged(rounds, weighted)
    return {"user.user": federation.users(), "scores": federation.scores(received=False), **federation.own()}
