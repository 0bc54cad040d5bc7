"""The filters of GF-CF in the place of similarities: exchanged once, whole with noise, or as factors.

A factor is (V, singular values, item counts) of a silo's normalised rows; see `models/gfcf.py`. With as many columns as
the largest silo has users it is exact.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.sparse as sp
import torch
from torch import Tensor

from fedrec.federation.clients import Chunk
from fedrec.federation.contract import Gather, Reduction, Sum, Tensors, Ups, World
from fedrec.methods.silo.upload_form import UploadForm
from fedrec.models.gfcf import GFCF, rounded, scales, singular

RANK = 128  # columns of a factor where none are asked for and nobody knows how large silos are


@dataclass(frozen=True)
class FilterExchange:
    form: UploadForm
    backbone: GFCF
    beta: float  # weight of the global filter

    def start(self, world: World, widths: Sequence[int]) -> Tensors:
        kind: dict[str, Any] = {"dtype": world.dtype, "device": world.device}
        if self.form.whole(world):
            return {"filter": torch.zeros(world.items, world.items, **kind)}
        rank = self._rank(world)
        return {
            "vectors": torch.zeros(world.clients, world.items, rank, **kind),
            "values": torch.zeros(world.clients, rank, **kind),
            "counts": torch.zeros(world.clients, world.items, **kind),
        }

    def _rank(self, world: World) -> int:
        return min(self.form.rank or world.most_users or RANK, world.items)

    def upload(self, table: Tensor, chunk: Chunk, round: int) -> dict[str, Reduction]:
        """F_k, from the silo's rows; there is no table."""
        rows, ends, world = chunk.matrix(), chunk.client_ptr, chunk.world
        mine = [rows[ends[k] : ends[k + 1]] for k in range(len(chunk.clients))]
        if self.form.whole(world):
            whole = np.stack([self.backbone.fit(part).dense() for part in mine])
            return {"filter": Sum(self.form.noised(chunk.tensor(whole).to(world.dtype), chunk, round))}
        parts = [self._factor(part, self._rank(world), chunk) for part in mine]
        vectors, values, counts = (chunk.tensor(np.stack(part)).to(world.dtype) for part in zip(*parts, strict=True))
        return {"vectors": Gather(vectors), "values": Gather(values), "counts": Gather(counts)}

    def _factor(self, rows: sp.csr_matrix, rank: int, chunk: Chunk) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Singular vectors and values of R, and item counts. What a silo has fewer of is zero."""
        normal, counts = self.backbone.normalise(rows)
        vectors, values = singular(normal, rank)
        whole, kept = float(normal.multiply(normal).sum()), float((values**2).sum())
        chunk.observe("upload_error", max(whole - kept, 0.0) / max(whole, 1e-300), 1)
        padding = rank - len(values)
        return np.pad(vectors, ((0, 0), (0, padding))), np.pad(values, (0, padding)), counts

    def mean(self, server: Tensors, ups: Ups, round: int) -> Tensors:
        """F_s = 1/K sum_k F_k (section 5.3.1); factors are kept apart and meet the rows of whoever scores."""
        if "filter" in ups:
            return {"filter": ups["filter"] / len(ups.clients)}
        if "vectors" not in ups:
            return server
        new = {name: value.clone() for name, value in server.items()}
        for name, value in new.items():
            ids, sent = ups.stacked(name)
            value[torch.from_numpy(ids)] = sent
        return new

    def align(self, table: Tensor, shared: Tensors, chunk: Chunk, weight_decay: float) -> Tensor:
        """There is no table to move."""
        return table

    def scores(self, own: Tensor, shared: Tensors, chunk: Chunk, items: Tensor) -> Tensor:
        """A_k F_k + beta A_k F_s (section 5.3.2)."""
        rows = chunk.matrix()
        if "filter" in shared:
            others = rows @ shared["filter"].double().cpu().numpy()
        else:
            others = self._apply(rows, {name: value.double().cpu().numpy() for name, value in shared.items()})
        total = own + self.beta * chunk.tensor(others)[:, items]
        return chunk.tensor(rounded(total.cpu().numpy()))

    def _apply(self, rows: sp.csr_matrix, sent: dict[str, np.ndarray]) -> np.ndarray:
        """A F_s from all silos' factors, without any matrix of items x items."""
        client, column = np.nonzero(sent["values"])
        vectors = sent["vectors"][client, :, column].T  # [items, all columns of all silos]
        linear = (rows @ vectors) * sent["values"][client, column] ** 2 @ vectors.T
        ideal = column < self.backbone.frequencies
        into, out = (np.stack(part) for part in zip(*map(scales, sent["counts"]), strict=True))
        low = vectors[:, ideal]
        passed = (rows @ (low * into[client[ideal]].T)) @ (low * out[client[ideal]].T).T
        return np.asarray((linear + self.backbone.ideal_weight * passed) / len(sent["values"]))
