"""The one door of a group of clients: everything that leaves or reaches them passes here and is counted in bytes.

Uploads pass the stages in the order given, are counted, and are folded into the reduction that the method declared.
Bytes are those of the dense encoding: a table is counted whole, although the simulator keeps only changed rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import takewhile

import numpy as np
from torch import Tensor

from fedrec.errors import FedrecError
from fedrec.federation.accumulator import Accumulator
from fedrec.federation.contract import Down, Gather, Mean, PartialSum, Reduction, Rows, Upload, World
from fedrec.federation.messages import content, is_exact
from fedrec.federation.noise import (
    EarlierNoise,
    Noise,
    Stream,
    SumContext,
    SumGaussian,
    UploadContext,
    Values,
    to_dense,
)
from fedrec.federation.secret import Secret, SeededSecret
from fedrec.federation.stages import Shortening, Stage, TopRows
from fedrec.federation.update import Update

# Beyond so many draws in a round, one for each client and entry would take too long; a plain sum has the same
# distribution if drawn once.
DRAWS = 1 << 32
# Lengths travel as 64-bit integers.
LENGTH = 8
LARGEST = "largest_"
LARGEST_WAYS = (LARGEST + "up", LARGEST + "down")


@dataclass
class Ledger:
    """Bytes per client, round and direction; how often each client uploaded; what of it no noise reached."""

    clients: int
    up: np.ndarray = field(init=False)  # totals per client
    down: np.ndarray = field(init=False)
    uploads: np.ndarray = field(init=False)  # rounds in which a client sent something
    rounds: dict[int, dict[str, int]] = field(default_factory=dict)
    unprotected: dict[str, int] = field(default_factory=dict)  # bytes of all clients and rounds, by what they are

    def __post_init__(self) -> None:
        # Totals outgrow 32 bits within a few rounds of large tables.
        self.up = np.zeros(self.clients, dtype=np.int64)
        self.down = np.zeros(self.clients, dtype=np.int64)
        self.uploads = np.zeros(self.clients, dtype=np.int64)

    def record(self, direction: str, round: int, clients: np.ndarray, each: int | np.ndarray) -> None:
        """`each`: bytes of every one of the clients, or one number for all of them."""
        (self.up if direction == "up" else self.down)[clients] += each
        entry = self._entry(round)
        entry[direction] += int(np.broadcast_to(each, len(clients)).sum())
        # Means hide the one message that a device's link has to carry, so the largest is kept beside them.
        entry[LARGEST + direction] = max(entry.get(LARGEST + direction, 0), int(np.max(each, initial=0)))

    def record_upload(self, clients: np.ndarray, unprotected: Mapping[str, int]) -> None:
        """An upload of each of these clients, and bytes of it that no noise reached."""
        self.uploads[clients] += 1
        for part, size in unprotected.items():
            self.unprotected[part] = self.unprotected.get(part, 0) + size

    def record_training(self, round: int, clients: int) -> None:
        self._entry(round)["trained"] += clients

    def _entry(self, round: int) -> dict[str, int]:
        return self.rounds.setdefault(round, {"up": 0, "down": 0, "trained": 0})

    def per_client_round(self) -> dict[str, float]:
        """Mean bytes per client that took part, and round; and the largest single message each way."""
        # Per turn of a client and not per client: those that never took part would make the mean look cheaper.
        turns = max(1, sum(entry["trained"] for entry in self.rounds.values()))
        means = {f"{way}_per_client_round": float(getattr(self, way).sum() / turns) for way in ("up", "down")}
        entries = self.rounds.values()
        return means | {name: max((entry.get(name, 0) for entry in entries), default=0) for name in LARGEST_WAYS}


class Wire:
    def __init__(
        self,
        world: World,
        stages: Sequence[Stage] = (),
        memory: int = 1 << 30,
        noised: Sequence[str] = (),
        secret: Secret | None = None,
        apart: bool = False,
    ) -> None:
        """`noised`: uploads that carry noise already when they come here. `secret`: the clients', for noise.

        `apart`: every client's upload leaves by itself, in a secure sum.
        """
        self.world, self.stages, self.memory, self.noised = world, tuple(stages), memory, tuple(noised)
        # A simulation derives noise from the seed, so that runs can be repeated; a deployment passes a real secret.
        self.secret, self.apart = secret or SeededSecret(world.seed), apart
        self.ledger = Ledger(world.clients)

    @property
    def foldable(self) -> bool:
        """Nothing is done to single uploads, so a kernel may add them up itself."""
        return not self.stages and not self.apart

    def send_down(self, down: Down, clients: np.ndarray, round: int) -> None:
        common = sum(t.numel() * t.element_size() for t in down.shared.values())
        # Own values hold a row for each client of the chunk, so one client's part is counted.
        own = sum(t.numel() * t.element_size() // max(1, len(clients)) for t in down.own.values())
        self.ledger.record("down", round, clients, common + own)

    def send_up(
        self,
        payload: dict[str, Reduction],
        down: Down,
        clients: np.ndarray,
        cohort: str,
        round: int,
        accumulator: Accumulator,
    ) -> None:
        """Encode, count and fold the uploads of one chunk."""
        if not payload:
            return
        _require_reductions(payload)
        # From what stages declare of their sizes, so that no message need be encoded just to count its bytes.
        self.ledger.record("up", round, clients, sum(self._bytes(name, r, len(clients)) for name, r in payload.items()))
        self.ledger.record_upload(clients, self.bytes_without_noise(payload, len(clients), cohort, accumulator))
        if not self.stages:
            accumulator.add(payload, clients, cohort)
            return
        # Noise that can wait is added to the sum, which takes one draw per entry instead of one per entry and client.
        now = len(self.stages) - self._count_deferrable_stages(payload, len(clients))
        stages, late = self.stages[:now], range(now, len(self.stages))
        per_client = sum(8 * _entries(r.value, len(clients)) * self.world.dtype.itemsize for r in payload.values())
        # Stages that need dense values would hold a table for every client at once, so they work on as many as fit.
        block = max(1, self.memory // per_client) if any(s.per_entry for s in stages) else len(clients)
        for start in range(0, len(clients), block):
            keep = slice(start, min(start + block, len(clients)))
            part = {name: _slice_clients(reduction, keep) for name, reduction in payload.items()}
            accumulator.add(
                self._apply_stages(part, stages, down, clients[keep], keep, round), clients[keep], cohort, late
            )

    def send_apart(
        self,
        payload: dict[str, Reduction],
        down: Down,
        clients: np.ndarray,
        cohort: str,
        round: int,
        fewest: float | None,
    ) -> Iterator[Update]:
        """The uploads of one chunk, each by itself, with its share of the noise that belongs to sums.

        Bytes are those of the secure sum, which counts them.
        """
        if not payload:
            return
        _require_reductions(payload)
        self.ledger.record_upload(clients, self.bytes_without_noise(payload, len(clients), cohort, Accumulator()))
        # One by one although slower: a secure sum masks single uploads, so nothing may be folded before it.
        for k in range(len(clients)):
            keep, one = slice(k, k + 1), Accumulator()
            part = {name: _slice_clients(reduction, keep) for name, reduction in payload.items()}
            one.add(self._apply_stages(part, self.stages, down, clients[keep], keep, round), clients[keep], cohort)
            yield self.collect(one, round, fewest)

    def _count_deferrable_stages(self, payload: dict[str, Reduction], clients: int) -> int:
        """Stages at the end whose noise can wait for the sums: one draw per entry, not one per entry and client.

        Nobody sees more than plain sums, whose distribution is the same. Only where the draws would be too many.
        """
        every = self.world.clients * self.world.participation
        draws = every * sum(_entries(reduction.value, clients) for reduction in payload.values())
        # Real clients noise their upload before it leaves; only a simulation can put that off.
        if (
            draws < DRAWS
            or not self.secret.repeatable
            or not all(_is_plain_sum(reduction) for reduction in payload.values())
        ):
            return 0
        # Only from the end backwards: a stage behind noise acts on what was noised, and the order would change the
        # result.
        last = takewhile(lambda stage: isinstance(stage, Noise) and stage.per_entry, reversed(self.stages))
        return len(list(last))

    def collect(self, accumulator: Accumulator, round: int, fewest: float | None = None) -> Update:
        """What leaves these clients in a round, with their share of the noise that belongs to sums.

        `fewest`: of how many uploads the whole round's sum is at least; None: of these clients' alone.
        """
        clients = accumulator.clients
        # A group adds the share of noise that its clients make up of the fewest in a sum; the variances add up over
        # groups.
        share = len(clients) / fewest if fewest else 1.0
        for number, stage in enumerate(self.stages):
            # Every stage has its own stream, since two draws of one stream would cancel or double.
            where = SumContext(self.world, Stream(self.secret, round, self._earlier_noise(number)), clients, share)
            if isinstance(stage, SumGaussian):
                accumulator.add_noise_to_sums(stage, where)
            elif isinstance(stage, Noise):
                accumulator.add_deferred_noise(stage, number, where)
        return accumulator.update()

    def _apply_stages(
        self,
        payload: dict[str, Reduction],
        stages: Sequence[Stage],
        down: Down,
        clients: np.ndarray,
        keep: slice,
        round: int,
    ) -> dict[str, Reduction]:
        reference = down.shared | {name: value[keep] for name, value in down.own.items()}
        values: Values = {}
        for name, reduction in payload.items():
            # A kernel folds only where there are no stages, so this cannot happen unless a method ignores `foldable`.
            assert not isinstance(reduction.value, PartialSum), "folded uploads cannot pass stages"
            values[name] = reduction.value
        for number, stage in enumerate(stages):
            context = UploadContext(self.world, clients, round, reference, self._earlier_noise(number), self.secret)
            values = stage.apply(values, context)
        return {name: _with_value(reduction, values[name]) for name, reduction in payload.items()}

    def _earlier_noise(self, number: int) -> EarlierNoise:
        """The noise that an upload got before the stage of this number, by the upload that each acted on."""
        return (*self.noised, *(stage.only for stage in self.stages[:number] if isinstance(stage, Noise)))

    def bytes_without_noise(
        self, payload: dict[str, Reduction], clients: int, cohort: str, accumulator: Accumulator
    ) -> dict[str, int]:
        """Bytes of all these clients that no noise reaches, by what they are: whatever is not known to get some.

        That is what a noise stage leaves out by name, what is no real number, and what goes beside the values:
        weights of means and lengths. A length, or a size unlike that of others in a cohort, counts as one number.
        """
        found: dict[str, int] = {}
        for name, reduction in payload.items():
            found |= dict(self._parts_without_noise(name, reduction, clients))
            shape = _shape(reduction.value)
            # A size unlike others' tells something about the data by itself, so it counts as unprotected.
            if not _has_lengths(reduction) and accumulator.shapes.setdefault((cohort, name), shape) != shape:
                found[f"the size of '{name}'"] = clients * LENGTH
        return found

    def _parts_without_noise(self, name: str, reduction: Reduction, clients: int) -> Iterator[tuple[str, int]]:
        weighted = isinstance(reduction, Mean) and reduction.weight is not None
        weights = clients * self.world.dtype.itemsize if weighted else 0
        # Whole numbers pass noise stages untouched, because adding real noise would destroy what they encode.
        if is_exact(reduction.value) or not any(_adds_noise(stage, name, reduction) for stage in self.stages):
            sizes = np.broadcast_to(self._bytes(name, reduction, clients), clients)
            yield f"'{name}'", int(sizes.sum()) - weights
        if weights:
            yield f"the weights of '{name}'", weights
        if _has_lengths(reduction):
            yield f"the lengths of '{name}'", clients * LENGTH

    def _bytes(self, name: str, reduction: Reduction, clients: int) -> int | np.ndarray:
        """Of one client's upload; one number for each where they differ in length."""
        tensor = content(reduction.value)
        entries = _entries(reduction.value, clients)
        # A vector is one row, so that sizes of row-wise stages are defined for it as well.
        rows = max(1, entries // max(1, tensor.shape[-1]))
        if isinstance(reduction, Gather) and reduction.lengths is not None:
            return np.array([self._size(name, rows * length, rows, tensor) for length in reduction.lengths.tolist()])
        weighted = isinstance(reduction, Mean) and reduction.weight is not None
        return self._size(name, entries, rows, tensor) + (self.world.dtype.itemsize if weighted else 0)

    def _size(self, name: str, entries: int, rows: int, tensor: Tensor) -> int:
        size, indices = entries * tensor.element_size(), 0
        # Whole numbers are neither rounded nor thinned out by the stages.
        for stage in self.stages if tensor.is_floating_point() else ():
            if isinstance(stage, Shortening) and not stage.reaches(name):
                continue
            size = stage.bytes(entries, rows, size)
            if isinstance(stage, TopRows) and stage.rows_sent(rows) < rows:
                entries, rows = entries // rows * stage.rows_sent(rows), stage.rows_sent(rows)
                # Rows that were picked need their numbers told, which the dense table did not.
                indices = rows * stage.INDEX
        return size + indices


def _require_reductions(payload: dict[str, Reduction]) -> None:
    for name, reduction in payload.items():
        if not isinstance(reduction, Reduction):
            raise FedrecError(f"the upload '{name}' has no reduction; return Sum, Mean or Gather of it from local")


def _is_plain_sum(reduction: Reduction) -> bool:
    """Whether its sum over clients is all that is seen, each counting once."""
    weighted = isinstance(reduction, Mean) and reduction.weight is not None
    return not isinstance(reduction, Gather) and not weighted and not is_exact(reduction.value)


def _adds_noise(stage: Stage, name: str, reduction: Reduction) -> bool:
    """Whether a stage puts noise on the values of an upload; that on sums reaches no single one."""
    single = isinstance(stage, SumGaussian) and isinstance(reduction, Gather)
    return isinstance(stage, Noise) and stage.reaches(name) and not single


def _has_lengths(reduction: Reduction) -> bool:
    return isinstance(reduction, Gather) and reduction.lengths is not None


def _shape(value: Upload) -> tuple[int, ...]:
    """Of one client's upload."""
    return tuple(value.shape[1:] if isinstance(value, Tensor) else value.base.shape)


def _entries(value: Upload, clients: int) -> int:
    """Entries of one client's dense upload."""
    return value.base.numel() if isinstance(value, Rows | PartialSum) else value.numel() // max(1, clients)


def _slice_clients(reduction: Reduction, keep: slice) -> Reduction:
    value = reduction.value
    if isinstance(value, Rows):
        inside = (value.owner >= keep.start) & (value.owner < keep.stop)
        # Owners are positions in the chunk, so they start at zero again in the part.
        owner = value.owner[inside] - keep.start
        value = replace(
            value,
            owner=owner,
            item=value.item[inside],
            value=value.value[inside],
            clients=keep.stop - keep.start,
            shift=None if value.shift is None else value.shift[keep],
        )
    elif isinstance(value, Tensor):
        value = value[keep]
    if isinstance(reduction, Gather) and reduction.lengths is not None:
        reduction = replace(reduction, lengths=reduction.lengths[keep])
    weight = reduction.weight[keep] if isinstance(reduction, Mean) and reduction.weight is not None else None
    return _with_value(reduction, value, weight)


def _with_value(reduction: Reduction, value: Upload, weight: Tensor | None = None) -> Reduction:
    if isinstance(reduction, Mean):
        return Mean(value, weight if weight is not None else reduction.weight, reduction.by_cohort)
    if isinstance(reduction, Gather):
        assert not isinstance(value, PartialSum)
        same = Gather(value, reduction.lengths)
        # Noise also reaches the padding behind a client's own entries, which must not travel.
        return same if reduction.lengths is None else Gather(same.sent() * to_dense(value), reduction.lengths)
    return type(reduction)(value, reduction.by_cohort)
