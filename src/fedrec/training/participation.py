"""Who takes part where all train, and only a part of them is aggregated."""

from __future__ import annotations

import numpy as np

from fedrec.federation.contract import Plan, World, participants
from fedrec.random import Purpose, fold_array, stream

AGGREGATED = 1  # the stream that draws who is aggregated


def plan_part(world: World, round: int, fraction: float) -> Plan:
    """Let all that take part train, and aggregate a part of them, drawn afresh every round."""
    train = participants(world, round, world.participation)
    count = part_of(len(train), fraction)
    if count >= len(train):
        return Plan(train)
    draws = fold_array(stream(world.seed, Purpose.PARTICIPATION, round, AGGREGATED), train)
    return Plan(train, upload=train[np.sort(np.argpartition(draws, count)[:count])])


def part_of(training: int, fraction: float) -> int:
    """Count those who are aggregated among so many who train."""
    # 0.6 * 5 is 3 in exact arithmetic and slightly less in binary
    return max(1, int(fraction * training + 1e-9))
