"""Item-item similarity C = E E' of item tables (rows are items): averaging it, shortening it, moving towards it.

The server's average is C_s = P diag(s) P' with orthonormal columns P, of which a tail may have been cut off. With
G = E'E the squared distance and its gradient need no items x items matrix:

    f(E) = |E E' - C_s|^2 = tr(G G) - 2 tr(E' C_s E) + |C_s|^2        grad f = 4 (E G - C_s E)

Gradient steps with weight decay never leave the span of P and the table they start from. In coordinates of that span
(`align_within`) C_s is diagonal, and a step depends on the number of items only where P has as many columns.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, Protocol

import torch
from torch import Tensor
from torch.nn.functional import pad

from fedrec.random import normal

Distance = Literal["fro_norm", "mse", "mse_literal"]
# Of the randomised factorisation (Halko et al., SIAM Review 2011): columns beyond the rank, power iterations, and
# vectors that probe what is left.
OVERSAMPLING, REPEATS, PROBES = 16, 2, 32
TINY = 1e-15  # part of the squares below which a distance counts as rounding


class Target(Protocol):
    """C_s, as far as alignment needs it."""

    @property
    def square(self) -> Tensor:
        """|C_s|^2."""
        ...

    def times(self, table: Tensor) -> Tensor:
        """C_s E for a table, or several."""
        ...


@dataclass(frozen=True)
class LowRank:
    """P diag(s) P', and the sum of squares of the eigenvalues that were cut off."""

    vectors: Tensor
    values: Tensor
    tail: Tensor

    @staticmethod
    def from_matrix(matrix: Tensor) -> LowRank:
        """Decompose a matrix, which noise may have made asymmetric: the symmetric part pulls, the rest is distance."""
        # In double: an eigenvector belongs to a small gap between eigenvalues, which single precision would blur.
        whole = matrix.double()
        values, vectors = torch.linalg.eigh(0.5 * (whole + whole.T))
        tail = (0.5 * (whole - whole.T)).square().sum().reshape(1)
        return LowRank(*(part.to(matrix.dtype) for part in (vectors, values, tail)))

    @property
    def square(self) -> Tensor:
        return self.values.double().square().sum() + self.tail.double().sum()

    def times(self, table: Tensor) -> Tensor:
        return self.vectors @ (self.values[:, None] * (self.vectors.T @ table))


@dataclass(frozen=True)
class Descent:
    """Plain gradient descent on the distance to C_s."""

    steps: int
    rate: float
    decay: float
    distance: Distance
    items: int

    def align(self, table: Tensor, target: Target) -> Tensor:
        """Return the tables [..., items, d] after all steps."""
        first: Tensor | None = None
        for _ in range(self.steps):
            gram = table.mT @ table
            pulled = target.times(table)
            norm = distance(table, gram, pulled, target.square)
            first = norm if first is None else first
            # Only the step is rounded to the type of the table: distances keep their digits up to here.
            step = (self.rate * self._scale(norm, first)).to(table.dtype)[..., None, None]
            moved = table @ (-step * gram)  # the small matrix is the one to scale
            table = moved.addcmul_(pulled, step).add_(table, alpha=1 - self.rate * self.decay)
        return table

    def _scale(self, norm: Tensor, first: Tensor) -> Tensor:
        """Return what 4 (E G - C_s E) = grad f is divided by, as a factor of E G - C_s E.

        The released code descends the norm itself; the paper writes the mean square, at whose scale the same rate does
        nothing (`mse_literal`). `mse` gives it a first step of the released length, and never a longer one.
        """
        if self.distance == "mse_literal":
            return torch.full_like(norm, 4.0 / self.items**2)
        return 2.0 / (norm if self.distance == "fro_norm" else torch.maximum(norm, first))

    def align_within(self, table: Tensor, target: LowRank, complete: bool = False) -> Tensor:
        """Take the same steps in coordinates of span(P, table); `complete`: the columns of P span everything."""
        inside = target.vectors.T @ table
        if complete:
            return target.vectors @ self.align(inside, _Within(target.values, target.square))
        # What P does not reach is kept in coordinates of its own: C_s pulls it to zero, and decay shrinks it.
        basis, rest = torch.linalg.qr(table - target.vectors @ inside)
        rank, untouched = len(target.values), rest.shape[-2]
        within = _Within(pad(target.values, (0, untouched)), target.square)
        moved = self.align(torch.cat([inside, rest], -2), within)
        return target.vectors @ moved[..., :rank, :] + basis @ moved[..., rank:, :]


@dataclass(frozen=True)
class _Within:
    """C_s in coordinates of its own eigenvectors, and of directions with eigenvalue zero that it does not touch."""

    values: Tensor
    square: Tensor

    def times(self, table: Tensor) -> Tensor:
        return self.values[:, None] * table


def distance(table: Tensor, gram: Tensor, pulled: Tensor, square: Tensor) -> Tensor:
    """Return |E E' - C_s|, in float64: near the optimum it is a small difference of large numbers."""
    own = gram.double().square().sum((-2, -1))
    shared = (table * pulled).sum((-2, -1), dtype=torch.float64)
    # Clamped relative to its parts: rounding can make the difference negative, and a step divides by the root.
    return (own - 2 * shared + square).clamp(min=TINY * (own + square)).sqrt()


# -- what a client sends, short --


def shorten(table: Tensor, rank: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return the best C of this rank: vectors [..., items, rank], eigenvalues, and the part of |C| that is lost.

    From the d x d matrix G = W L W': E W has orthogonal columns with squared norms L, and E W (E W)' = C.
    """
    # Of the d x d matrix, not of the items x items one: both have the same eigenvalues other than zero.
    values, rotation = torch.linalg.eigh(table.double().mT @ table.double())
    values, rotation = values.flip(-1).clamp(min=0), rotation.flip(-1)
    length = values.sqrt()[..., None, :rank]
    vectors = (table.double() @ rotation[..., :rank]) / torch.where(length > 0, length, torch.ones_like(length))
    return vectors.to(table.dtype), values[..., :rank].to(table.dtype), _lost_share(values, rank)


def shorten_matrix(matrix: Tensor, rank: int) -> tuple[Tensor, Tensor, Tensor]:
    """Do the same for the symmetric part of any matrix: the eigenvalues of largest size, with their signs."""
    values, vectors = torch.linalg.eigh(0.5 * (matrix + matrix.mT).double())
    # By size and not by value: noise makes some negative, and the best C of a rank keeps the largest of either sign.
    order = values.abs().argsort(descending=True, stable=True)
    values = values.gather(-1, order)
    vectors = vectors.gather(-1, order[..., None, :].expand(vectors.shape))
    return vectors[..., :rank].to(matrix.dtype), values[..., :rank].to(matrix.dtype), _lost_share(values, rank)


def _lost_share(values: Tensor, rank: int) -> Tensor:
    whole = values.square().sum(-1)
    return (values[..., rank:].square().sum(-1) / whole.clamp(min=1e-300)).sqrt()


# -- what the server makes of it --

Factor = tuple[Tensor, Tensor]  # vectors [items, q] and eigenvalues [q]


def mean_matrix(factors: list[Factor]) -> Tensor:
    """Return the mean as a whole matrix."""
    total = sum(((v * s) @ v.T for v, s in factors), torch.zeros(()))
    return torch.as_tensor(total) / len(factors)


def mean_factor(factors: list[Factor], rank: int, key: int, whole: int) -> LowRank:
    """Return the mean's eigenvectors of largest eigenvalue, and the tail; all eigenvalues sent must be at least zero.

    Exactly where the columns together, or the items, are at most `whole`; else by a randomised range finder, which
    goes through the factors client by client. There the tail, which only sets the length of steps, is estimated.
    """
    items, columns = factors[0][0].shape[0], sum(len(s) for _, s in factors)
    roots = _Roots(factors)
    # The exact ways first, each through the smaller square matrix; they need no draws.
    if columns <= min(items, whole):
        mean = _decompose_columns(torch.cat(list(roots), 1).double(), rank)
    elif items <= whole:
        matrix = sum((b.double() @ b.double().T for b in roots), torch.zeros(()))
        values, vectors = torch.linalg.eigh(torch.as_tensor(matrix))
        mean = _cut_off(values, vectors, rank)
    else:
        mean = _find_range(roots, rank, key)
    dtype, missing = factors[0][0].dtype, rank - len(mean.values)
    # zeros stand for eigenvalues that do not exist, so that the size never depends on who took part
    vectors, values = (pad(part, (0, missing)).to(dtype) for part in (mean.vectors, mean.values))
    return LowRank(vectors, values, mean.tail.to(dtype))


@dataclass(frozen=True)
class _Roots:
    """B_k with sum_k B_k B_k' = C_s, made one at a time: together they are as large as all uploads."""

    factors: list[Factor]

    def __iter__(self) -> Iterator[Tensor]:
        for vectors, values in self.factors:
            # Clamped, because rounding on the way can leave an eigenvalue of zero slightly below.
            yield vectors * values.clamp(min=0).sqrt() / len(self.factors) ** 0.5


def _cut_off(values: Tensor, vectors: Tensor, rank: int) -> LowRank:
    """Return the largest of all eigenvalues (given in ascending order)."""
    values, vectors = values.flip(0).clamp(min=0), vectors.flip(1)
    return LowRank(vectors[:, :rank], values[:rank], values[rank:].square().sum().reshape(1))


def _decompose_columns(columns: Tensor, rank: int) -> LowRank:
    """Return eigenvectors of B B' from those of B'B; directions without length are left out."""
    values, rotation = torch.linalg.eigh(columns.T @ columns)
    kept = values > 1e-12 * values[-1:].clamp(min=1e-300)  # squares: what rounding leaves of an exact zero is 1e-16
    cut = _cut_off(values[kept], rotation[:, kept], rank)
    basis, upper = torch.linalg.qr(columns @ (cut.vectors / cut.values.sqrt()))  # small ones are not quite orthogonal
    # QR is free to turn columns around; with the sign they stay as they were decomposed.
    return LowRank(basis * upper.diagonal().sign(), cut.values, cut.tail)


def _find_range(roots: _Roots, rank: int, key: int) -> LowRank:
    one = roots.factors[0][0]
    items = len(one)
    width = min(items, rank + OVERSAMPLING)
    draws = normal(key, torch.arange(items * (width + PROBES), device=one.device), one.dtype)
    basis, probes = draws.reshape(items, -1).split([width, PROBES], 1)
    for _ in range(1 + REPEATS):
        # Orthogonal again after every power: otherwise all columns would lean to the largest eigenvector.
        basis = torch.linalg.qr(_multiply(roots, basis))[0]
    small = basis.new_zeros(width, width, dtype=torch.float64)
    for root in roots:
        inner = (basis.T @ root).double()
        small += inner @ inner.T
    values, rotation = torch.linalg.eigh(small)
    cut = _cut_off(values, rotation, rank)
    vectors = basis @ cut.vectors.to(basis.dtype)
    beyond = _multiply(roots, probes)
    # Of normal probes the mean square of what remains is, on average, the sum of squared eigenvalues cut off.
    beyond = beyond - vectors @ (vectors.T @ beyond)
    return LowRank(vectors, cut.values, (beyond.double().square().sum() / PROBES).reshape(1))


def _multiply(roots: _Roots, table: Tensor) -> Tensor:
    """Return C_s E, client by client."""
    total = torch.zeros_like(table)
    for root in roots:
        total += root @ (root.T @ table)
    return total
