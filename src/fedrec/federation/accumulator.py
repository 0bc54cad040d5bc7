"""Sums and means over clients, folded in as uploads arrive, in float64 so that the size of chunks hardly shows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

import numpy as np
import torch
from torch import Tensor

from fedrec.errors import FedrecError
from fedrec.federation.contract import Gather, Mean, PartialSum, Reduction, Rows, Upload
from fedrec.federation.messages import content
from fedrec.federation.noise import Noise, SumContext, SumGaussian, to_dense, upload_name
from fedrec.federation.update import Update, distinct
from fedrec.kernels.device import beside

BLOCK = 1 << 14  # rows converted to double at a time, so that the copy stays small beside the uploads
# Numbers converted to double at a time: 8 MB stay in a processor's cache, a GPU needs more work than that per launch.
DOUBLES_ON_CPU, DOUBLES_ON_DEVICE = 1 << 20, 1 << 26


class Accumulator:
    """Uploads of a round as they arrive: sums and means are folded in at once, only `Gather` is kept apart."""

    def __init__(self) -> None:
        self._totals: dict[str, Tensor] = {}
        self._weights: dict[str, float] = {}
        self._means: set[str] = set()
        self._gathered: dict[str, list[tuple[np.ndarray, Tensor]]] = {}
        self._clients: list[np.ndarray] = []
        self.owed: Counter[tuple[str, int]] = Counter()  # by sum and stage: clients whose noise it is still to get
        self.shapes: dict[tuple[str, str], tuple[int, ...]] = {}  # of one client's upload, by cohort and name

    def add(self, payload: dict[str, Reduction], clients: np.ndarray, cohort: str, late: Iterable[int] = ()) -> None:
        """`late`: stages, by number, whose noise these clients' sums are still to get."""
        self._clients.append(clients)
        for name, reduction in payload.items():
            if isinstance(reduction, Gather):
                self._gathered.setdefault(name, []).append((clients, to_dense(reduction.value)))
                continue
            key = f"{name}@{cohort}" if reduction.by_cohort else name
            weight = reduction.weight if isinstance(reduction, Mean) else None
            total = sum_uploads(reduction.value, weight)
            self._totals[key] = self._totals[key] + total if key in self._totals else total
            self._weights[key] = self._weights.get(key, 0.0) + _total_weight(weight, len(clients))
            if isinstance(reduction, Mean):
                self._means.add(key)
            self.owed.update({(key, stage): len(clients) for stage in late})

    def add_deferred_noise(self, noise: Noise, stage: int, where: SumContext) -> None:
        """The noise of a stage that clients left to the sums."""
        for (key, owed), clients in self.owed.items():
            if owed == stage and noise.reaches(upload_name(key)):
                self._totals[key] = noise.add_to_sum(key, self._totals[key], clients, where)

    def add_noise_to_sums(self, noise: SumGaussian, where: SumContext) -> None:
        """These clients' share of the noise on the sums; it hides no mean's weights and no single upload."""
        if self._gathered:
            raise FedrecError("privacy stage 'sum-gaussian' is for sums and means; use gaussian with this method")
        if any("@" in key for key in self._totals):
            raise FedrecError(
                "privacy stage 'sum-gaussian' is for sums over all clients of a round, and this method has one for "
                "each cohort; use gaussian"
            )
        self._totals = {key: noise.add_share_to_sum(key, total, where) for key, total in self._totals.items()}

    @property
    def clients(self) -> np.ndarray:
        """Whose uploads have arrived so far."""
        return distinct(self._clients)

    def update(self) -> Update:
        return Update(self._totals, self._weights, frozenset(self._means), self._gathered, self.clients)


def sum_uploads(value: Upload, weight: Tensor | None) -> Tensor:
    """Sum over clients in float64, so that the size of chunks hardly shows."""
    if isinstance(value, PartialSum):
        # A kernel summed only changes, so the base is added as often as there are weights.
        return torch.add(value.total, value.base, alpha=_total_weight(weight, value.clients))
    near = None if weight is None else beside(weight, content(value).device)
    if isinstance(value, Rows):
        if value.shift is not None and value.towards is not None:
            return _sum_shifted_tables(value, value.shift, value.towards, near)
        # Changes are summed rather than tables, because most rows are the base and need no work for each client.
        change = (value.value - value.base[value.item]).double()
        if near is not None:
            change *= near.double()[value.owner, None]
        return (value.base.double() * _total_weight(weight, value.clients)).index_add_(0, value.item, change)
    return sum_in_double(value, near)


def _total_weight(weight: Tensor | None, clients: int) -> float:
    """All weights together."""
    return clients if weight is None else float(weight.sum())


def sum_in_double(value: Tensor, weight: Tensor | None = None) -> Tensor:
    """The weighted sum over the leading axis in float64, without a copy of all in that type."""
    total = torch.zeros(value.shape[1:], dtype=torch.float64, device=value.device)
    step = max(1, (DOUBLES_ON_CPU if value.device.type == "cpu" else DOUBLES_ON_DEVICE) // max(1, total.numel()))
    for k in range(0, len(value), step):
        part = value[k : k + step].double()
        total += part.sum(0) if weight is None else torch.tensordot(weight[k : k + step].double(), part, dims=1)
    return total


def _sum_shifted_tables(rows: Rows, shift: Tensor, towards: Tensor, weight: Tensor | None) -> Tensor:
    """Every table counted as untouched, then in each changed row what is there put in the place of what is not."""
    base, weight = rows.base.double(), torch.ones_like(shift).double() if weight is None else weight.double()
    gone = weight * shift.double()  # of the way from base to towards
    times, way = torch.zeros(2, len(base), 1, dtype=torch.float64, device=base.device), towards.double() - base
    for sums, each in zip(times, (weight, gone), strict=True):
        sums[:, 0].index_add_(0, rows.item, each[rows.owner])
    total = (weight.sum() - times[0]) * base + (gone.sum() - times[1]) * way
    for item, owner, value in zip(*(part.split(BLOCK) for part in (rows.item, rows.owner, rows.value)), strict=True):
        total.index_add_(0, item, value.double() * weight[owner, None])
    return total
