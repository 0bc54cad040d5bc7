"""SASRec as anyone would first write it: sequences filled up on the left, one at a time, torch.nn and torch.optim.

Only drawn negatives, the order of sequences, the keys of random windows and initial values come from the library.
"""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedrec.federation.clients import ClientData
from fedrec.methods import CentralSASRec
from fedrec.models import SASRec
from fedrec.random import Purpose, fold
from fedrec.training.local_training import LocalMethod
from fedrec.training.samples import negatives
from fedrec.training.sequences import SequenceSamples
from methods import naive
from methods.naive_base import Model, by_index, linear


def norm(scale: Tensor, shift: Tensor) -> nn.LayerNorm:
    made = nn.LayerNorm(len(scale), eps=1e-8, dtype=scale.dtype)
    made.load_state_dict({"weight": scale, "bias": shift})
    return made


class Attentive(Model):
    """One client's whole model. Row 0 of its table is the padding, item i is row i + 1."""

    def __init__(self, model: SASRec, table: Tensor, dense: dict[str, Tensor], users: int) -> None:
        super().__init__()
        self.model = model
        self.user = torch.zeros(users, 0, dtype=table.dtype)
        self.table = nn.Parameter(torch.cat([torch.zeros(1, model.dim, dtype=table.dtype), table]))
        self.layers = nn.ModuleDict({"last": norm(dense["last_scale"], dense["last_shift"])})
        self.position = nn.Parameter(dense["position"].clone())
        for b in range(model.blocks):
            attention = nn.MultiheadAttention(model.dim, model.heads, batch_first=True, dtype=table.dtype)
            of = [dense[f"{name}{b}"] for name in ("query", "key", "value")]
            biases = [dense[f"query_bias{b}"], torch.zeros(model.dim, dtype=table.dtype), dense[f"value_bias{b}"]]
            attention.load_state_dict(
                {
                    "in_proj_weight": torch.cat(of),
                    "in_proj_bias": torch.cat(biases),
                    "out_proj.weight": dense[f"out{b}"],
                    "out_proj.bias": dense[f"out_bias{b}"],
                }
            )
            self.layers[f"attention{b}"] = attention
            for name in self.parts():
                weight = dense[f"{name}{b}"]
                bias = dense.get(f"{name}_bias{b}", weight.new_zeros(len(weight)))
                self.layers[f"{name}{b}"] = linear(weight, bias)
                self.layers[f"{name}{b}"].bias.requires_grad_(f"{name}_bias{b}" in dense)
            for name in ("attention", "forward"):
                self.layers[f"{name}_norm{b}"] = norm(dense[f"{name}_scale{b}"], dense[f"{name}_shift{b}"])

    def parts(self) -> tuple[str, ...]:
        """The linear layers of a block beside attention."""
        ligr = ("attention_gate", "forward_gate", "swish", "inner", "outer")
        return ligr if self.model.block_kind == "ligr" else ("inner", "outer")

    @property
    def item(self) -> Tensor:
        return self.table[1:]

    def dense(self) -> dict[str, Tensor]:
        found = {"position": self.position, "last_scale": self.layers["last"].weight}
        found["last_shift"] = self.layers["last"].bias
        for b in range(self.model.blocks):
            attention = self.layers[f"attention{b}"]
            weights = zip(("query", "key", "value"), attention.in_proj_weight.chunk(3), strict=True)
            found |= {f"{name}{b}": weight for name, weight in weights}
            query, _, value = attention.in_proj_bias.chunk(3)
            found |= {f"query_bias{b}": query, f"value_bias{b}": value}
            found |= {f"out{b}": attention.out_proj.weight, f"out_bias{b}": attention.out_proj.bias}
            for name in self.parts():
                layer = self.layers[f"{name}{b}"]
                found |= {f"{name}{b}": layer.weight}
                found |= {f"{name}_bias{b}": layer.bias} if layer.bias.requires_grad else {}
            for name in ("attention", "forward"):
                layer = self.layers[f"{name}_norm{b}"]
                found |= {f"{name}_scale{b}": layer.weight, f"{name}_shift{b}": layer.bias}
        return {name: value.detach().clone() for name, value in found.items()}

    def forward(self, items: Tensor) -> Tensor:
        """The hidden states of one sequence's real positions."""
        length, real = self.model.length, len(items)
        padded = torch.cat([torch.zeros(length - real, dtype=torch.int64), items + 1])
        position = torch.cat([self.position.new_zeros(length - real, self.model.dim), self.position[:real]])
        x = (self.table[padded] * math.sqrt(self.model.dim) + position)[None]
        hidden_keys = (padded == 0)[None, :] & ~torch.eye(length, dtype=torch.bool)  # softmax needs one key at least
        mask = hidden_keys | torch.ones(length, length, dtype=torch.bool).triu(1)
        for b in range(self.model.blocks):
            attention, first, second = (self.layers[f"{name}{b}"] for name in ("attention", "inner", "outer"))
            before, after = self.layers[f"attention_norm{b}"], self.layers[f"forward_norm{b}"]
            if self.model.block_kind == "ligr":
                gates = [self.layers[f"{name}_gate{b}"] for name in ("attention", "forward")]
                swish = self.layers[f"swish{b}"]
                y = before(x)
                x = x + torch.sigmoid(gates[0](x)) * attention(y, y, y, attn_mask=mask, need_weights=False)[0]
                y = after(x)
                x = x + torch.sigmoid(gates[1](x)) * second(F.silu(swish(y)) * first(y))
            elif self.model.norm_first:
                y = before(x)
                x = x + attention(y, y, y, attn_mask=mask, need_weights=False)[0]
                x = x + second(F.relu(first(after(x))))
            else:
                x = before(x + attention(x, x, x, attn_mask=mask, need_weights=False)[0])
                x = after(x + second(F.relu(first(x))))
        return self.layers["last"](x)[0, length - real :]

    def scores(self, items: Tensor) -> Tensor:
        with torch.no_grad():
            if len(items) == 0:
                return self.item.new_zeros(len(self.item))
            return self.item @ self(items[-self.model.length :])[-1]


def losses(method: LocalMethod, client: Attentive, items: Tensor, drawn: Tensor) -> list[Tensor]:
    """Of every sample of one sequence: `drawn` has the negatives of each item, taken at its place."""
    length = client.model.length
    inputs, targets, drawn = items[:-1][-length:], items[1:][-length:], drawn[1:][-length:]
    found = []
    for hidden, target, others in zip(client(inputs), targets, drawn, strict=True):
        if method.loss == "ce":
            found.append(F.cross_entropy((client.item @ hidden)[None], target[None]))
            continue
        positive = client.item[target] @ hidden
        against = [client.item[other] @ hidden for other in others]
        if method.loss == "bpr":
            found += [-F.logsigmoid(positive - negative) for negative in against]
        else:
            found += [-F.logsigmoid(positive), *(-F.logsigmoid(-negative) for negative in against)]
    return found


class Federation(naive.Federation):
    def model(self, user: Tensor) -> Attentive:  # type: ignore[override]
        dense = {name: value for name, value in self.server.items() if name != "item"}
        return Attentive(self.method.model, self.server["item"], dense, len(user))

    def histories(self, number: int) -> list[Tensor]:
        first, last = self.data.client_ptr[number : number + 2]
        ptr = self.data.user_ptr[first : last + 1]
        return [torch.from_numpy(self.data.history[a:b]) for a, b in pairwise(ptr)]

    def losses(self, number: int, round: int, users: list[int]) -> Tensor:
        """Of every sample of some of a client's users."""
        chunk = self.data.chunk(np.array([number]))
        drawn = negatives(chunk, round).split(np.diff(chunk.user_ptr).tolist())
        history, client = self.histories(number), self.clients[number]
        kept = [len(items) - self.left_out(number, u, len(items), round) for u, items in enumerate(history)]
        return torch.stack(
            [x for u in users for x in losses(self.method, client, history[u][: kept[u]], drawn[u][: kept[u]])]
        )

    def left_out(self, number: int, place: int, items: int, round: int) -> int:
        """How many items at the end of a user's history come after the round's window."""
        if getattr(self.method, "crop", "last") == "last":
            return 0
        chunk = self.data.chunk(np.array([number]))
        draw = fold(chunk.secret.stream(Purpose.CROP, round), int(chunk.users[place]))
        return (draw >> 32) * max(1, items - self.method.length) >> 32

    def train(self, number: int, round: int) -> None:
        method, client = self.method, self.clients[number]
        rates, own = method.trainer.rates, [p for name, p in client.named_parameters() if name != "table"]
        steps = torch.optim.Adam(
            [
                {"params": [client.table], "lr": rates["item"]},
                {"params": own, "lr": rates["dense"], "weight_decay": method.weight_decay_dense},
            ]
        )
        samples = SequenceSamples(
            self.data.chunk(np.array([number])), round, method.loss, method.batch, method.length, None, "last"
        )
        for epoch in range(method.epochs):
            for batch in samples.epoch(epoch):
                every = self.losses(number, round, samples.user[batch.sequence].tolist())
                steps.zero_grad()
                (every.mean() if method.reduction == "mean" else every.sum()).backward()
                steps.step()
        assert not client.table[0].any(), "the padding row moved"

    def scores(self, received: bool) -> Tensor:
        found = []
        for number, client in enumerate(self.clients):
            model = self.model(client.user) if received else client
            found += [model.scores(items) for items in self.histories(number)]
        return by_index(self.data, torch.stack(found))


def central(method: CentralSASRec, data: ClientData, rounds: int) -> dict[str, Tensor]:
    """Rounds are epochs of one training: torch's AdamW, never restarted, on one negative at each position."""
    federation = Federation(method, data)
    (client,) = federation.clients
    decay = {"betas": (0.9, 0.98), "weight_decay": method.weight_decay}
    steps = torch.optim.AdamW(client.parameters(), lr=method.lr, **decay)
    for round in range(rounds):
        samples = SequenceSamples(data.chunk(np.array([0])), round, "bce", method.batch, method.length, None, "last")
        for batch in samples.epoch(0):
            every = federation.losses(0, round, samples.user[batch.sequence].tolist())
            steps.zero_grad()
            every.mean().backward()
            steps.step()
    return {"scores": federation.scores(received=False), **federation.own()}


def local(method: LocalMethod, data: ClientData, rounds: int) -> dict[str, Tensor]:
    federation = Federation(method, data)
    federation.alone(rounds)
    return {"scores": federation.scores(received=False), **federation.own()}


def fedavg(method: LocalMethod, data: ClientData, rounds: int) -> dict[str, Tensor]:
    federation = Federation(method, data)
    federation.averaged(rounds, weighted=True)
    server = {f"server.{name}": value for name, value in federation.server.items()}
    return {"scores": federation.scores(received=True), **server}
