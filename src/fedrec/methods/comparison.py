"""The setting of FedCA's comparison (Zhang et al., TOIS 2026): local training, and who is aggregated.

It is a preset of every such method; where it is what a method has by default, `@compared` says so.
"""

from __future__ import annotations

from pathlib import Path
from typing import TypeVar, get_type_hints

import numpy as np

from fedrec.federation.contract import Plan, World, participants
from fedrec.federation.settings_files import read_presets
from fedrec.random import Purpose, fold_array, stream
from fedrec.training.local_training import LocalMethod

Kind = TypeVar("Kind", bound=LocalMethod)

ALONE = read_presets(Path(__file__).with_suffix(".toml"))["alone"]
"""Local training of those who send nothing, the same for every backbone."""

AGGREGATED = 1  # the stream that draws who is aggregated


def compared(kind: type[Kind]) -> type[Kind]:
    """Local training as in that comparison for the defaults of a class. Stands below `@dataclass`."""
    hints = get_type_hints(LocalMethod, include_extras=True)
    for name, value in ALONE.items():
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
