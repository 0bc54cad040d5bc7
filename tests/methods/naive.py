"""The same methods as anyone would first write them: one client after another, whole tables, torch.nn and torch.optim.

Only the drawn samples and their order come from the library (`Samples`, tested on its own), and the initial values.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import cast

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedrec.federation.clients import ClientData
from fedrec.federation.contract import participants
from fedrec.methods import Local
from fedrec.training.local_training import IN_TURN, LocalMethod, LocalTrainer
from fedrec.training.samples import Samples

# One epoch of plain steps from a normal start, where a method's own defaults would take ten of Adam.
SGD = {"optimiser": "sgd", "epochs": 1, "init": "normal", "weight_decay_dense": 0.0}


def bce(saturate: str, logits: Tensor, label: Tensor, reduction: str = "mean") -> Tensor:
    """Of logits; or, as published code has it, of a sigmoid in single precision."""
    if saturate == "released":
        return F.binary_cross_entropy(torch.sigmoid(logits.float()), label.float(), reduction=reduction)
    return F.binary_cross_entropy_with_logits(logits, label, reduction=reduction)


class LocalInTurn(Local):
    """What a method that trains in turn is where nothing is exchanged."""

    @cached_property
    def trainer(self) -> LocalTrainer:
        return LocalTrainer(self, phases=IN_TURN)


class Client(nn.Module):
    """One client's whole model: its users, a whole item table, and for ncf the layers."""

    def __init__(self, method: LocalMethod, user: Tensor, table: Tensor, dense: dict[str, Tensor]) -> None:
        super().__init__()
        self.user = nn.Parameter(user.clone())
        self.item = nn.Parameter(table.clone())
        self.layers = nn.ModuleList()
        for layer in range(len(dense) // 2):
            weight, bias = dense[f"weight{layer}"], dense[f"bias{layer}"]
            linear = nn.Linear(weight.shape[1], weight.shape[0], dtype=weight.dtype)
            linear.load_state_dict({"weight": weight, "bias": bias})
            self.layers.append(linear)

    def forward(self, user: Tensor, item: Tensor) -> Tensor:
        p, q = self.user[user], self.item[item]
        if not self.layers:
            return (p * q).sum(-1)
        x = torch.cat([p, q], -1)
        for layer in list(self.layers)[:-1]:
            x = F.relu(layer(x))
        return cast(Tensor, self.layers[-1](x)).squeeze(-1)

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


def train(method: LocalMethod, client: Client, data: ClientData, number: int, round: int) -> None:
    """All local epochs of client `number`."""
    samples = Samples(data.chunk(np.array([number])), round, method.loss, method.batch)
    steps = optimiser(method, client)
    pull, pulled = method.trainer.pull, method.trainer.pulled
    drawn = [client.item] * ("item" in pulled) + [*client.layers.parameters()] * ("dense" in pulled)
    start = [p.detach().clone() for p in drawn]
    total, seen, means = 0.0, 0, []  # of the losses since the start
    for epoch in range(method.epochs):
        for batch in samples.epoch(epoch):
            real = batch.valid[0]
            user, pos = batch.user[0][real], samples.item[batch.pos[0][real]]
            if batch.neg is None:
                label = batch.label[0][real]
                loss = F.binary_cross_entropy_with_logits(client(user, pos), label, reduction=method.reduction)
            else:
                neg = samples.item[batch.neg[0][real]]
                losses = -F.logsigmoid(client(user, pos) - client(user, neg))
                loss = losses.mean() if method.reduction == "mean" else losses.sum()
            total += loss.item() * (int(real.sum()) if method.reduction == "mean" else 1)
            seen += int(real.sum())
            if pull:
                loss = loss + pull * sum((p - s).square().sum() for p, s in zip(drawn, start, strict=True))
            steps.zero_grad()
            loss.backward()
            steps.step()
        means.append(total / max(1, seen))
        if epoch and abs(means[-1] - means[-2]) / abs(means[-2] + 1e-5) < method.early_exit:
            break


@dataclass
class Federation:
    """Every client's model one by one, and the server's tensors."""

    method: LocalMethod
    data: ClientData
    server: dict[str, Tensor] = field(init=False)
    clients: list[Client] = field(init=False)

    def __post_init__(self) -> None:
        world, method = self.data.world, self.method
        self.server = method.trainer.init_model(world)
        users = [self.data.users[a:b] for a, b in zip(self.data.client_ptr, self.data.client_ptr[1:], strict=False)]
        self.clients = [self.model(method.trainer.init_users(world, mine)) for mine in users]

    def model(self, user: Tensor) -> Client:
        """A client that has just received the server's tensors."""
        dense = {name: value for name, value in self.server.items() if name != "item"}
        return Client(self.method, user, self.server["item"], dense)

    def train(self, number: int, round: int) -> None:
        train(self.method, self.clients[number], self.data, number, round)

    def alone(self, rounds: int) -> None:
        """Each trains its own model; nothing is exchanged."""
        for round in range(rounds):
            for number in participants(self.data.world, round, self.data.world.participation):
                self.train(int(number), round)

    def averaged(self, rounds: int, weighted: bool) -> None:
        """Those who take part receive, train and are averaged."""
        for round in range(rounds):
            chosen = participants(self.data.world, round, self.data.world.participation)
            for number in chosen:
                self.clients[number] = self.model(self.clients[number].user.detach())
                self.train(int(number), round)
            sizes = [float(self.data.positives[k]) * (1 + self.data.negatives) for k in chosen]
            shares = [size / sum(sizes) if weighted else 1 / len(chosen) for size in sizes]
            uploads = [{"item": self.clients[k].item.detach(), **self.clients[k].dense()} for k in chosen]
            for name in self.server:
                self.server[name] = sum((s * up[name] for s, up in zip(shares, uploads, strict=True)), torch.zeros(()))

    # -- results under the names of `fedrec.testing.outcome` --

    def users(self) -> Tensor:
        return torch.cat([client.user.detach() for client in self.clients])

    def scores(self, received: bool) -> Tensor:
        """By the data set's user index; with `received` after taking over the server's tensors."""
        models = [self.model(client.user.detach()) if received else client for client in self.clients]
        return torch.cat([model.everything() for model in models])[torch.from_numpy(np.argsort(self.data.users))]

    def own(self) -> dict[str, Tensor]:
        """Every client's own table and weights."""
        held = [{"item": client.item.detach(), **client.dense()} for client in self.clients]
        return {f"client.{name}": torch.stack([mine[name] for mine in held]) for name in held[0]}


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
