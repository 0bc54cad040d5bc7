"""The filters of GF-CF in the place of similarities: exchanged once, whole with noise, or as factors.

A factor is (V, singular values, item counts) of a silo's normalised rows; see `models/gfcf.py`. With as many columns as
the largest silo has users it is exact.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedrec import method as fm
from fedrec.methods.silo.upload_form import UploadForm
from fedrec.models.gfcf import GFCF, round_scores

RANK = 128  # columns of a factor where none are asked for and nobody knows how large silos are


@dataclass(frozen=True)
class FilterExchange:
    form: UploadForm
    backbone: GFCF
    beta: float  # weight of the global filter

    def start(self, world: fm.World, widths: Sequence[int]) -> fm.Tensors:
        kind: dict[str, Any] = {"dtype": world.dtype, "device": world.device}
        if self.form.forms_matrices(world):
            return {"filter": torch.zeros(world.items, world.items, **kind)}
        rank = self._rank(world)
        return {
            "vectors": torch.zeros(world.clients, world.items, rank, **kind),
            "values": torch.zeros(world.clients, rank, **kind),
            "counts": torch.zeros(world.clients, world.items, **kind),
        }

    def _rank(self, world: fm.World) -> int:
        return min(self.form.rank or world.most_users or RANK, world.items)

    def upload(self, table: Tensor, chunk: fm.Chunk, round: int) -> fm.Uploads:
        """Send F_k, from the silo's rows; there is no table."""
        rows, ends, world = chunk.matrix(), chunk.client_ptr, chunk.world
        mine = [rows[ends[k] : ends[k + 1]] for k in range(len(chunk.clients))]
        if self.form.forms_matrices(world):
            whole = np.stack([self.backbone.fit(part).dense() for part in mine])
            return {"filter": fm.Sum(self.form.add_noise(chunk.tensor(whole).to(world.dtype), chunk, round))}
        factors, lost = zip(*(self.backbone.factorise(part, self._rank(world)) for part in mine), strict=True)
        chunk.observe("upload_error", sum(lost), len(lost))
        vectors, values, counts = (chunk.tensor(np.stack(part)).to(world.dtype) for part in zip(*factors, strict=True))
        return {"vectors": fm.Gather(vectors), "values": fm.Gather(values), "counts": fm.Gather(counts)}

    def mean(self, server: fm.Tensors, ups: fm.Ups, round: int) -> fm.Tensors:
        """Return F_s = 1/K sum_k F_k (section 5.3.1); factors are kept apart and meet the rows of whoever scores."""
        if "filter" in ups:
            return {"filter": ups["filter"] / len(ups.clients)}
        if "vectors" not in ups:
            return server
        new = {name: value.clone() for name, value in server.items()}
        for name, value in new.items():
            ids, sent = ups.stacked(name)
            value[torch.from_numpy(ids)] = sent
        return new

    def align(self, table: Tensor, shared: fm.Tensors, chunk: fm.Chunk, weight_decay: float) -> Tensor:
        """Return what is there: there is no table to move."""
        return table

    def scores(self, own: Tensor, shared: fm.Tensors, chunk: fm.Chunk, items: Tensor) -> Tensor:
        """Return A_k F_k + beta A_k F_s (section 5.3.2)."""
        rows = chunk.matrix()
        if "filter" in shared:
            others = rows @ shared["filter"].double().cpu().numpy()
        else:
            sent = (shared[name].double().cpu().numpy() for name in ("vectors", "values", "counts"))
            others = self.backbone.apply_mean(rows, *sent)
        total = own + self.beta * chunk.tensor(others)[:, items]
        return chunk.tensor(round_scores(total.cpu().numpy()))
