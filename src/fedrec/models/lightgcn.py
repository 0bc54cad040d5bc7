"""LightGCN: inner products of vectors that were first averaged along the interactions. He et al., SIGIR 2020.

Each silo has a graph of its own users and items. Several silos form one graph of several parts: its item nodes are
(silo, item) pairs, numbered silo * items + item.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fedrec.models.mf import MF


@dataclass(frozen=True)
class Graph:
    """The normalised adjacency D^-1/2 A D^-1/2 of the users and of those item nodes that have an edge."""

    nodes: Tensor  # numbers of the item nodes with an edge
    matrix: Tensor  # sparse, [users + nodes] squared

    @staticmethod
    def build(user: Tensor, node: Tensor, users: int, dtype: torch.dtype) -> Graph:
        """From the two ends of every interaction."""
        # Only nodes with an edge: of all (silo, item) pairs most have none, and propagation would only scale them.
        nodes, place = torch.unique(node, return_inverse=True)
        of_user = torch.bincount(user, minlength=users)
        of_node = torch.bincount(place, minlength=len(nodes))
        # Multiplied as integers, with one root for both degrees: a product of two rounded roots is less exact.
        weight = (of_user[user] * of_node[place]).to(dtype).rsqrt()
        left, right = torch.cat([user, place + users]), torch.cat([place + users, user])
        size = users + len(nodes)
        matrix = torch.sparse_coo_tensor(
            torch.stack([left, right]), weight.repeat(2), (size, size), check_invariants=False
        )
        return Graph(nodes, matrix.coalesce())


class _Convolution(torch.autograd.Function):
    """The mean of the first powers of a symmetric matrix, applied: it is its own gradient, so nothing is stored."""

    @staticmethod
    def forward(ctx: Any, vectors: Tensor, matrix: Tensor, layers: int) -> Tensor:
        ctx.matrix, ctx.layers = matrix, layers
        return _mean_of_layers(vectors, matrix, layers)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        return _mean_of_layers(gradient, ctx.matrix, ctx.layers), None, None


def _mean_of_layers(vectors: Tensor, matrix: Tensor, layers: int) -> Tensor:
    total = layer = vectors
    for _ in range(layers):
        layer = torch.sparse.mm(matrix, layer)
        total = total + layer
    return total / (layers + 1)


@dataclass(frozen=True)
class LightGCN(MF):
    layers: int = 3

    def convolve(self, graph: Graph, user: Tensor, item: Tensor) -> tuple[Tensor, Tensor]:
        """Users [U, d] and item nodes [n, d] after propagation. A node without an edge keeps 1 / (layers + 1) of it."""
        ego = torch.cat([user, item[graph.nodes]])
        final: Tensor = _Convolution.apply(ego, graph.matrix, self.layers)  # type: ignore[no-untyped-call]
        # Of the mean over layers such a node has its own row in the first place and zeros in the others.
        alone = item / (self.layers + 1)
        return final[: len(user)], alone.index_copy(0, graph.nodes, final[len(user) :])
