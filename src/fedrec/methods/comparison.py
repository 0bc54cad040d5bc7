"""The setting of FedCA's comparison (Zhang et al., TOIS 2026): local training, and who is aggregated.

It is a preset of every such method; where it is what a method has by default, `@compared` says so.
"""

from __future__ import annotations

from typing import TypeVar, get_type_hints

import numpy as np

from fedrec.federation.contract import Plan, World, participants
from fedrec.federation.declarations import Preset
from fedrec.random import Purpose, fold_array, stream
from fedrec.training.local_training import LocalMethod

Kind = TypeVar("Kind", bound=LocalMethod)

FEDCA_ALONE = Preset(
    "Local training of FedCA's comparison: Adam at 0.01, 10 epochs, 16 dimensions.",
    {
        "rounds": 100,
        "dim": 16,
        "init": "uniform",
        "lr": 0.01,
        "weight_decay_dense": 1e-3,
        "epochs": 10,
        "batch": 256,
        "optimiser": "adam",  # moments start afresh every round
    },
)
"""Of those who send nothing: local training, the same for every backbone."""

FEDCA = Preset(
    "As in FedCA's comparison: Adam at 0.01, 10 epochs, 16 dimensions, 60 % of the clients aggregated.",
    {**FEDCA_ALONE, "aggregated_fraction": 0.6},
)
"""Of those who are aggregated."""

AGGREGATED = 1  # the stream that draws who is aggregated


def compared(kind: type[Kind]) -> type[Kind]:
    """Local training as in that comparison for the defaults of a class. Stands below `@dataclass`."""
    hints = get_type_hints(LocalMethod, include_extras=True)
    for name, value in FEDCA_ALONE.items():
        kind.__annotations__[name] = hints[name]
        setattr(kind, name, value)
    return kind


def plan_part(world: World, round: int, fraction: float) -> Plan:
    """All that take part train; a part of them, drawn afresh every round, is aggregated."""
    train = participants(world, round, world.participation)
    count = part_of(len(train), fraction)
    if count >= len(train):
        return Plan(train)
    draws = fold_array(stream(world.seed, Purpose.PARTICIPATION, round, AGGREGATED), train)
    return Plan(train, upload=train[np.sort(np.argpartition(draws, count)[:count])])


def part_of(training: int, fraction: float) -> int:
    """How many of those who train are aggregated."""
    return max(1, int(fraction * training + 1e-9))
