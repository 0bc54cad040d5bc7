"""The stages that uploads pass in the order given: clip, noise, top-rows, quantise; sum-gaussian for sums."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import ClassVar, Protocol

import numpy as np
import torch
from torch import Tensor

from fedrec.errors import FedrecError, unknown
from fedrec.federation.contract import Rows
from fedrec.federation.messages import is_exact
from fedrec.federation.noise import Gaussian, Laplace, Noise, SumGaussian, UploadContext, Values, to_dense

# Numbers that are made double at a time: a double copy of all uploads would not fit beside them.
SQUARED = 1 << 18


class Stage(Protocol):
    @property
    def per_entry(self) -> bool:
        """Whether it acts on every entry, so that tables must be made dense."""
        ...

    def apply(self, values: Values, context: UploadContext) -> Values: ...

    def bytes(self, entries: int, rows: int, plain: int) -> int:
        """Size of an encoded tensor; `plain` is what it was before this stage."""
        ...


@dataclass(frozen=True)
class Clip:
    """Scale a client's whole upload so that its distance to what was broadcast has L2 norm at most `norm`.

    A tensor that was not broadcast under the same name is measured from zero. Integers pass as they are.
    """

    norm: float
    per_entry = False

    def apply(self, values: Values, context: UploadContext) -> Values:
        factor = self._factor(values, context)
        return {name: self._shrink(value, factor, name, context) for name, value in values.items()}

    def _factor(self, values: Values, context: UploadContext) -> Tensor:
        """By which each client's change must be multiplied, in float64."""
        device = context.world.device
        # In float64, because a sum of squares over a large table loses in float32 what decides about the clip.
        square = torch.zeros(len(context.clients), dtype=torch.float64, device=device)
        for name, value in values.items():
            if is_exact(value):
                continue
            if isinstance(value, Rows):
                start, way = value.base[value.item], value.way()
                change = (value.value - start).double().square().sum(1)
                # With a shift all rows have moved, so the norm is that of the whole table and the changed rows replace
                # theirs.
                if way is not None and value.shift is not None:
                    square += value.shift.double().square() * way.double().square().sum()
                    change -= (value.values_if_unchanged() - start).double().square().sum(1)
                square.index_add_(0, value.owner, change)
            else:
                change = value - context.reference[name] if name in context.reference else value
                square += _sum_squares(change)
        # Clamped from below, since an upload that did not change has no norm to divide by.
        return (self.norm / square.sqrt().clamp(min=1e-300)).clamp(max=1.0)

    def _shrink(self, value: Tensor | Rows, factor: Tensor, name: str, context: UploadContext) -> Tensor | Rows:
        if is_exact(value):
            return value
        if isinstance(value, Rows):
            start = value.base[value.item]
            by = factor[value.owner, None].to(start.dtype)
            shift = None if value.shift is None else value.shift * factor.to(start.dtype)
            return replace(value, value=start + by * (value.value - start), shift=shift)
        by = factor.to(value.dtype).reshape(-1, *[1] * (value.dim() - 1))
        reference = context.reference.get(name)
        return by * value if reference is None else reference + by * (value - reference)

    def bytes(self, entries: int, rows: int, plain: int) -> int:
        return plain


@dataclass(frozen=True)
class Shortening:
    """Makes uploads shorter. `only`: those of this name, or whose names begin with it and a dot; empty: all."""

    number: int
    only: str = ""
    per_entry = True

    def apply(self, values: Values, context: UploadContext) -> Values:
        reached = [name for name in values if self.reaches(name)]
        if not reached:
            raise unknown("upload", self.only, values)
        # Made dense, because any row may be among those that are sent, changed or not.
        return values | {name: self._shorten(to_dense(values[name]), context.reference.get(name)) for name in reached}

    def reaches(self, name: str) -> bool:
        return self.only in ("", name) or name.startswith(self.only + ".")

    def _shorten(self, value: Tensor, reference: Tensor | None) -> Tensor:
        raise NotImplementedError


@dataclass(frozen=True)
class TopRows(Shortening):
    """Of every table with more rows, so many: those that are farthest from what was broadcast, and which they are.

    The others count as broadcast; a tensor that was not broadcast is measured from zero.
    """

    INDEX: ClassVar[int] = 4  # bytes

    def _shorten(self, value: Tensor, reference: Tensor | None) -> Tensor:
        # Vectors and small tables go whole: choosing among few rows would save nothing.
        if value.dim() < 3 or value.shape[1] <= self.number or not value.is_floating_point():
            return value
        change = value if reference is None else value - reference
        farthest = change.square().sum(-1).topk(self.number, 1).indices.unsqueeze(-1).expand(-1, -1, value.shape[2])
        # A copy, for the broadcast is one tensor that all clients share.
        sent = torch.zeros_like(value) if reference is None else reference.expand_as(value).clone()
        return sent.scatter_(1, farthest, value.gather(1, farthest))

    def rows_sent(self, rows: int) -> int:
        return min(rows, self.number)

    def bytes(self, entries: int, rows: int, plain: int) -> int:
        return plain * self.rows_sent(rows) // rows


@dataclass(frozen=True)
class Quantise(Shortening):
    """Each row (last axis) as integers of so many bits between its minimum and maximum, which go as two floats."""

    def _shorten(self, value: Tensor, reference: Tensor | None) -> Tensor:
        return self._round_to_levels(value)

    def _round_to_levels(self, value: Tensor) -> Tensor:
        if not value.is_floating_point():
            return value
        # Each client by itself: a range over several would tell one client about another.
        rows = value.reshape(len(value), -1) if value.dim() < 3 else value
        low, high = rows.amin(-1, keepdim=True), rows.amax(-1, keepdim=True)
        step = (high - low) / (2**self.number - 1)
        # A row of equal numbers has no step, and one stands in for it to avoid a division by zero.
        level = torch.round((rows - low) / torch.where(step > 0, step, torch.ones_like(step)))
        return (low + level * step).reshape(value.shape)

    def bytes(self, entries: int, rows: int, plain: int) -> int:
        # Rounded up to whole bytes, plus both ends of each row.
        return (entries * self.number + 7) // 8 + 8 * rows


STAGES: dict[str, Callable[[float], Stage]] = {
    "clip": Clip,
    "laplace": Laplace,
    "gaussian": Gaussian,
    "sum-gaussian": SumGaussian,
    "top-rows": lambda rows: TopRows(int(rows)),
    "quantise": lambda bits: Quantise(int(bits)),
}


def parse_stages(text: str) -> tuple[Stage, ...]:
    """Stages from `"clip=1,gaussian=0.1"`, applied in this order; `laplace:item=0.1` acts on that upload alone."""
    stages: list[Stage] = []
    for part in filter(None, (p.strip() for p in text.split(","))):
        where, _, value = part.partition("=")
        name, _, only = where.partition(":")
        if name not in STAGES:
            raise unknown("privacy stage", name, STAGES)
        try:
            number = float(value)
        except ValueError:
            raise FedrecError(f"privacy stage '{part}' needs a number, e.g. {name}=1") from None
        if not np.isfinite(number) or number <= 0:
            raise FedrecError(f"privacy stage '{part}': the number must be positive; for none, leave it out")
        # Beyond 32 bits nothing would be saved.
        if name == "quantise" and number not in range(1, 33):
            raise FedrecError(f"privacy stage '{part}': bits must be a whole number from 1 to 32")
        if name == "top-rows" and number != int(number):
            raise FedrecError(f"privacy stage '{part}': rows must be a whole number")
        # What follows would leave the levels, which could then not be sent as integers.
        if any(isinstance(stage, Quantise) for stage in stages):
            raise FedrecError(f"privacy stage '{part}' comes after quantise, which must be the last stage")
        stage = STAGES[name](number)
        if only and (isinstance(stage, SumGaussian) or not isinstance(stage, Noise | Shortening)):
            raise FedrecError(f"privacy stage '{part}': {name} acts on all uploads; leave out ':{only}'")
        stages.append(replace(stage, only=only) if isinstance(stage, Noise | Shortening) else stage)
    return tuple(stages)


def _sum_squares(value: Tensor) -> Tensor:
    """Squared norms of clients' tensors in float64, without a copy of all in that type."""
    # An accelerator pays for each pass it is told to make, so it takes norms of rows in one.
    if value.device.type != "cpu" and value.dim() > 2:
        return torch.linalg.vector_norm(value, dim=-1).double().square().flatten(1).sum(1)
    flat = value.flatten(1)
    parts = flat.split(max(1, SQUARED // max(1, flat.shape[1])))
    return torch.cat([part.double().square().sum(1) for part in parts])
