"""The similarity C_k = E_k E_k' of item tables: what silos send of it every round, its mean, and alignment to that."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fedrec import method as fm
from fedrec.methods.silo.similarity import (
    Descent,
    Distance,
    LowRank,
    mean_factor,
    mean_matrix,
    shorten,
    shorten_matrix,
)
from fedrec.methods.silo.upload_form import WHOLE, UploadForm

KEY, SERVER = "key", 3  # the server's own randomness; it is not sent


@dataclass(frozen=True)
class TableExchange:
    form: UploadForm
    server_rank: int  # of C_s as it comes down; 0: twice the widest table, at least 512
    steps: int  # of alignment
    rate: float
    distance: Distance

    def start(self, world: fm.World, widths: Sequence[int]) -> fm.Tensors:
        """Return C_s = 0, where every client's table has one of these widths."""
        kind: dict[str, Any] = {"dtype": world.dtype, "device": world.device}
        whole = self.form.forms_matrices(world)
        rank = world.items if whole else self._down_rank(world, widths)
        nothing = LowRank(torch.eye(world.items, rank, **kind), torch.zeros(rank, **kind), torch.zeros(1, **kind))
        # Only the randomised factorisation draws, and whole matrices need none.
        key = {} if whole else {KEY: torch.tensor([fm.random.stream(world.seed, fm.random.Purpose.INIT, SERVER) >> 1])}
        return _by_name(nothing) | key

    def _down_rank(self, world: fm.World, widths: Sequence[int]) -> int:
        columns = sum(self._upload_rank(world, width) for width in widths)
        return min(self.server_rank or max(2 * max(widths), 512), columns, world.items)

    def _upload_rank(self, world: fm.World, width: int) -> int:
        """Return the columns of one client's factor."""
        full = world.items if self.form.forms_matrices(world) else width
        return min(self.form.rank or full, full)

    def upload(self, table: Tensor, chunk: fm.Chunk, round: int) -> fm.Uploads:
        """Send C_k = E_k E_k' with noise, or its leading eigenvectors and eigenvalues (sections 5.2.2, 5.2.5)."""
        columns = self._upload_rank(chunk.world, table.shape[-1])
        if not self.form.forms_matrices(chunk.world):
            vectors, values, lost = shorten(table, columns)
        else:
            matrix = self.form.add_noise(table @ table.mT, chunk, round)
            if not self.form.rank:
                return {"similarity": fm.Sum(matrix)}
            vectors, values, lost = shorten_matrix(matrix, columns)
        chunk.observe("upload_error", float(lost.sum()), len(lost))
        return {"vectors": fm.Gather(vectors), "values": fm.Gather(values)}

    def mean(self, server: fm.Tensors, ups: fm.Ups, round: int) -> fm.Tensors:
        """Return C_s = 1/K sum_k C_k (section 5.2.3), as its eigenvectors and eigenvalues."""
        if "similarity" in ups:
            return _by_name(LowRank.from_matrix(ups["similarity"] / len(ups.clients)))
        if "vectors" not in ups.gathered:
            return server
        factors = [
            (vectors, values)
            for (_, many), (_, sizes) in zip(ups.gathered["vectors"], ups.gathered["values"], strict=True)
            for vectors, values in zip(many, sizes, strict=True)
        ]
        if KEY not in server:
            return _by_name(LowRank.from_matrix(mean_matrix(factors)))
        mean = mean_factor(factors, len(server["values"]), int(server[KEY]) + round, WHOLE)
        return _by_name(mean) | {KEY: server[KEY]}

    def align(self, table: Tensor, shared: fm.Tensors, chunk: fm.Chunk, weight_decay: float) -> Tensor:
        """Take the gradient steps of equation 6 on the `distance` of E_k E_k' from C_s, there its mean square."""
        descent = Descent(self.steps, self.rate, weight_decay, self.distance, table.shape[-2])
        target = LowRank(shared["vectors"], shared["values"], shared["tail"])
        whole = self.form.forms_matrices(chunk.world)

        def descend(mine: Tensor) -> Tensor:
            if self.form.mode == "lowrank":
                return descent.align(mine, target)
            return descent.align_within(mine, target, complete=whole)

        # one table stays in the cache of a processor, where all of a chunk would not
        return torch.stack([descend(mine) for mine in table]) if table.device.type == "cpu" else descend(table)

    def scores(self, own: Tensor, shared: fm.Tensors, chunk: fm.Chunk, items: Tensor) -> Tensor:
        """Return those of the silo's own model: C_s has done its work."""
        return own


def _by_name(mean: LowRank) -> fm.Tensors:
    return {"vectors": mean.vectors, "values": mean.values, "tail": mean.tail}
