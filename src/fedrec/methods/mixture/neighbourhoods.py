"""Means over the neighbours of every client in a graph, by what neighbourhoods have in common.

Alike clients have nearly the same neighbours. From nobody, the smallest steps lead from one neighbourhood to the next
(a minimum spanning tree of the neighbourhoods, by the number of clients in which two differ), and a sum follows from
that of its parent by the members in which they differ: a few tables for each client instead of all.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from fedrec.federation.accumulator import sum_in_double
from fedrec.federation.stack import Stack
from fedrec.methods.mixture.aggregation import mix
from fedrec.training.compiled import CompiledKernel, find_kernel


@dataclass(frozen=True)
class Neighbourhoods:
    """`near[u, v]`: v is a neighbour of u. Everybody has some."""

    near: Tensor

    def means(self, tables: Tensor | Stack, out: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Every client's mean over its neighbours, in `out` where there is one, and the mean of these in float64."""
        stack = Stack.wrap(tables)
        kernel = find_kernel("neighbours", stack.device)
        if kernel is None:
            mixed = mix(self.near.double() / self.near.sum(1, keepdim=True), stack)
            return mixed, sum_in_double(mixed) / len(mixed)
        mixed = torch.empty(stack.shape, dtype=stack.dtype) if out is None else out
        return mixed, self._by_steps(kernel, stack, mixed)

    def _by_steps(self, kernel: CompiledKernel, stack: Stack, mixed: Tensor) -> Tensor:
        flat, total = mixed.view(len(mixed), -1), torch.zeros(stack.width, dtype=torch.float64)
        for columns, part in stack.runs():
            kernel(part, *self._steps, columns.start, flat, total)
        return (total / len(mixed)).view(mixed.shape[1:])

    @cached_property
    def _steps(self) -> tuple[tuple[np.ndarray, ...], np.ndarray]:
        """As `kernels.neighbours` takes them: order, parents, where steps begin, their members and signs, sizes of the
        neighbourhoods that differ from each other; and every client's among them."""
        place = number_distinct(self.near.numpy())
        near = self.near.numpy()[np.unique(place, return_index=True)[1]]
        order, parent = spanning_tree(near)
        changed = near ^ np.vstack([near, np.zeros_like(near[:1])])[parent]
        which, member = changed.nonzero()
        first = np.searchsorted(which, np.arange(len(near) + 1))
        sign = np.where(near[which, member], 1.0, -1.0)
        return (order, parent, first, member, sign, near.sum(1)), place


def number_distinct(sets: np.ndarray) -> np.ndarray:
    """Of every row of a boolean matrix, its number among those that differ, in order of appearance."""
    numbers: dict[bytes, int] = {}
    return np.array([numbers.setdefault(row.tobytes(), len(numbers)) for row in np.packbits(sets, axis=1)], np.int64)


def spanning_tree(sets: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """From nobody to every row of a boolean matrix by the fewest changes: an order, and the row before each.

    Nobody's number is that behind all rows.
    """
    nobody, real = len(sets), sets.astype(np.float32)
    size = real.sum(1)
    order, parent, away = np.empty(nobody, np.int64), np.full(nobody, nobody), size.copy()
    # As a product of matrices: comparing all pairs of rows bit by bit would hold a cube of numbers.
    apart = size[:, None] + size - 2 * (real @ real.T)  # whole numbers, exact in this type
    waiting = np.ones(nobody, dtype=bool)
    for k in range(nobody):
        u = order[k] = np.where(waiting, away, np.inf).argmin()
        waiting[u] = False
        closer = waiting & (apart[u] < away)
        parent[closer], away[closer] = u, apart[u, closer]
    return order, parent
