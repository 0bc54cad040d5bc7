"""FedMF the way published research code does it: one client at a time, each with its own module and optimiser."""

from __future__ import annotations

import copy
import random
import time

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from fedrec.federation.clients import ClientData


class Recommender(nn.Module):
    def __init__(self, items: int, dim: int) -> None:
        super().__init__()
        self.item = nn.Embedding(items, dim)
        self.user = nn.Embedding(1, dim)

    def forward(self, items: Tensor) -> Tensor:
        logits: Tensor = (self.item(items) * self.user.weight).sum(1)
        return logits


class OneByOne:
    """Server and clients of plain FedMF. `round` returns the seconds of sampling and of training with averaging."""

    def __init__(self, data: ClientData, dim: int, lr: float, batch: int) -> None:
        self.items, self.negatives, self.lr, self.batch = data.world.items, data.negatives, lr, batch
        ptr = data.user_ptr
        self.positives = [data.items[ptr[k] : ptr[k + 1]] for k in range(len(data.users))]
        self.template = Recommender(self.items, dim)
        self.table: dict[str, Tensor] = self.template.item.state_dict()
        self.states: list[dict[str, Tensor] | None] = [None] * len(self.positives)

    def round(self) -> tuple[float, float]:
        started = time.perf_counter()
        samples = [self._sample(positives) for positives in self.positives]
        sampled = time.perf_counter()
        for k, (items, labels) in enumerate(samples):
            self.states[k] = self._train(self.states[k], items, labels)
        tables = torch.stack([state["item.weight"] for state in self.states if state is not None])
        self.table = {"weight": tables.mean(0)}
        return sampled - started, time.perf_counter() - sampled

    def _sample(self, positives: np.ndarray) -> tuple[Tensor, Tensor]:
        pool = sorted(set(range(self.items)) - set(positives.tolist()))
        drawn = [item for _ in positives for item in random.sample(pool, self.negatives)]
        labels = torch.cat([torch.ones(len(positives)), torch.zeros(len(drawn))])
        return torch.tensor(np.concatenate([positives, drawn]), dtype=torch.int64), labels

    def _train(self, state: dict[str, Tensor] | None, items: Tensor, labels: Tensor) -> dict[str, Tensor]:
        model = copy.deepcopy(self.template)
        if state is not None:
            model.load_state_dict(state)
        model.item.load_state_dict(self.table)
        optimiser = torch.optim.SGD(model.parameters(), lr=self.lr)
        criterion = nn.BCEWithLogitsLoss()
        for item, label in DataLoader(TensorDataset(items, labels), batch_size=self.batch, shuffle=True):
            optimiser.zero_grad()
            criterion(model(item), label).backward()
            optimiser.step()
        return copy.deepcopy(model.state_dict())
