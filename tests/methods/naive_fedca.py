"""FedCA one client at a time, one pair of clients at a time, with all the choices of its variants."""

from __future__ import annotations

import math
from dataclasses import fields

import numpy as np
import torch

from fedrec.federation.clients import ClientData
from fedrec.methods.mixture.fedca import FedCA
from fedrec.testing import MethodTests
from fedrec.training.samples import negatives
from fedrec_studies.variants.fedca import FedCAVariants
from methods import naive
from methods.naive_base import by_index

MF = {"dim": 5, "lr": 0.05, "epochs": 2, "batch": 16, "components": 3}
NCF = {**MF, "dim": 4, "backbone": "ncf", "weight_decay_dense": 0.01}
MANY = {"aggregated_fraction": 0.7, "interpolation": 0.6, "alpha": 0.4, "beta": 0.6}


def with_choices(method: FedCA) -> FedCAVariants:
    """The same with what its variants choose, as the method itself has it."""
    return FedCAVariants(**{field.name: getattr(method, field.name) for field in fields(method)})


def upright(vector):
    return vector * np.sign(vector[np.abs(vector).argmax()])


def picture(method, table, items, drawn):
    """The vectors of one client, as many as its rows have dimensions."""
    mode = method.complementarity
    if mode == "raw":
        return [table[items].mean(0) if len(items) else np.zeros(method.dim)]
    rows = table[np.concatenate([items, drawn])] if mode == "right-greedy" else table[items]
    if len(rows) == 0:
        return []
    left = mode.startswith("left")
    u, s, vt = np.linalg.svd(rows if left else rows - rows.mean(0), full_matrices=False)
    found = []
    for k in range(min(method.components, len(s))):
        if s[k] < 1e-6 * s[0] or s[0] < 1e-12:
            break
        vector = upright(u[:, k] if left else vt[k])
        if mode == "left-global":
            vector, small = np.zeros(len(table)), vector
            vector[items] = small
        found.append(vector)
    return found


def dot(u, v):
    """Of vectors of any lengths: what is missing is zero."""
    shared = min(len(u), len(v))
    return float(np.clip(u[:shared] @ v[:shared], -1, 1))


def angle(method, u, v):
    k = method.components
    if method.complementarity == "raw":
        size = np.linalg.norm(u[0]) * np.linalg.norm(v[0])
        return math.acos(dot(u[0], v[0]) / size) if size else math.pi / 2
    u, v = (list(x) + [np.zeros(1)] * (k - len(x)) for x in (u, v))
    if method.complementarity.startswith("left"):
        return sum(math.acos(dot(a, b)) for a, b in zip(u, v, strict=True)) / k
    cosine = np.array([[dot(a, b) for b in v] for a in u])
    if method.complementarity == "right-principal":
        return float(np.arccos(np.clip(np.linalg.svd(cosine)[1], -1, 1)).mean())
    total = 0.0
    for _ in range(k):
        row, column = np.unravel_index(cosine.argmax(), cosine.shape)
        total += math.acos(cosine[row, column])
        cosine = np.delete(np.delete(cosine, row, 0), column, 1)
    return total / k


def alike(method, mine, other, start):
    if method.similarity == "paper":
        return 1 / (1 + ((mine - other) ** 2).sum())
    scores = []
    for table in (mine, other, start):
        centred = table - table.mean(0)
        scores.append(centred @ upright(np.linalg.svd(centred)[2][0]))
    if method.similarity == "pca1":
        scores = [score * (1 if score @ scores[2] >= 0 else -1) for score in scores]
    s = 1 / (1 + np.linalg.norm(scores[0] - scores[1]))
    return 1.0 if s > 0.9 else s


def nearest_mixture(point):
    """The projection onto the simplex: bisection for what must be taken off."""
    low, high = point.min() - 1, point.max()
    for _ in range(200):
        middle = (low + high) / 2
        low, high = (middle, high) if np.maximum(point - middle, 0).sum() > 1 else (low, middle)
    return np.maximum(point - low, 0)


def mixture(method, u, tables, pictures, sizes, start):
    """The row of weights of client u."""
    n, alpha, beta = len(tables), method.alpha, method.beta
    size = np.array(sizes if method.shares == "samples" and sum(sizes) else [1.0] * n)
    pi = size / size.sum()
    s = np.array([1.0 if u == v else alike(method, tables[u], tables[v], start) for v in range(n)])
    phi = np.array([0.0 if u == v else angle(method, pictures[u], pictures[v]) for v in range(n)])
    c = np.cos(phi) if method.outer == "cos" else np.sin(phi)
    if method.weights == "eq5":
        return nearest_mixture((2 * pi + 2 * alpha * s + beta * c) / (2 * (1 + alpha)))
    return nearest_mixture(pi + alpha * s + beta / 2 * c if method.weights == "eq8" else pi + alpha * c + beta * s)


class Composite(naive.Federation):
    """Every client starts from what it holds; those who are aggregated take over their mixture."""

    def composite(self, rounds):
        method, data = self.method, self.data
        served, near = list(self.clients), {}
        if method.interpolate == "both":  # the aggregate that arrived last
            near = dict.fromkeys(range(len(self.clients)), self.server["item"])
        start = self.server["item"].numpy()
        for round in range(rounds):
            plan = method.plan(data.world, {}, round)
            for number in plan.train:
                naive.train(method, self.clients[number], data, int(number), round, near.get(int(number)))
                served[number] = self.clients[number]
            tensors = [self.clients[k].lock() for k in plan.uploads()]
            tables = [held["item"].numpy() for held in tensors]
            pictures, sizes = [], []
            for number, table in zip(plan.uploads(), tables, strict=True):
                chunk = data.chunk(np.array([number]))
                drawn = negatives(chunk, round).flatten().numpy()
                listed = chunk.items if method.complementarity == "right-greedy" else np.unique(chunk.items)
                pictures.append(picture(method, table, listed, drawn))
                sizes.append(5.0 * len(chunk.items))
            for u, number in enumerate(plan.uploads()):
                w = mixture(method, u, tables, pictures, sizes, start)
                mixed = {name: sum(w[v] * held[name] for v, held in enumerate(tensors)) for name in tensors[0]}
                rho = method.interpolation
                both = {name: rho * value + (1 - rho) * mixed[name] for name, value in tensors[u].items()}
                near |= {int(number): mixed["item"]} if near else {}
                user = self.clients[number].user.detach()
                served[number] = self.holding(user, both)
                self.clients[number] = self.holding(user, both if method.interpolate == "both" else mixed)
        return served


class FedCATests(MethodTests):
    def reference(self, data: ClientData, rounds: int) -> dict[str, torch.Tensor]:
        federation = Composite(with_choices(self.method), data)
        served = federation.composite(rounds)
        scores = by_index(data, torch.cat([client.everything() for client in served]))
        return {"user.user": federation.users(), "scores": scores, **federation.own()}
