"""Uploads in whole units, and noise that is a whole number of them, so that no rounding shows what noise hides.

Which numbers a sum of floating-point noise can reach tells neighbouring data apart (Mironov, 2012). Here an upload is
clipped to whole units first, and its noise is a discrete Gaussian (Canonne, Kamath & Steinke, 2020): every whole number
can come of it. Sums over clients are sums of whole numbers, exact in float64 and in a secure sum.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise, takewhile

import numpy as np
import torch
from torch import Tensor

from fedrec.errors import FedrecError
from fedrec.federation.contract import Rows, World
from fedrec.federation.messages import is_exact
from fedrec.federation.noise import (
    Gaussian,
    Noise,
    Stream,
    SumContext,
    SumGaussian,
    UploadContext,
    Values,
    to_dense,
    upload_name,
)
from fedrec.federation.stages import Clip, Stage
from fedrec.random import fold_tensor, normal_of, uniform

FINE = 24  # bits of a clipping norm in units
BITS = 32  # behind the point in a secure sum, unless a run says otherwise: units must fit
COARSE = 8.0  # units: shares of noise below that no longer add up to a discrete Gaussian
SHRINK = 1 - 1e-5  # of a clipped upload: more than rounding can have added to its norm before it is cut to units
WORDS = 3  # random ones, for each try

Words = Callable[[Tensor, int], Sequence[Tensor]]
"""Three random integers for each of some places, in a try of this number."""


def unit_of(norm: float, bits: int = BITS) -> float:
    """The unit of uploads that are clipped to a norm: a power of two, which secure sums of so many bits can hold."""
    return 2.0 ** max(math.floor(math.log2(norm)) - FINE, -bits)


def discrete_normal(scale: float, count: int, words: Words, device: torch.device) -> Tensor:
    """Draw whole numbers k with probabilities proportional to exp(-k^2 / 2 scale^2), by rejection.

    A normal of the slightly larger variance scale^2 + scale, rounded, is accepted by the ratio of the two densities at
    the number that was drawn, divided by the largest that this ratio can be.
    """
    wide = scale**2 + scale
    gap = 0.5 / scale**2 - 0.5 / wide
    highest = 0.25 / scale**4 / (4 * gap) - 0.125 / scale**2
    found = torch.empty(count, dtype=torch.float64, device=device)
    rest, turn = torch.arange(count, device=device), 0
    while len(rest):
        first, second, third = words(rest, turn)
        drawn = math.sqrt(wide) * normal_of(first, second)
        whole = drawn.round()
        ratio = drawn.square() * (0.5 / wide) - whole.square() * (0.5 / scale**2) - highest
        good = torch.log(uniform(third)) < ratio
        found[rest[good]] = whole[good]
        rest, turn = rest[~good], turn + 1
    return found


@dataclass(frozen=True)
class WholeClip(Clip):
    """Clip an upload's distance to what was broadcast, in whole units, cut towards zero so that it never grows.

    What was broadcast is rounded to units as well, alike for everybody: it is public. The numbers are float64.
    """

    unit: float

    def apply(self, values: Values, context: UploadContext) -> Values:
        factor = self._factor(values, context) * SHRINK
        return {name: self._cut(value, factor, name, context) for name, value in values.items()}

    def _cut(self, value: Tensor | Rows, factor: Tensor, name: str, context: UploadContext) -> Tensor | Rows:
        if is_exact(value):
            return value
        if isinstance(value, Rows) and value.shift is None:
            return self._cut_rows(value, factor)
        base = value.base if isinstance(value, Rows) else context.reference.get(name)
        dense = to_dense(value).double()
        by = factor.reshape(-1, *[1] * (dense.dim() - 1))
        if base is None:
            return self._cut_to_units(by * dense)
        return self._in_units(base) + self._cut_to_units(by * (dense - base.double()))

    def _cut_rows(self, rows: Rows, factor: Tensor) -> Rows:
        base, start = self._in_units(rows.base), rows.base[rows.item].double()
        change = factor[rows.owner, None] * (rows.value.double() - start)
        return replace(rows, base=base, value=base[rows.item] + self._cut_to_units(change), towards=None)

    def _cut_to_units(self, change: Tensor) -> Tensor:
        return (change / self.unit).trunc_() * self.unit

    def _in_units(self, public: Tensor) -> Tensor:
        return (public.double() / self.unit).round_() * self.unit


@dataclass(frozen=True)
class DiscreteGaussian(Gaussian):
    """Discrete Gaussian noise of this scale on every entry of each client's own upload, in whole units."""

    unit: float = 1.0

    def _add_to_upload(self, value: Tensor, name: str, context: UploadContext) -> Tensor:
        # of the noised whole number, whatever rounding follows tells nothing more
        return super()._add_to_upload(value, name, context).to(value.dtype if is_exact(value) else context.world.dtype)

    def _add_noise(
        self, value: Tensor, stream: Stream, what: str, upload: str, owners: np.ndarray, scale: float, world: World
    ) -> Tensor:
        return add_discrete(
            value, stream, stream.name(what, upload), stream.key(what, upload), owners, scale, self.unit
        )

    def add_to_sum(self, key: str, total: Tensor, clients: int, where: SumContext) -> Tensor:
        what, scale = where.label(f"all of {key}"), self.scale * clients**0.5
        return self._add_noise(total, where.stream, what, upload_name(key), np.arange(len(total)), scale, where.world)


@dataclass(frozen=True)
class DiscreteSumGaussian(SumGaussian):
    """Discrete Gaussian noise on sums over a round's clients, of this scale where the fewest uploads arrive.

    Every client adds its share, a discrete Gaussian of its own; their sum is as close to one of the whole scale as
    makes no difference, while a share is many units wide (Kairouz, Liu & Steinke, 2021).
    """

    unit: float = 1.0

    def _add_noise(
        self, value: Tensor, stream: Stream, what: str, upload: str, owners: np.ndarray, scale: float, world: World
    ) -> Tensor:
        if scale < COARSE * self.unit:
            raise FedrecError(
                f"a client's share of the noise is {scale / self.unit:.2g} units wide, too coarse to count on; raise "
                "--secure-bits, or clip to a larger norm"
            )
        return add_discrete(
            value, stream, stream.name(what, upload), stream.key(what, upload), owners, scale, self.unit
        )


def add_discrete(
    value: Tensor, stream: Stream, name: str, key: int, owners: np.ndarray, scale: float, unit: float
) -> Tensor:
    """Add noise in units, from one stream per leading index, each of which has an owner."""
    if not stream.secret.repeatable:
        each = [
            discrete_normal(scale / unit, value[0].numel(), _words_of_bits(stream, name, owner), value.device)
            for owner in owners.tolist()
        ]
        return value.double() + unit * torch.stack(each).reshape(value.shape)
    keys = fold_tensor(key, torch.from_numpy(owners).to(value.device))
    noise = discrete_normal(scale / unit, value.numel(), _words_of_keys(keys, value[0].numel()), value.device)
    return value.double() + unit * noise.reshape(value.shape)


def _words_of_keys(keys: Tensor, width: int) -> Words:
    def draw(places: Tensor, turn: int) -> Sequence[Tensor]:
        owner, position = places // width, places % width
        tries = fold_tensor(keys, -1 - turn)[owner]
        return [fold_tensor(tries, WORDS * position + k) for k in range(WORDS)]

    return draw


def _words_of_bits(stream: Stream, name: str, owner: int) -> Words:
    def draw(places: Tensor, turn: int) -> Sequence[Tensor]:
        where = f"{stream.round},{name}" + (f", try {turn + 1}" if turn else "")
        bits = stream.secret.bits(where, owner, WORDS * len(places))
        return list(bits.reshape(WORDS, -1).to(places.device))

    return draw


DISCRETE: dict[type[Noise], type[DiscreteGaussian] | type[DiscreteSumGaussian]] = {
    Gaussian: DiscreteGaussian,
    SumGaussian: DiscreteSumGaussian,
}


def in_whole_units(stages: Sequence[Stage], bits: int = BITS) -> tuple[Stage, ...]:
    """Replace a clip right before noise on everything, and that noise, by their counterparts in whole units."""
    found = list(stages)
    for at, (clip, noise) in enumerate(pairwise(stages)):
        if type(clip) is Clip and isinstance(noise, Noise) and not noise.only and type(noise) in DISCRETE:
            clips = takewhile(lambda stage: isinstance(stage, Clip), reversed(stages[: at + 1]))
            norm = min(stage.norm for stage in clips if isinstance(stage, Clip))
            unit = unit_of(norm, bits)
            found[at : at + 2] = WholeClip(norm, unit), DISCRETE[type(noise)](noise.scale, unit=unit)
    return tuple(found)
