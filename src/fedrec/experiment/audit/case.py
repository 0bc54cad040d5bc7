"""What is audited: a split, how its test items are ranked, and whatever else is known about the experiment."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedrec.data import Filtered, Interactions, Split
from fedrec.evaluation import Evaluator, Pairs, Protocol, Targets, candidate_targets
from fedrec.evaluation.targets import Ints, pair_keys
from fedrec.experiment.audit.draws import Draws, Exposure, SampledDraws, exposure
from fedrec.experiment.prepare import Prepared, prepare
from fedrec.federation.contract import World

QUICK_ROUNDS = 20
# At most so many scores at once, since those of all users and items would not fit together.
CELLS = 8_000_000
ABSENT = {
    "validation": "there is no validation part",
    "negatives": "all items are ranked, none are sampled",
    "scores": "scores are audited from files: --train, --test and --scores",
    "times": "the data has no timestamps",
    "clock": "the data has no timestamps comparable between users",
}
Scorer = Callable[[Ints], Tensor]
"""Logits [users, items] of some users."""


@dataclass(frozen=True)
class Scores:
    """Scores of somebody's model, one row per pair."""

    user: Ints
    item: Ints
    score: NDArray[np.float64]

    @property
    def finite(self) -> bool:
        return bool(np.isfinite(self.score).all())


@dataclass(frozen=True)
class Case:
    """`targets` is what the test ranks, `full` the same with the whole catalogue as candidates.

    The fields that may be None are what some checks need; `absent` says for each why it is not there.
    """

    title: str
    split: Split
    targets: Targets
    full: Targets
    candidates: NDArray[Any]
    """Items ranked per evaluated user, the held-out ones included."""
    k: int = 10
    ties: str = "expected"
    validation: Targets | None = None
    """What validation ranks, where that is known."""
    protocol: Protocol | None = None
    prepared: Prepared | None = None
    draws: Draws | None = None
    negatives: Pairs | None = None
    """Evaluation negatives as they came, repetitions and faults included."""
    scores: Scores | None = None
    quick: bool = False
    absent: Mapping[str, str] = field(default_factory=dict)

    @property
    def n_items(self) -> int:
        return self.split.train.n_items

    @property
    def metric(self) -> str:
        return f"{'hr' if self.targets.single else 'recall'}@{self.k}"

    @property
    def filters(self) -> tuple[Filtered, ...]:
        """What the protocol's filters left out; a split that was given is taken as it is."""
        return () if self.prepared is None else self.prepared.filters

    @property
    def new_items(self) -> bool:
        """Whether test items were out of training's reach because the split is by items."""
        return self.prepared is not None and self.prepared.warm is not None

    @property
    def times(self) -> bool:
        """Whether training and test say in which order a user acted."""
        return self.split.train.time == self.split.test.time != "none"

    @property
    def clock(self) -> bool:
        """Whether times of different users can be compared."""
        return self.split.train.time == self.split.test.time == "real"

    def keys(self, *names: str) -> Ints:
        """The distinct pairs of some parts as integers."""
        return pair_keys([pairs(getattr(self.split, name)) for name in names], self.n_items)

    @cached_property
    def exposure(self) -> Exposure:
        assert self.draws is not None
        train, n_users = pairs(self.split.train), self.split.train.n_users
        hidden = np.setdiff1d(self.keys("valid", "test"), self.keys("train"), assume_unique=True)
        held_out = (hidden // self.n_items, hidden % self.n_items)
        return exposure(self.draws, train, held_out, n_users, self.targets, self.k, self.ties)

    @cached_property
    def popularity(self) -> Scorer:
        counts = np.bincount(self.split.train.item, minlength=self.n_items)
        row = torch.from_numpy(counts.astype(np.float64))
        return lambda users: row.expand(len(users), -1)

    def constant(self, users: Ints) -> Tensor:
        return torch.zeros(1, 1).expand(len(users), self.n_items)

    def recall(self, scorer: Scorer, targets: Targets | None = None, ties: str | None = None) -> float:
        """recall@k of a scorer, ranked as the case ranks unless told otherwise."""
        targets = targets or self.targets
        judge = Evaluator(targets, ks=(self.k,), ties=ties or self.ties, metrics=("recall",))
        for users in np.array_split(targets.users, -(-len(targets) * self.n_items // CELLS)):
            judge.update(users, scorer(users))
        return judge.result().mean()[f"recall@{self.k}"]

    @property
    def chance(self) -> float:
        """recall@k of a random ranking."""
        return chance_of(self.candidates, self.k)


def chance_of(candidates: NDArray[Any], k: int) -> float:
    return float(np.minimum(1.0, k / candidates).mean())


def noise(share: float, users: int) -> float:
    """The standard error of a share over this many users."""
    # Rounding may take the product a hair below zero, which has no root.
    return float(np.sqrt(max(share * (1 - share), 0.0) / users))


def pairs(part: Interactions) -> Pairs:
    return part.user, part.item


def from_protocol(data: Interactions, protocol: Protocol, rounds: int = 100, quick: bool = False) -> Case:
    """A data set under a protocol: split, sampler and evaluation are those of `fedrec run`."""
    return from_prepared(prepare(data, protocol), rounds, quick)


def from_prepared(prepared: Prepared, rounds: int = 100, quick: bool = False) -> Case:
    """Whatever `fedrec run` can train on."""
    protocol, targets, source = prepared.protocol, prepared.test, prepared.source
    world = World(items=prepared.n_trained, clients=prepared.partition.n_clients)
    sampled = targets.candidates
    return Case(
        title=f"{source.label} under {protocol.label}",
        split=prepared.split,
        targets=targets,
        full=targets if sampled is None else _all_items(prepared),
        candidates=targets.n_candidates,
        # The nearest to 10, at which most published figures are given.
        k=min(protocol.ks, key=lambda k: abs(k - 10)),
        ties=protocol.ties,
        validation=prepared.valid,
        protocol=protocol,
        prepared=prepared,
        draws=SampledDraws(prepared.clients(world), min(rounds, QUICK_ROUNDS) if quick else rounds),
        negatives=None if sampled is None else (np.repeat(targets.users, sampled.shape[1]), sampled.ravel()),
        quick=quick,
        absent=ABSENT,
    )


def _all_items(prepared: Prepared) -> Targets:
    """What the test would rank without sampling."""
    split, whole = prepared.split, dataclasses.replace(prepared.protocol, candidates="full")
    dropped = None if prepared.dropped is None else pairs(prepared.dropped)
    train, valid, test = (pairs(part) for part in (split.train, split.valid, split.test))
    return candidate_targets(train, valid, test, prepared.n_items, whole, dropped=dropped)[1]
