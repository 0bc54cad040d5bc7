"""What uploads pass on their way out: clip, laplace, gaussian, quantise, in the order given; sum-gaussian for sums.

Noise here is a function of the seed, as all randomness of a simulation is, so that a run can be repeated. Where uploads
really leave a device, its noise must come from a secret of that device.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import ClassVar, Protocol

import numpy as np
import torch
from torch import Tensor

from fedrec.errors import FedrecError, unknown
from fedrec.federation.contract import Rows, Tensors, World
from fedrec.federation.messages import is_exact
from fedrec.kernels import find
from fedrec.random import Purpose, fold, fold_tensor, gamma, laplace, normal, stream

Values = dict[str, Tensor | Rows]
Behind = tuple[str, ...]  # which upload every noise so far acted on; empty: on all


@dataclass(frozen=True)
class Place:
    """Where a stage acts: whose upload, in which round, against which broadcast, behind which other noise."""

    world: World
    clients: np.ndarray
    round: int
    reference: Tensors
    behind: Behind = ()

    def keys(self, name: str) -> Tensor:
        """One stream of noise per client and tensor."""
        base = noise_stream(self.world, self.round, name, name, self.behind)
        return fold_tensor(base, torch.from_numpy(self.clients).to(self.world.device))


def noise_stream(world: World, round: int, what: str, name: str, behind: Behind) -> int:
    """The stream of noise on `what` is made of the upload `name`. Every noise on it has one of its own."""
    earlier = sum(only in ("", name) for only in behind)
    text = f"{what}, noise {earlier + 1}" if earlier else what
    return fold(stream(world.seed, Purpose.NOISE, round), zlib.crc32(text.encode()))


class Stage(Protocol):
    @property
    def per_entry(self) -> bool:
        """Whether it acts on every entry, so that tables must be made dense."""
        ...

    def apply(self, values: Values, place: Place) -> Values: ...

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

    def apply(self, values: Values, place: Place) -> Values:
        device = place.world.device
        square = torch.zeros(len(place.clients), dtype=torch.float64, device=device)
        for name, value in values.items():
            if is_exact(value):
                continue
            if isinstance(value, Rows):
                start, way = value.base[value.item], value.way()
                change = (value.value - start).double().square().sum(1)
                if way is not None and value.shift is not None:  # all rows but the changed ones went along
                    square += value.shift.double().square() * way.double().square().sum()
                    change -= (value.untouched() - start).double().square().sum(1)
                square.index_add_(0, value.owner, change)
            else:
                square += (value - _reference(place, name)).double().flatten(1).square().sum(1)
        factor = (self.norm / square.sqrt().clamp(min=1e-300)).clamp(max=1.0)
        return {name: self._shrink(value, factor, name, place) for name, value in values.items()}

    def _shrink(self, value: Tensor | Rows, factor: Tensor, name: str, place: Place) -> Tensor | Rows:
        if is_exact(value):
            return value
        if isinstance(value, Rows):
            start = value.base[value.item]
            by = factor[value.owner, None].to(start.dtype)
            shift = None if value.shift is None else value.shift * factor.to(start.dtype)
            return replace(value, value=start + by * (value.value - start), shift=shift)
        reference = _reference(place, name)
        by = factor.to(value.dtype).reshape(-1, *[1] * (value.dim() - 1))
        return reference + by * (value - reference)

    def bytes(self, entries: int, rows: int, plain: int) -> int:
        return plain


@dataclass(frozen=True)
class Noise:
    """On every entry that is not a whole number."""

    scale: float
    only: str = ""  # the one upload that it acts on; empty: all
    per_entry = True
    kernel: ClassVar[str]

    def apply(self, values: Values, place: Place) -> Values:
        if self.only and self.only not in values:
            raise unknown("upload", self.only, values)
        return {
            name: self._noised(dense(value), name, place) if self.reaches(name) else value
            for name, value in values.items()
        }

    def reaches(self, name: str) -> bool:
        return self.only in ("", name)

    def _noised(self, value: Tensor, name: str, place: Place) -> Tensor:
        if not value.is_floating_point():
            return value
        return self._added(value, place.keys(name), place.world)

    def _added(self, value: Tensor, keys: Tensor, world: World) -> Tensor:
        """With noise from one stream per leading index."""
        add = find(self.kernel, value.device, world.compiled)
        if add is not None:
            noised = value.clone(memory_format=torch.contiguous_format)
            add(keys.view(torch.uint64), self.scale, noised.reshape(len(value), -1))
            return noised
        position = torch.arange(value[0].numel(), device=value.device)[None]
        return value + self.scale * self._draw(keys[:, None], position, value.dtype).reshape(value.shape)

    def _draw(self, key: Tensor, position: Tensor, dtype: torch.dtype) -> Tensor:
        raise NotImplementedError

    def in_sum(self, key: str, total: Tensor, clients: int, world: World, round: int, behind: Behind) -> Tensor:
        """A sum over clients to which each has added this noise, drawn at once: a bell whose width may be random."""
        base = noise_stream(world, round, f"all of {key}", upload_of(key), behind)
        keys = fold_tensor(base, torch.arange(len(total), device=total.device))[:, None]
        position = torch.arange(total[0].numel(), device=total.device)[None]
        noise = self.scale * self._width(clients, fold_tensor(keys, -1), position) * normal(keys, position)
        return total + noise.reshape(total.shape)

    def _width(self, clients: int, key: Tensor, position: Tensor) -> Tensor | float:
        raise NotImplementedError

    def bytes(self, entries: int, rows: int, plain: int) -> int:
        return plain


@dataclass(frozen=True)
class Laplace(Noise):
    """Laplace noise of this scale on every entry."""

    kernel = "laplace_noise"

    def _draw(self, key: Tensor, position: Tensor, dtype: torch.dtype) -> Tensor:
        return laplace(key, position, dtype)

    def _width(self, clients: int, key: Tensor, position: Tensor) -> Tensor:
        """A Laplace draw is normal with a variance of twice an exponential one; these add up to a gamma."""
        return (2 * gamma(key, position, clients)).sqrt()


@dataclass(frozen=True)
class Gaussian(Noise):
    """Gaussian noise of this standard deviation on every entry."""

    kernel = "normal_noise"

    def _draw(self, key: Tensor, position: Tensor, dtype: torch.dtype) -> Tensor:
        return normal(key, position, dtype)

    def _width(self, clients: int, key: Tensor, position: Tensor) -> float:
        return float(clients**0.5)


@dataclass(frozen=True)
class SumGaussian(Gaussian):
    """Gaussian noise of this standard deviation on every entry of the sum over a round's clients.

    Under secure aggregation each of n clients adds a share N(0, scale^2 / n) and nobody sees less than the sum. The
    simulator draws the noise of the sum at once. Where single uploads can be seen, it protects nobody.
    """

    per_entry = False

    def apply(self, values: Values, place: Place) -> Values:
        return values

    def on_sum(self, key: str, total: Tensor, world: World, round: int, behind: Behind) -> Tensor:
        base = noise_stream(world, round, f"sum of {key}", upload_of(key), behind)
        return self._added(total, fold_tensor(base, torch.arange(len(total), device=total.device)), world)


@dataclass(frozen=True)
class Quantise:
    """Each row (last axis) as integers of `bits` bits between its minimum and maximum, which are sent as two floats."""

    bits: int
    per_entry = True

    def apply(self, values: Values, place: Place) -> Values:
        return {name: self._rounded(dense(value)) for name, value in values.items()}

    def _rounded(self, value: Tensor) -> Tensor:
        if not value.is_floating_point():
            return value
        rows = value.reshape(len(value), -1) if value.dim() < 3 else value  # never across clients
        low, high = rows.amin(-1, keepdim=True), rows.amax(-1, keepdim=True)
        step = (high - low) / (2**self.bits - 1)
        level = torch.round((rows - low) / torch.where(step > 0, step, torch.ones_like(step)))
        return (low + level * step).reshape(value.shape)

    def bytes(self, entries: int, rows: int, plain: int) -> int:
        return (entries * self.bits + 7) // 8 + 8 * rows


STAGES: dict[str, Callable[[float], Stage]] = {
    "clip": Clip,
    "laplace": Laplace,
    "gaussian": Gaussian,
    "sum-gaussian": SumGaussian,
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
        if name == "quantise" and number not in range(1, 33):
            raise FedrecError(f"privacy stage '{part}': bits must be a whole number from 1 to 32")
        if any(isinstance(stage, Quantise) for stage in stages):
            raise FedrecError(
                f"privacy stage '{part}' comes after quantise, which must be the last: what it sends is final"
            )
        stage = STAGES[name](number)
        if only and (not isinstance(stage, Noise) or isinstance(stage, SumGaussian)):
            raise FedrecError(f"privacy stage '{part}': only noise can act on one upload alone")
        stages.append(replace(stage, only=only) if isinstance(stage, Noise) else stage)
    return tuple(stages)


def upload_of(key: str) -> str:
    """The upload that a sum is made of: there may be one for each cohort."""
    return key.split("@")[0]


def dense(value: Tensor | Rows) -> Tensor:
    return value.dense() if isinstance(value, Rows) else value


def _reference(place: Place, name: str) -> Tensor:
    return place.reference.get(name, torch.zeros((), dtype=place.world.dtype, device=place.world.device))
