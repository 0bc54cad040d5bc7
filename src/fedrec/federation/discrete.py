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

# Units this fine cost a clipped upload no accuracy that float32 had, and leave room for exact sums over millions of
# clients in float64.
FINE = 24
# Behind the point in a secure sum, unless a run says otherwise: a unit below its last bit could not be represented.
BITS = 32
# Below this width, in units, the sum of shares is no longer close enough to one discrete Gaussian for the accountant.
COARSE = 8.0
# Shrunk by more than rounding can have added to the norm, so that the cut upload lies in the ball without a second
# pass.
SHRINK = 1 - 1e-5
# Two random words make a normal and one decides on its acceptance.
WORDS = 3

Words = Callable[[Tensor, int], Sequence[Tensor]]
"""Three random integers for each of some places, in a try of this number."""


def unit_of(norm: float, bits: int = BITS) -> float:
    """The unit of uploads that are clipped to a norm: a power of two, which secure sums of so many bits can hold."""
    # A power of two divides exactly, so that going to units and back adds no rounding of its own.
    return 2.0 ** max(math.floor(math.log2(norm)) - FINE, -bits)


def discrete_normal(scale: float, count: int, words: Words, device: torch.device) -> Tensor:
    """Draw whole numbers k with probabilities proportional to exp(-k^2 / 2 scale^2), by rejection.

    A normal of the slightly larger variance scale^2 + scale, rounded, is accepted by the ratio of the two densities at
    the number that was drawn, divided by the largest that this ratio can be.
    """
    # A wider proposal, because the ratio to a normal of the same width has no bound in the tails.
    wide = scale**2 + scale
    gap = 0.5 / scale**2 - 0.5 / wide
    # The exact largest ratio, so that no more tries are thrown away than must be.
    highest = 0.25 / scale**4 / (4 * gap) - 0.125 / scale**2
    # Float64 holds whole numbers up to 2^53 exactly, float32 only up to 2^24.
    found = torch.empty(count, dtype=torch.float64, device=device)
    rest, turn = torch.arange(count, device=device), 0
    while len(rest):
        first, second, third = words(rest, turn)
        drawn = math.sqrt(wide) * normal_of(first, second)
        whole = drawn.round()
        # In logarithms, since both densities underflow for narrow scales.
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
        # Rows that did not change stay out of the table: making it dense would take memory for every item and client.
        if isinstance(value, Rows) and value.shift is None:
            return self._cut_rows(value, factor)
        # Clipped is the change from what was broadcast, which is public; the absolute values would tell nothing but
        # cost the clip.
        base = value.base if isinstance(value, Rows) else context.reference.get(name)
        dense = to_dense(value).double()
        by = factor.reshape(-1, *[1] * (dense.dim() - 1))
        if base is None:
            return self._cut_to_units(by * dense)
        return self._in_units(base) + self._cut_to_units(by * (dense - base.double()))

    def _cut_rows(self, rows: Rows, factor: Tensor) -> Rows:
        base, start = self._in_units(rows.base), rows.base[rows.item].double()
        change = factor[rows.owner, None] * (rows.value.double() - start)
        # A method's shortcut to the target no longer holds once its rows are in units.
        return replace(rows, base=base, value=base[rows.item] + self._cut_to_units(change), towards=None)

    def _cut_to_units(self, change: Tensor) -> Tensor:
        # Towards zero: rounding to the nearest could lengthen an upload beyond the norm that it was clipped to.
        return (change / self.unit).trunc_() * self.unit

    def _in_units(self, public: Tensor) -> Tensor:
        # What is public may be rounded to the nearest, for nobody's data moves it.
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
        # A share is checked and not the sum, since it is the share that must look like a discrete Gaussian.
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
        # Real clients have a secret each, so the draws cannot be made in one batch as below.
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
        # Tries use negative numbers, which no position has, and each place has its own: what one draws never depends on
        # its neighbours' failures.
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
        # Exactly this class: one that is in units already must not be cut a second time.
        if type(clip) is Clip and isinstance(noise, Noise) and not noise.only and type(noise) in DISCRETE:
            clips = takewhile(lambda stage: isinstance(stage, Clip), reversed(stages[: at + 1]))
            # Neighbouring clips bound the same upload, so the tightest decides the unit.
            norm = min(stage.norm for stage in clips if isinstance(stage, Clip))
            unit = unit_of(norm, bits)
            found[at : at + 2] = WholeClip(norm, unit), DISCRETE[type(noise)](noise.scale, unit=unit)
    return tuple(found)
