"""Noise on uploads: Laplace and Gaussian on every entry of a client's own, Gaussian on sums over clients.

All noise is added on the clients' side and comes from their secret. That of a simulation is derived from its seed, so
that a run can be repeated; real clients have it from the operating system.
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
from fedrec.federation.secret import Secret, SeededSecret
from fedrec.kernels import find
from fedrec.random import Purpose, fold, fold_tensor, gamma, laplace, laplace_of, normal, normal_of

Values = dict[str, Tensor | Rows]
EarlierNoise = tuple[str, ...]  # which upload every noise so far acted on; empty: on all


@dataclass(frozen=True)
class Stream:
    """Where noise is drawn from: whose secret, the round, and the noise before it."""

    secret: Secret
    round: int
    earlier: EarlierNoise = ()

    def name(self, what: str, upload: str) -> str:
        """Of the stream of noise on `what` is made of an upload. Every noise on it has one of its own."""
        # A second noise on the same upload must not repeat the first one's draws, or the two would add up to a known
        # multiple.
        earlier = sum(only in ("", upload) for only in self.earlier)
        return f"{what}, noise {earlier + 1}" if earlier else what

    def key(self, what: str, upload: str) -> int:
        # A checksum rather than Python's hash, which differs between processes.
        return fold(self.secret.stream(Purpose.NOISE, self.round), zlib.crc32(self.name(what, upload).encode()))


@dataclass(frozen=True)
class UploadContext:
    """What a stage knows about an upload: whose it is, the round, the broadcast it answers, and the noise before it.

    Without a `secret` it is that of a simulation.
    """

    world: World
    clients: np.ndarray
    round: int
    reference: Tensors
    earlier: EarlierNoise = ()
    secret: Secret | None = None

    @property
    def stream(self) -> Stream:
        return Stream(self.secret or SeededSecret(self.world.seed), self.round, self.earlier)


@dataclass(frozen=True)
class SumContext:
    """Noise on sums over a group's clients. `share`: how many they are, by the fewest uploads that make a result."""

    world: World
    stream: Stream
    clients: np.ndarray
    share: float = 1.0

    def label(self, text: str) -> str:
        """The stream of noise on a sum: every group has its own."""
        # One group alone keeps the plain name; several must differ, or their shares would be the same draws.
        return text if self.share == 1.0 else f"{text} from client {int(self.clients[0])} on"


@dataclass(frozen=True)
class Noise:
    """On every entry that is not a whole number."""

    scale: float
    only: str = ""  # the one upload that it acts on; empty: all
    per_entry = True
    kernel: ClassVar[str]
    words: ClassVar[int]  # of 64 random bits, for each draw

    def apply(self, values: Values, context: UploadContext) -> Values:
        if self.only and self.only not in values:
            raise unknown("upload", self.only, values)
        return {
            name: self._add_to_upload(to_dense(value), name, context) if self.reaches(name) else value
            for name, value in values.items()
        }

    def reaches(self, name: str) -> bool:
        return self.only in ("", name)

    def _add_to_upload(self, value: Tensor, name: str, context: UploadContext) -> Tensor:
        # Item numbers and counts would mean something else with noise on them.
        if not value.is_floating_point():
            return value
        return self._add_noise(value, context.stream, name, name, context.clients, self.scale, context.world)

    def _add_noise(
        self, value: Tensor, stream: Stream, what: str, upload: str, owners: np.ndarray, scale: float, world: World
    ) -> Tensor:
        """With noise from one stream per leading index, each of which has an owner."""
        # Bits of the operating system exist once; a kernel that derives its draws from a key would need them as a seed.
        if not stream.secret.repeatable:
            return value + scale * self._draw_each_from_bits(value, stream, stream.name(what, upload), owners)
        keys = fold_tensor(stream.key(what, upload), torch.from_numpy(owners).to(value.device))
        add = find(self.kernel, value.device, world.compiled)
        if add is not None:
            # A copy, since the kernel writes in place and an upload may be a view of the client's state.
            noised = value.clone(memory_format=torch.contiguous_format)
            # Kernels work on one row per owner, whatever the shape of an upload.
            add(keys.view(torch.uint64), scale, noised.reshape(len(value), -1))
            return noised
        position = torch.arange(value[0].numel(), device=value.device)[None]
        return value + scale * self._draw(keys[:, None], position, value.dtype).reshape(value.shape)

    def _draw_each_from_bits(self, value: Tensor, stream: Stream, name: str, owners: np.ndarray) -> Tensor:
        words, where, parts = self.words * value[0].numel(), f"{stream.round},{name}", []
        # One owner at a time, because each has a secret of its own that nobody else can draw from.
        for owner in owners.tolist():
            bits = stream.secret.bits(where, owner, words).reshape(self.words, -1)
            parts.append(self._draw_from_bits(bits).reshape(value.shape[1:]))
        return torch.stack(parts).to(value.device, value.dtype)

    def _draw(self, key: Tensor, position: Tensor, dtype: torch.dtype) -> Tensor:
        raise NotImplementedError

    def _draw_from_bits(self, bits: Tensor) -> Tensor:
        """One draw of scale 1 from every column."""
        raise NotImplementedError

    def add_to_sum(self, key: str, total: Tensor, clients: int, where: SumContext) -> Tensor:
        """A sum over clients, each with this noise, drawn at once: a normal whose variance may be random."""
        base = where.stream.key(where.label(f"all of {key}"), upload_name(key))
        keys = fold_tensor(base, torch.arange(len(total), device=total.device))[:, None]
        position = torch.arange(total[0].numel(), device=total.device)[None]
        # The width comes from a sub-stream at minus one, which is no position: numbers shared with the normal would
        # correlate the two.
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
    words = 1

    def _draw(self, key: Tensor, position: Tensor, dtype: torch.dtype) -> Tensor:
        return laplace(key, position, dtype)

    def _draw_from_bits(self, bits: Tensor) -> Tensor:
        return laplace_of(bits[0])

    def _width(self, clients: int, key: Tensor, position: Tensor) -> Tensor:
        """A Laplace draw is normal with a variance of twice an exponential one; these add up to a gamma."""
        # One gamma draw replaces as many exponential ones as there are clients, and gives the same distribution.
        return (2 * gamma(key, position, clients)).sqrt()


@dataclass(frozen=True)
class Gaussian(Noise):
    """Gaussian noise of this standard deviation on every entry."""

    kernel = "normal_noise"
    words = 2

    def _draw(self, key: Tensor, position: Tensor, dtype: torch.dtype) -> Tensor:
        return normal(key, position, dtype)

    def _draw_from_bits(self, bits: Tensor) -> Tensor:
        return normal_of(bits[0], bits[1])

    def _width(self, clients: int, key: Tensor, position: Tensor) -> float:
        # Variances of independent normals add up, so the width grows with the root of their number.
        return float(clients**0.5)


@dataclass(frozen=True)
class SumGaussian(Gaussian):
    """Gaussian noise of this standard deviation on every entry of the sum over a round's clients.

    Under secure aggregation every client adds its share and nobody sees less than the sum: where a sum of fewer than n
    clients is given up, m of them together add N(0, scale^2 m / n), drawn here at once. Where single uploads can be
    seen, it protects nobody.
    """

    per_entry = False

    def apply(self, values: Values, context: UploadContext) -> Values:
        return values

    def add_share_to_sum(self, key: str, total: Tensor, where: SumContext) -> Tensor:
        """With the share of these clients."""
        # Shares are of variance, so the scale takes the root.
        what, scale = where.label(f"sum of {key}"), self.scale * where.share**0.5
        return self._add_noise(total, where.stream, what, upload_name(key), np.arange(len(total)), scale, where.world)


def upload_name(key: str) -> str:
    """The upload that a sum is made of: there may be one for each cohort."""
    # A cohort's name follows the sign, and it must not change which noise reaches an upload.
    return key.split("@")[0]


def to_dense(value: Tensor | Rows) -> Tensor:
    return value.dense() if isinstance(value, Rows) else value
