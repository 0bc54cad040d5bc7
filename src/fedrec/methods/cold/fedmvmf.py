"""FedMVMF: one item factor explains interactions and attributes; clients solve for themselves, the server for the rest.

Flanagan et al., "Federated Multi-view Matrix Factorization for Personalized Recommendations" (ECML PKDD 2020), without
the view of user features. R ~ P Q', X ~ Q V, with confidence c = 1 + a r in the first:
    p_u = (Q' C_u Q + ridge I)^-1 Q' C_u r_u                                        at the client
    -2 c_ui (r_ui - p_u . q_i) p_u                                                  uploaded, for every item
    V = (Q' Q + ridge / weight I)^-1 Q' X                                           at the server
and a new item is q = (weight V V' + ridge I)^-1 weight V x. The attributes stay at the server.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from fedrec import method as fm


def fit_users(table: Tensor, chunk: fm.Chunk, confidence: float, ridge: float) -> Tensor:
    """Return p_u of every user: all items weigh 1, those of the user 1 + confidence."""
    d = table.shape[1]
    # What all users share is multiplied once; a user adds the rows of the own items alone.
    common = table.T @ table + ridge * torch.eye(d, dtype=table.dtype, device=table.device)
    rows, ends = table[chunk.tensor(chunk.items)], chunk.user_ptr
    mine = [rows[a:b] for a, b in pairwise(ends)]
    left = torch.stack([common + confidence * (q.T @ q) for q in mine])
    right = torch.stack([(1 + confidence) * q.sum(0) for q in mine])
    # positive definite; LU of a batch fails in MKL where torch has more threads than OMP_NUM_THREADS
    return torch.cholesky_solve(right.unsqueeze(-1), torch.linalg.cholesky(left)).squeeze(-1)


def fit_attributes(table: Tensor, attributes: Tensor, ridge: float, weight: float) -> Tensor:
    """Return V."""
    eye = torch.eye(table.shape[1], dtype=table.dtype, device=table.device)
    return torch.linalg.solve(table.T @ table + ridge / weight * eye, table.T @ attributes)


def fit_cold_items(factors: Tensor, attributes: Tensor, ridge: float, weight: float) -> Tensor:
    """Return q of items that have only attributes, one per row."""
    eye = torch.eye(len(factors), dtype=factors.dtype, device=factors.device)
    return torch.linalg.solve(weight * factors @ factors.T + ridge * eye, weight * factors @ attributes.T).T


@dataclass(frozen=True)
class FedMVMF(fm.Method):
    info: ClassVar[fm.MethodInfo] = fm.MethodInfo(
        name="fedmvmf",
        summary="new items: shared factors of interactions and attributes, in closed form",
        paper="Flanagan et al., ECML PKDD 2020",
    )

    dim: fm.Count = 200
    confidence: fm.Positive = 1.0
    """How much more an observed pair counts than another one."""
    ridge: fm.Positive = 0.1
    """L2 regularisation of all factors."""
    attribute_weight: fm.Positive = 1.0
    """Weight of the attributes against the interactions."""
    lr_server: fm.Positive = 0.01
    init_std: fm.Positive = 0.1

    @property
    def disclosure(self) -> fm.Disclosure:
        return fm.Disclosure(private=("user",), attributes="server")

    def init_server(self, world: fm.World, attributes: Tensor | None = None) -> fm.Tensors:
        x = self.require_attributes(attributes)
        table = fm.draw_rows(world, "item", world.items, self.dim, self.init_std)
        factors = fit_attributes(table, x[: world.items], self.ridge, self.attribute_weight)
        moments = {name: torch.zeros_like(table) for name in ("first", "second")}
        return {"item": table, "attributes": x, "factors": factors, **moments}

    def init_clients(self, world: fm.World, chunk: fm.Chunk) -> fm.State:
        # Zero will do, because users are solved from the table and not descended from a start.
        zero = torch.zeros(len(chunk.users), self.dim, dtype=world.dtype, device=world.device)
        return fm.State(per_user={"user": zero})

    def broadcast(self, server: fm.Tensors, clients: np.ndarray, round: int) -> fm.Down:
        return fm.Down(shared={"item": server["item"]})

    def local(self, state: fm.State, down: fm.Down, chunk: fm.Chunk, round: int) -> tuple[fm.State, fm.Uploads]:
        table, item = down.shared["item"], chunk.tensor(chunk.items)
        user = fit_users(table, chunk, self.confidence, self.ridge)
        count = chunk.tensor(chunk.user_ptr).diff()
        owner = torch.repeat_interleave(torch.arange(len(user), device=item.device), count)
        score = (user[owner] * table[item]).sum(1, keepdim=True)
        # beside the gradient that every item has, 2 (p . q_i) p
        # Split so, because the first part of a sum over users is one product of matrices instead of one per user.
        own = (-2 * (1 + self.confidence) * (1 - score) - 2 * score) * user[owner]
        if chunk.foldable:
            total = (2 * table @ (user.T @ user)).double().index_add_(0, item, own.double())
            upload: Tensor | fm.PartialSum = fm.PartialSum(torch.zeros_like(table), total, len(chunk.clients))
        else:
            # Only where stages look at single uploads: a gradient of all items per client is large.
            upload = table.new_zeros(len(chunk.clients), *table.shape)
            for place, p in zip(chunk.owner.tolist(), user, strict=True):
                upload[place] += 2 * torch.outer(table @ p, p)
            upload.flatten(0, 1).index_add_(0, chunk.owner[owner] * len(table) + item, own)
        return fm.State({}, {"user": user}), {"gradient": fm.Sum(upload)}

    def aggregate(self, server: fm.Tensors, ups: fm.Ups, round: int) -> fm.Tensors:
        if "gradient" not in ups:
            return server
        table, factors = server["item"].clone(), server["factors"]
        x = server["attributes"][: len(table)]
        gradient = ups["gradient"] - 2 * self.attribute_weight * (x - table @ factors) @ factors.T
        first, second = server["first"].clone(), server["second"].clone()
        # The ridge is added at the server, once: from every client it would grow with their number.
        table -= fm.adam_step(gradient + 2 * self.ridge * table, first, second, round + 1, self.lr_server)
        factors = fit_attributes(table, x, self.ridge, self.attribute_weight)
        return server | {"item": table, "factors": factors, "first": first, "second": second}

    def offer(self, server: fm.Tensors, clients: np.ndarray, round: int, items: Tensor) -> fm.Down:
        """Make known items from their attributes too, so that all are scored alike."""
        # each distinct row is solved and scored once: equal items must tie to the last bit, wherever they stand
        distinct, which = torch.unique(server["attributes"][items], dim=0, return_inverse=True)
        item = fit_cold_items(server["factors"], distinct, self.ridge, self.attribute_weight)
        return fm.Down(shared={"item": item[which]})

    def score(self, state: fm.State, down: fm.Down, chunk: fm.Chunk, items: Tensor) -> Tensor:
        distinct, which = torch.unique(down.shared["item"], dim=0, return_inverse=True)
        return (state.per_user["user"] @ distinct.T)[:, which]

    def footprint(self, world: fm.World) -> fm.Footprint:
        client = 4096 + (4 * self.dim**2 + 2 * world.items * self.dim) * world.dtype.itemsize
        return replace(super().footprint(world), client=client)
