"""The one door: everything that leaves or reaches a client passes here and is counted in bytes.

Uploads pass the stages in the order given (clip, laplace, gaussian, quantise), are counted, and are folded into the
reduction that the method declared; sum-gaussian acts on what has been summed. Bytes are those of the dense encoding: a
table is counted whole, although the simulator keeps only the rows that changed.

Noise here is a function of the seed, as all randomness of a simulation is, so that a run can be repeated. Where uploads
really leave a device, its noise must come from a secret of that device.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import takewhile
from typing import ClassVar, Protocol

import numpy as np
import torch
from torch import Tensor

from fedrec.errors import FedrecError, unknown
from fedrec.federation.available import has_numba
from fedrec.federation.contract import Down, Each, Folded, Mean, Reduction, Rows, Tensors, Upload, Ups, World
from fedrec.random import Purpose, fold, fold_tensor, gamma, laplace, normal, stream

Values = dict[str, Tensor | Rows]

BLOCK = 1 << 14  # rows that are made double at a time
DRAWS = 1 << 32  # of noise in a round: from here on the noise of a plain sum is drawn at once
NEAR, FAR = 1 << 20, 1 << 26  # numbers that are made double at a time, in a cache or on an accelerator
LARGEST = "largest_"
LARGEST_WAYS = (LARGEST + "up", LARGEST + "down")


@dataclass(frozen=True)
class Place:
    """Where a stage acts: whose upload, in which round, against which broadcast."""

    world: World
    clients: np.ndarray
    round: int
    reference: Tensors

    def keys(self, name: str) -> Tensor:
        """One stream of noise per client and tensor."""
        base = fold(stream(self.world.seed, Purpose.NOISE, self.round), zlib.crc32(name.encode()))
        return fold_tensor(base, torch.from_numpy(self.clients).to(self.world.device))


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
            if isinstance(value, Rows):
                start, way = value.base[value.item], value.way()
                change = (value.value - start).double().square().sum(1)
                if way is not None and value.shift is not None:  # all rows but the changed ones went along
                    square += value.shift.double().square() * way.double().square().sum()
                    change -= (value.untouched() - start).double().square().sum(1)
                square.index_add_(0, value.owner, change)
            elif value.is_floating_point():
                square += (value - _reference(place, name)).double().flatten(1).square().sum(1)
        factor = (self.norm / square.sqrt().clamp(min=1e-300)).clamp(max=1.0)
        return {name: self._shrink(value, factor, name, place) for name, value in values.items()}

    def _shrink(self, value: Tensor | Rows, factor: Tensor, name: str, place: Place) -> Tensor | Rows:
        if isinstance(value, Rows):
            start = value.base[value.item]
            by = factor[value.owner, None].to(start.dtype)
            shift = None if value.shift is None else value.shift * factor.to(start.dtype)
            return replace(value, value=start + by * (value.value - start), shift=shift)
        if not value.is_floating_point():
            return value
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
            name: value if self.only not in ("", name) else self._noised(_dense(value), name, place)
            for name, value in values.items()
        }

    def _noised(self, value: Tensor, name: str, place: Place) -> Tensor:
        if not value.is_floating_point():
            return value
        return self._added(value, place.keys(name), place.world)

    def _added(self, value: Tensor, keys: Tensor, world: World) -> Tensor:
        """With noise from one stream per leading index."""
        if world.compiled and value.device.type == "cpu" and has_numba():
            from fedrec.federation import noise_kernels

            noised = value.clone(memory_format=torch.contiguous_format)
            add = getattr(noise_kernels, self.kernel)
            add(keys.numpy().view(np.uint64), self.scale, noised.reshape(len(value), -1).numpy())
            return noised
        position = torch.arange(value[0].numel(), device=value.device)[None]
        return value + self.scale * self._draw(keys[:, None], position, value.dtype).reshape(value.shape)

    def _draw(self, key: Tensor, position: Tensor, dtype: torch.dtype) -> Tensor:
        raise NotImplementedError

    def in_sum(self, total: Tensor, clients: int, name: str, world: World, round: int) -> Tensor:
        """A sum over clients to which each has added this noise, drawn at once: a bell whose width may be random."""
        base = fold(stream(world.seed, Purpose.NOISE, round), zlib.crc32(f"all of {name}".encode()))
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

    kernel = "add_laplace"

    def _draw(self, key: Tensor, position: Tensor, dtype: torch.dtype) -> Tensor:
        return laplace(key, position, dtype)

    def _width(self, clients: int, key: Tensor, position: Tensor) -> Tensor:
        """A Laplace draw is normal with a variance of twice an exponential one; these add up to a gamma."""
        return (2 * gamma(key, position, clients)).sqrt()


@dataclass(frozen=True)
class Gaussian(Noise):
    """Gaussian noise of this standard deviation on every entry."""

    kernel = "add_normal"

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

    def on_sum(self, name: str, total: Tensor, world: World, round: int) -> Tensor:
        key = fold(stream(world.seed, Purpose.NOISE, round), zlib.crc32(f"sum of {name}".encode()))
        return self._added(total, fold_tensor(key, torch.arange(len(total), device=total.device)), world)


@dataclass(frozen=True)
class Quantise:
    """Each row (last axis) as integers of `bits` bits between its minimum and maximum, which are sent as two floats."""

    bits: int
    per_entry = True

    def apply(self, values: Values, place: Place) -> Values:
        return {name: self._rounded(_dense(value)) for name, value in values.items()}

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
            raise FedrecError(f"privacy stage '{part}': the number must be positive")
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


@dataclass
class Ledger:
    """Bytes per client, round and direction."""

    clients: int
    up: np.ndarray = field(init=False)  # totals per client
    down: np.ndarray = field(init=False)
    rounds: dict[int, dict[str, int]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.up = np.zeros(self.clients, dtype=np.int64)
        self.down = np.zeros(self.clients, dtype=np.int64)

    def record(self, direction: str, round: int, clients: np.ndarray, each: int | np.ndarray) -> None:
        """`each`: bytes of every one of the clients, or one number for all of them."""
        (self.up if direction == "up" else self.down)[clients] += each
        entry = self.rounds.setdefault(round, {"up": 0, "down": 0, "trained": 0, "clear": 0})
        entry[direction] += int(np.broadcast_to(each, len(clients)).sum())
        entry[LARGEST + direction] = max(entry.get(LARGEST + direction, 0), int(np.max(each, initial=0)))

    def sent_clear(self, round: int, size: int) -> None:
        """Bytes that no stage touches."""
        self.rounds[round]["clear"] += size

    def trained(self, round: int, clients: int) -> None:
        self.rounds.setdefault(round, {"up": 0, "down": 0, "trained": 0, "clear": 0})["trained"] += clients

    def per_client_round(self) -> dict[str, float]:
        """Mean bytes per client that took part, and round; and the largest single message each way."""
        turns = max(1, sum(entry["trained"] for entry in self.rounds.values()))
        means = {f"{way}_per_client_round": float(getattr(self, way).sum() / turns) for way in ("up", "down")}
        entries = self.rounds.values()
        return means | {name: max((entry.get(name, 0) for entry in entries), default=0) for name in LARGEST_WAYS}


class Wire:
    def __init__(self, world: World, stages: Sequence[Stage] = (), memory: int = 1 << 30) -> None:
        self.world, self.stages, self.memory = world, tuple(stages), memory
        self.ledger = Ledger(world.clients)

    @property
    def foldable(self) -> bool:
        """Nothing is done to single uploads, so a kernel may add them up itself."""
        return not self.stages

    def send_down(self, down: Down, clients: np.ndarray, round: int) -> None:
        common = sum(t.numel() * t.element_size() for t in down.shared.values())
        own = sum(t.numel() * t.element_size() // max(1, len(clients)) for t in down.own.values())
        self.ledger.record("down", round, clients, common + own)

    def send_up(self, payload: dict[str, Reduction], down: Down, clients: np.ndarray, cohort: str, round: int,
                basket: Basket) -> None:  # fmt: skip
        """Encode, count and fold the uploads of one chunk."""
        if not payload:
            return
        self.ledger.record("up", round, clients, sum(self._bytes(r, len(clients)) for r in payload.values()))
        self.ledger.sent_clear(round, self.clear(payload))
        if not self.stages:
            basket.add(payload, clients, cohort)
            return
        basket.late = self._late(payload, len(clients))
        stages = self.stages[: len(self.stages) - len(basket.late)]
        per_client = sum(8 * _entries(r.value, len(clients)) * self.world.dtype.itemsize for r in payload.values())
        block = max(1, self.memory // per_client) if any(s.per_entry for s in stages) else len(clients)
        for start in range(0, len(clients), block):
            keep = slice(start, min(start + block, len(clients)))
            part = {name: _block(reduction, keep) for name, reduction in payload.items()}
            basket.add(self._staged(part, stages, down, clients[keep], keep, round), clients[keep], cohort)

    def _late(self, payload: dict[str, Reduction], clients: int) -> tuple[Noise, ...]:
        """Noise at the end that can wait for the sums: one draw per entry in place of one per entry and client.

        Nobody sees more than plain sums, whose distribution is the same. Only where the draws would be too many.
        """
        every = self.world.clients * self.world.participation
        draws = every * sum(_entries(reduction.value, clients) for reduction in payload.values())
        if draws < DRAWS or not all(_plain_sum(reduction) for reduction in payload.values()):
            return ()
        last = takewhile(lambda stage: isinstance(stage, Noise) and stage.per_entry, reversed(self.stages))
        return tuple(stage for stage in last if isinstance(stage, Noise))[::-1]

    def collect(self, basket: Basket, round: int) -> Ups:
        """What the server gets of a round: the reductions, with the noise that belongs to sums."""
        for noise in basket.late:
            basket.blur(noise, self.world, round)
        for stage in self.stages:
            if isinstance(stage, SumGaussian):
                basket.disturb(stage, self.world, round)
        return basket.ups(self.world.dtype)

    def _staged(self, payload: dict[str, Reduction], stages: Sequence[Stage], down: Down, clients: np.ndarray,
                keep: slice, round: int) -> dict[str, Reduction]:  # fmt: skip
        reference = down.shared | {name: value[keep] for name, value in down.own.items()}
        place = Place(self.world, clients, round, reference)
        values: Values = {}
        for name, reduction in payload.items():
            assert not isinstance(reduction.value, Folded), "folded uploads cannot pass stages"
            values[name] = reduction.value
        for stage in stages:
            values = stage.apply(values, place)
        return {name: _with_value(reduction, values[name]) for name, reduction in payload.items()}

    def clear(self, payload: dict[str, Reduction]) -> int:
        """Bytes of all clients that no stage touches: the weights of means, and whole numbers."""
        return sum(self._clear(reduction) for reduction in payload.values())

    def _clear(self, reduction: Reduction) -> int:
        value = reduction.value
        if isinstance(value, Tensor) and not value.is_floating_point():
            return int(np.broadcast_to(self._bytes(reduction, len(value)), len(value)).sum())
        weight = reduction.weight if isinstance(reduction, Mean) else None
        return 0 if weight is None else weight.numel() * self.world.dtype.itemsize

    def _bytes(self, reduction: Reduction, clients: int) -> int | np.ndarray:
        """Of one client's upload; one number for each where they differ in length."""
        tensor = reduction.value.base if isinstance(reduction.value, Rows | Folded) else reduction.value
        entries = _entries(reduction.value, clients)
        rows = max(1, entries // max(1, tensor.shape[-1]))
        if isinstance(reduction, Each) and reduction.lengths is not None:
            return np.array([self._size(rows * length, rows, tensor) for length in reduction.lengths.tolist()])
        weighted = isinstance(reduction, Mean) and reduction.weight is not None
        return self._size(entries, rows, tensor) + (self.world.dtype.itemsize if weighted else 0)

    def _size(self, entries: int, rows: int, tensor: Tensor) -> int:
        size = entries * tensor.element_size()
        if tensor.is_floating_point():
            for stage in self.stages:
                size = stage.bytes(entries, rows, size)
        return size


class Basket:
    """Uploads of a round as they arrive: sums and means are folded in at once, only `Each` is kept apart."""

    def __init__(self) -> None:
        self._totals: dict[str, Tensor] = {}
        self._weights: dict[str, float] = {}
        self._means: set[str] = set()
        self._each: dict[str, list[tuple[np.ndarray, Tensor]]] = {}
        self._clients: list[np.ndarray] = []
        self.late: tuple[Noise, ...] = ()  # noise that the sums are still to get

    def add(self, payload: dict[str, Reduction], clients: np.ndarray, cohort: str) -> None:
        self._clients.append(clients)
        for name, reduction in payload.items():
            if isinstance(reduction, Each):
                self._each.setdefault(name, []).append((clients, _dense(reduction.value)))
                continue
            key = f"{name}@{cohort}" if reduction.by_cohort else name
            weight = reduction.weight if isinstance(reduction, Mean) else None
            total = _weighted_sum(reduction.value, weight)
            self._totals[key] = self._totals[key] + total if key in self._totals else total
            self._weights[key] = self._weights.get(key, 0.0) + (
                float(weight.sum()) if weight is not None else len(clients)
            )
            if isinstance(reduction, Mean):
                self._means.add(key)

    def blur(self, noise: Noise, world: World, round: int) -> None:
        """The noise that every client has added, on the sums."""
        for key, total in self._totals.items():
            if noise.only in ("", key.split("@")[0]):
                self._totals[key] = noise.in_sum(total, int(self._weights[key]), key, world, round)

    def disturb(self, noise: SumGaussian, world: World, round: int) -> None:
        """Noise on the sums; it hides no mean's weights and no single upload."""
        if self._means or self._each:
            raise FedrecError("privacy stage 'sum-gaussian' is for plain sums; use gaussian with this method")
        self._totals = {name: noise.on_sum(name, total, world, round) for name, total in self._totals.items()}

    def ups(self, dtype: torch.dtype) -> Ups:
        reduced = {}
        for key in list(self._totals):
            total = self._totals.pop(key)  # not kept beside its copy: it may be as large as a method's largest message
            if key in self._means and self._weights[key] == 0:
                continue  # nobody who sent it has any weight: there is no mean
            reduced[key] = (total / self._weights[key] if key in self._means else total).to(dtype)
        clients = np.concatenate(self._clients) if self._clients else np.zeros(0, dtype=np.int64)
        return Ups(reduced, self._each, np.unique(clients))


def _weighted_sum(value: Upload, weight: Tensor | None) -> Tensor:
    """Sum over clients in float64, so that the size of chunks hardly shows."""
    if isinstance(value, Folded):
        count = value.clients if weight is None else float(weight.sum())
        return torch.add(value.total, value.base, alpha=count)
    if isinstance(value, Rows):
        if value.shift is not None and value.towards is not None:
            return _shifted_sum(value, value.shift, value.towards, weight)
        change = (value.value - value.base[value.item]).double()
        if weight is not None:
            change *= weight.double()[value.owner, None]
        count = value.clients if weight is None else float(weight.sum())
        return (value.base.double() * count).index_add_(0, value.item, change)
    return summed(value, weight)


def summed(value: Tensor, weight: Tensor | None = None) -> Tensor:
    """The weighted sum over the leading axis in float64, without a copy of all in that type."""
    total = torch.zeros(value.shape[1:], dtype=torch.float64, device=value.device)
    step = max(1, (NEAR if value.device.type == "cpu" else FAR) // max(1, total.numel()))
    for k in range(0, len(value), step):
        part = value[k : k + step].double()
        total += part.sum(0) if weight is None else torch.tensordot(weight[k : k + step].double(), part, dims=1)
    return total


def _shifted_sum(rows: Rows, shift: Tensor, towards: Tensor, weight: Tensor | None) -> Tensor:
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


def _plain_sum(reduction: Reduction) -> bool:
    """Whether its sum over clients is all that is seen, each counting once."""
    value = reduction.value.base if isinstance(reduction.value, Rows | Folded) else reduction.value
    weighted = isinstance(reduction, Mean) and reduction.weight is not None
    return not isinstance(reduction, Each) and not weighted and value.is_floating_point()


def _entries(value: Upload, clients: int) -> int:
    """Entries of one client's dense upload."""
    return value.base.numel() if isinstance(value, Rows | Folded) else value.numel() // max(1, clients)


def _dense(value: Tensor | Rows) -> Tensor:
    return value.dense() if isinstance(value, Rows) else value


def _reference(place: Place, name: str) -> Tensor:
    return place.reference.get(name, torch.zeros((), dtype=place.world.dtype, device=place.world.device))


def _block(reduction: Reduction, keep: slice) -> Reduction:
    value = reduction.value
    if isinstance(value, Rows):
        inside = (value.owner >= keep.start) & (value.owner < keep.stop)
        owner = value.owner[inside] - keep.start
        value = replace(value, owner=owner, item=value.item[inside], value=value.value[inside],
                        clients=keep.stop - keep.start,
                        shift=None if value.shift is None else value.shift[keep])  # fmt: skip
    elif isinstance(value, Tensor):
        value = value[keep]
    if isinstance(reduction, Each) and reduction.lengths is not None:
        reduction = replace(reduction, lengths=reduction.lengths[keep])
    weight = reduction.weight[keep] if isinstance(reduction, Mean) and reduction.weight is not None else None
    return _with_value(reduction, value, weight)


def _with_value(reduction: Reduction, value: Upload, weight: Tensor | None = None) -> Reduction:
    if isinstance(reduction, Mean):
        return Mean(value, weight if weight is not None else reduction.weight, reduction.by_cohort)
    if isinstance(reduction, Each):
        assert not isinstance(value, Folded)
        same = Each(value, reduction.lengths)
        return same if reduction.lengths is None else Each(same.sent() * _dense(value), reduction.lengths)
    return type(reduction)(value, reduction.by_cohort)
