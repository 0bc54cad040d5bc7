"""Noise on uploads: Laplace and Gaussian on every entry of a client's own, Gaussian on sums over clients.

Noise here is a function of the seed, as all randomness of a simulation is, so that a run can be repeated. Where uploads
really leave a device, its noise must come from a secret of that device.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from fedrec.errors import unknown
from fedrec.federation.contract import Rows, Tensors, World
from fedrec.kernels import find
from fedrec.random import Purpose, fold, fold_tensor, gamma, laplace, normal, stream

Values = dict[str, Tensor | Rows]
Behind = tuple[str, ...]  # which upload every noise so far acted on; empty: on all


@dataclass(frozen=True)
class UploadContext:
    """What a stage knows about an upload: whose it is, the round, the broadcast it answers, and the noise before it."""

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


@dataclass(frozen=True)
class Noise:
    """On every entry that is not a whole number."""

    scale: float
    only: str = ""  # the one upload that it acts on; empty: all
    per_entry = True
    kernel: ClassVar[str]

    def apply(self, values: Values, context: UploadContext) -> Values:
        if self.only and self.only not in values:
            raise unknown("upload", self.only, values)
        return {
            name: self._noised(dense(value), name, context) if self.reaches(name) else value
            for name, value in values.items()
        }

    def reaches(self, name: str) -> bool:
        return self.only in ("", name)

    def _noised(self, value: Tensor, name: str, context: UploadContext) -> Tensor:
        if not value.is_floating_point():
            return value
        return self._added(value, context.keys(name), context.world)

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
        """A sum over clients, each with this noise, drawn at once: a normal whose variance may be random."""
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

    def apply(self, values: Values, context: UploadContext) -> Values:
        return values

    def on_sum(self, key: str, total: Tensor, world: World, round: int, behind: Behind) -> Tensor:
        base = noise_stream(world, round, f"sum of {key}", upload_of(key), behind)
        return self._added(total, fold_tensor(base, torch.arange(len(total), device=total.device)), world)


def upload_of(key: str) -> str:
    """The upload that a sum is made of: there may be one for each cohort."""
    return key.split("@")[0]


def dense(value: Tensor | Rows) -> Tensor:
    return value.dense() if isinstance(value, Rows) else value
