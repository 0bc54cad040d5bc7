"""The one door: everything that leaves or reaches a client passes here and is counted in bytes.

Uploads pass the stages in the order given, are counted, and are folded into the reduction that the method declared.
Bytes are those of the dense encoding: a table is counted whole, although the simulator keeps only changed rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import takewhile

import numpy as np
from torch import Tensor

from fedrec.federation.basket import Basket
from fedrec.federation.contract import Down, Each, Folded, Mean, Reduction, Rows, Upload, Ups, World
from fedrec.federation.stages import Noise, Place, Stage, SumGaussian, Values, dense

DRAWS = 1 << 32  # of noise in a round: from here on the noise of a plain sum is drawn at once
LARGEST = "largest_"
LARGEST_WAYS = (LARGEST + "up", LARGEST + "down")


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


def _plain_sum(reduction: Reduction) -> bool:
    """Whether its sum over clients is all that is seen, each counting once."""
    value = reduction.value.base if isinstance(reduction.value, Rows | Folded) else reduction.value
    weighted = isinstance(reduction, Mean) and reduction.weight is not None
    return not isinstance(reduction, Each) and not weighted and value.is_floating_point()


def _entries(value: Upload, clients: int) -> int:
    """Entries of one client's dense upload."""
    return value.base.numel() if isinstance(value, Rows | Folded) else value.numel() // max(1, clients)


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
        return same if reduction.lengths is None else Each(same.sent() * dense(value), reduction.lengths)
    return type(reduction)(value, reduction.by_cohort)
