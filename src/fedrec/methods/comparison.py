"""What the methods that aggregate item tables share when they are compared: local training, and who is aggregated.

The setting is that of FedCA's comparison (Zhang et al., TOIS 2026), the one publication that runs all of them alike.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np

from fedrec.federation.contract import Plan, Tensors, World, participants
from fedrec.federation.ranges import Count, Share
from fedrec.random import Purpose, fold_array, stream
from fedrec.training.local_training import LocalTraining

AGGREGATED = 1  # the stream that draws who is aggregated


@dataclass(frozen=True)
class Compared(LocalTraining):
    """Local training as in that comparison, the same for every backbone."""

    rounds: Count = 100
    dim: Count = 16
    init: Literal["normal", "uniform"] = "uniform"
    lr: float = 0.01
    weight_decay_dense: float = 1e-3
    epochs: Count = 10
    batch: Count = 256
    optimiser: Literal["sgd", "adam"] = "adam"  # moments start afresh every round


@dataclass(frozen=True)
class Aggregating(LocalTraining):
    """All that take part train; a part of them, drawn afresh every round, is aggregated."""

    aggregated_fraction: Share = 1.0  # of those who train: who uploads, and receives what is its own

    def plan(self, world: World, server: Tensors, round: int) -> Plan:
        train = participants(world, round, world.participation)
        draws = fold_array(stream(world.seed, Purpose.PARTICIPATION, round, AGGREGATED), train)
        chosen = train[np.sort(np.argsort(draws, kind="stable")[: self.aggregated(len(train))])]
        return Plan(train, upload=chosen)

    def aggregated(self, training: int) -> int:
        """How many of those who train."""
        return max(1, int(self.aggregated_fraction * training + 1e-9))


# The preset `fedca` of those who send nothing, and of those who are aggregated.
ALONE: Mapping[str, object] = {name: getattr(Compared, name) for name in Compared.__annotations__}
TOGETHER: Mapping[str, object] = {**ALONE, "aggregated_fraction": 0.6}
