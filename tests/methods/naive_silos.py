"""Silos as anyone would first write them: one after another, whole graphs and similarity matrices, torch.optim.

Only the drawn triples and their order come from the library (`Triples`, tested on its own), and the initial values.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedrec.federation.clients import ClientData
from fedrec.training.silo_method import SiloMethod
from fedrec.training.triples import Triples
from methods.naive_base import bce, bpr, by_index, descend, taking_part


class Silo(nn.Module):
    def __init__(self, method: SiloMethod, data: ClientData, number: int, own: bool) -> None:
        super().__init__()
        self.method, self.number, self.chunk = method, number, data.chunk(np.array([number]))
        model = method.trainer.init_model(data.world, number if own else None)
        self.users = nn.Parameter(method.trainer.init_users(data.world, self.chunk.users))
        self.item = nn.Parameter(model.pop("item"))
        self.dense = nn.ParameterDict(model)
        self.rows = torch.from_numpy(self.chunk.matrix().toarray())
        self.forget()

    def forget(self) -> None:
        self.steps = torch.optim.Adam(self.parameters(), lr=self.method.lr)

    def shared(self) -> dict[str, Tensor]:
        return {"item": self.item.data, **{name: value.data for name, value in self.dense.items()}}

    def vectors(self) -> tuple[Tensor, Tensor]:
        """After propagation, where the backbone has one."""
        if self.method.backbone != "lightgcn":
            return self.users, self.item
        n, m = self.rows.shape
        whole = torch.zeros(n + m, n + m, dtype=self.rows.dtype)
        whole[:n, n:], whole[n:, :n] = self.rows, self.rows.T
        degree = whole.sum(1)
        root = torch.where(degree > 0, degree.clamp(min=1).rsqrt(), torch.zeros_like(degree))
        layer = torch.cat([self.users, self.item])
        layers = [layer]
        for _ in range(self.method.layers):
            layers.append(root[:, None] * whole * root @ layers[-1])
        mean = torch.stack(layers).mean(0)
        return mean[:n], mean[n:]

    def logits(self, p: Tensor, q: Tensor) -> Tensor:
        if not self.dense:
            return (p * q).sum(-1)
        hidden = F.relu(F.linear(torch.cat([p, q], -1), self.dense["weight0"], self.dense["bias0"]))
        return F.linear(hidden, self.dense["weight1"], self.dense["bias1"]).squeeze(-1)

    def loss(self, user: Tensor, liked: Tensor, other: Tensor) -> Tensor:
        method = self.method
        ego = (
            self.users[user].square().sum(1) + self.item[liked].square().sum(1) + self.item[other].square().sum(1)
        ) / 2
        penalty = ego.mean() + sum(value.square().sum() for value in self.dense.values())
        users, items = self.vectors()
        p, i, j = users[user], items[liked], items[other]
        if method.loss == "mse_elem":
            loss = 0.5 * (F.mse_loss(p * i, torch.ones_like(p)) + F.mse_loss(p * j, torch.zeros_like(p)))
        elif method.loss == "bpr":
            loss = bpr(self.logits(p, i), self.logits(p, j))
        else:
            up, down = self.logits(p, i), self.logits(p, j)
            loss = 0.5 * (bce(up, torch.ones_like(up)) + bce(down, torch.zeros_like(down)))
        return loss + method.weight_decay * penalty

    def train_round(self, round: int) -> None:
        if self.method.reset_optimiser:
            self.forget()
        triples = Triples(self.chunk, round if self.method.resample else 0)
        for epoch in range(self.method.epochs):
            for batch in triples.epoch(round, epoch, self.method.batch):
                descend(self.loss(batch.user, batch.liked, batch.other), self, self.steps)

    def scores(self) -> Tensor:
        with torch.no_grad():
            users, items = self.vectors()
            n, m = self.rows.shape
            return self.logits(users[:, None].expand(n, m, -1), items.expand(n, m, -1))


class Federation:
    def __init__(self, method: SiloMethod, data: ClientData, own: bool = False) -> None:
        self.method, self.data, self.world = method, data, data.world
        self.block = {int(c): cohort.name for cohort in method.cohorts(data.world) for c in cohort.clients}
        self.silos = [Silo(method.parts[self.block[k]], data, k, own) for k in range(data.world.clients)]
        self.server = {name: silo.shared() for name, silo in zip(self.block.values(), self.silos, strict=True)}
        self.server = {name: {n: v.clone() for n, v in model.items()} for name, model in self.server.items()}

    def taking_part(self, round: int) -> list[Silo]:
        return [self.silos[k] for k in taking_part(self.data, round)]

    def average(self, rounds: int) -> None:
        for round in range(rounds):
            for silo in self.taking_part(round):
                self.overwrite(silo)
                silo.train_round(round)
            for name, model in self.server.items():
                silos = [silo for silo in self.taking_part(round) if self.block[silo.number] == name]
                weight = [float(silo.rows.sum()) for silo in silos]
                if sum(weight):
                    for key in model:
                        whole = sum(w * silo.shared()[key] for w, silo in zip(weight, silos, strict=True))
                        model[key] = whole / sum(weight)
        for silo in self.silos:
            self.overwrite(silo)

    def overwrite(self, silo: Silo) -> None:
        for key, value in self.server[self.block[silo.number]].items():
            silo.shared()[key].copy_(value)

    def alone(self, rounds: int) -> None:
        for round in range(rounds):
            for silo in self.taking_part(round):
                silo.train_round(round)

    def similarity(self, rounds: int) -> None:
        """FedCIA as released, without noise: the norm by automatic differentiation of the whole matrix."""
        for round in range(rounds):
            for silo in self.taking_part(round):
                silo.train_round(round)
            tables = [silo.item.data for silo in self.taking_part(round)]
            mean = sum(table @ table.T for table in tables) / len(tables)
            for silo in self.taking_part(round):
                silo.item.data.copy_(
                    aligned(silo.item.data, mean, self.method.align_steps, 0.1, silo.method.weight_decay)
                )

    def users(self, block: str) -> Tensor:
        return torch.cat([silo.users.data for silo in self.silos if self.block[silo.number] == block])

    def stacked(self, name: str, block: str) -> Tensor:
        return torch.stack([silo.shared()[name] for silo in self.silos if self.block[silo.number] == block])

    def scores(self) -> Tensor:
        return by_index(self.data, torch.cat([silo.scores() for silo in self.silos]))


def aligned(table: Tensor, mean: Tensor, steps: int, rate: float, decay: float) -> Tensor:
    """The released alignment: plain SGD on the Frobenius norm."""
    moved = nn.Parameter(table.clone())
    descent = torch.optim.SGD([moved], lr=rate, weight_decay=decay)
    for _ in range(steps):
        descent.zero_grad()
        torch.linalg.norm(moved @ moved.T - mean).backward()
        descent.step()
    return moved.detach()
