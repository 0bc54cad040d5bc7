"""How all rows of a table repel each other in a supervised contrastive loss: O(m^2 d) per client, block by block.

For normalised rows z, temperature tau and weights w of the rows, with P_ia = exp(z_i.z_a / tau) / D_i for a != i,

    log D_i = log sum_a exp(z_i.z_a / tau),   and   sum_a (w_i P_ia + w_a P_ai) z_a,

the gradient of the weighted sum of the former by z_i, times tau. Similarities are symmetric: those of two blocks of
rows are computed once and serve both, where one exponent serves all rows and memory has room for a triangle.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from fedrec.training.compiled import TILE, CompiledKernel, find_kernel

Form = Literal["paper", "released"]

FLOOR = 1e-6  # released: added to the sum in the logarithm and to |P(i)|
SPAN = {torch.float32: 80.0, torch.float64: 700.0}  # exponents 0 .. -SPAN are far from underflow
WIDEST = 256  # numbers of a row that a kernel of an accelerator takes
ROWS = 256  # of a block: large enough for matrix products, small enough to stay in a cache


@dataclass(frozen=True)
class Repulsion:
    temperature: float
    form: Form
    memory: int  # bytes of similarities held at once
    compiled: bool  # let passes over similarities be compiled where they can be

    @property
    def floor(self) -> float:
        return FLOOR if self.form == "released" else 0.0

    def clients(self, tables: Tensor) -> int:
        """How many clients' similarities [clients, items, d] fit into memory, at least one."""
        if self._loss_kernel(tables) is not None:
            return len(tables)
        return max(1, self.room(tables))

    def room(self, tables: Tensor) -> int:
        """How many times all similarities of one client fit into memory."""
        return self.memory // (self.size(tables) * tables.element_size())

    def space(self, tables: Tensor) -> Tensor | None:
        """Memory for the similarities of these clients, to be used again and again; None: they come row by row."""
        fits = self._shares_exponent(tables) and self.room(tables) > 0
        return tables.new_empty(len(tables) * self.size(tables)) if fits and self._loss_kernel(tables) is None else None

    def size(self, tables: Tensor) -> int:
        """Numbers in the triangle of one client's similarities, and in a block beside it; or in all tiles of it."""
        items = tables.shape[1]
        tiles = -(-items // TILE)
        return int(max(items * (items + 3 * min(ROWS, items)) // 2, TILE * TILE * tiles * (tiles + 1) // 2))

    def _shares_exponent(self, tables: Tensor) -> bool:
        """Whether that of a row's similarity to itself serves for all others."""
        return self.form == "released" or 2 / self.temperature <= SPAN[tables.dtype]

    def _loss_kernel(self, tables: Tensor) -> CompiledKernel | None:
        """A kernel of many clients at once, which holds no similarities."""
        fits = self.compiled and tables.dtype == torch.float32 and tables.shape[-1] <= WIDEST
        return find_kernel("contrast_repulsion", tables.device, fits) if self._shares_exponent(tables) else None

    def whole_loss(self, tables: Tensor) -> CompiledKernel | None:
        """A kernel of one client's loss and gradient, which works in `space`."""
        fits = self.compiled and tables.dtype == torch.float32 and self._shares_exponent(tables)
        return find_kernel("contrast", tables.device, fits)

    def __call__(self, z: Tensor, weight: Tensor, space: Tensor | None) -> tuple[Tensor, Tensor]:
        kernel = self._loss_kernel(z)
        if kernel is not None:
            log_sum, pull = kernel(z, weight, 1 / self.temperature, self.floor, -SPAN[z.dtype])
            return log_sum + 1 / self.temperature, pull
        return self._rows(z, weight) if space is None else self._triangle(z, weight, space)

    # -- one exponent for all rows: P_ia = E_ia / D_i for a symmetric E, so P_ia + P_ai = E_ia (1 / D_i + 1 / D_a) --

    def _triangle(self, z: Tensor, weight: Tensor, space: Tensor) -> tuple[Tensor, Tensor]:
        """From blocks on and above the diagonal."""
        clients, items, tau = *z.shape[:2], self.temperature
        starts, scaled, total, blocks = range(0, items, ROWS), z.mT / tau, torch.zeros_like(z[..., 0]), []
        for start in starts:
            stop = min(start + ROWS, items)
            shape = (clients, stop - start, items - start)
            e, space = space[: math.prod(shape)].view(shape), space[math.prod(shape) :]
            torch.bmm(z[:, start:stop], scaled[..., start:], out=e)
            self._exponentials(e, total[:, start:])
            blocks.append(e)
        total = _positive(total + self.floor, weight)
        by, pull = weight / total, torch.zeros_like(z)
        for start, e in zip(starts, blocks, strict=True):
            stop = min(start + ROWS, items)
            e *= torch.add(by[:, start:stop, None], by[:, None, start:], out=space[: e.numel()].view(e.shape))
            pull[:, start:stop].baddbmm_(e, z[:, start:])
            pull[:, stop:].baddbmm_(e[..., stop - start :].mT, z[:, start:stop])
        return total.log() + 1 / tau, pull

    def _exponentials(self, e: Tensor, total: Tensor) -> None:
        """Similarities to E, in place; its sums over rows, and over columns beyond the square, are added to total."""
        square = e.shape[1]
        self._exp(e.sub_(1 / self.temperature), slice(0, square))
        total[:, :square] += e.sum(2)
        total[:, square:] += e[..., square:].sum(1)

    # -- each row with its own largest exponent, unless the form forbids it --

    def _rows(self, z: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
        """Row block by row block."""
        items, tau = z.shape[1], self.temperature
        log_sum, pull = torch.empty_like(z[..., 0]), torch.zeros_like(z)
        step = max(1, min(ROWS, self.memory // (len(z) * items * z.element_size())))
        for start in range(0, items, step):
            stop = min(start + step, items)
            e = z[:, start:stop] @ z.mT / tau
            e[..., start:stop].diagonal(dim1=1, dim2=2).fill_(-torch.inf)  # before the maximum is taken
            top = e.amax(2, keepdim=True) if self.form == "paper" else torch.full_like(e[..., :1], 1 / tau)
            e -= torch.where(top.isfinite(), top, torch.zeros_like(top))
            self._exp(e, slice(start, stop))
            total = _positive(e.sum(2) + self.floor, weight[start:stop])
            log_sum[:, start:stop] = total.log() + top.squeeze(2)
            by = (weight[start:stop] / total)[..., None]
            pull[:, start:stop] += by * (e @ z)
            pull += e.mT @ (by * z[:, start:stop])
        return torch.where(weight > 0, log_sum, torch.zeros_like(log_sum)), pull

    def _exp(self, exponent: Tensor, own: slice) -> None:
        """In place; 0 where rows meet themselves. What would underflow is held just above: there, exp is slow."""
        span = SPAN[exponent.dtype]
        if 2 / self.temperature > span:
            exponent.clamp_(min=-span)
        exponent.exp_()
        exponent[..., own].diagonal(dim1=1, dim2=2).zero_()


def _positive(total: Tensor, weight: Tensor) -> Tensor:
    """1 where a row has no weight, whose sum may be empty."""
    return torch.where(weight > 0, total, torch.ones_like(total))
