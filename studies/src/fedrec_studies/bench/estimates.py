"""What a round computes and moves at least, estimated from settings and shapes, beside what the machine can do."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from torch.utils.flop_counter import FlopCounterMode

from fedrec.federation import Simulator
from fedrec.kernels import count_products

PER_ENTRY = 10  # operations for an entry of a sample's row: forward, two gradients, two steps
PASSES = 4  # how often an entry of a sample's row is moved: row and partner, each read and written
NETWORK = 6  # operations for a weight of a network and a sample: forward and two gradients


@dataclass(frozen=True)
class Work:
    """Of one round. `flops` and `bytes` are estimates: the least that the algorithm needs, not what was counted."""

    interactions: int
    samples: int
    flops: float
    bytes: float

    def rates(self, seconds: float, machine: dict[str, Any]) -> dict[str, float]:
        """Per second, and the part of the time that this machine would need at its own rates."""
        least = max(self.flops / machine["matmul_gflop_per_s"], self.bytes / machine["copy_gb_per_s"]) / 1e9
        return {
            "interactions_per_s": self.interactions / seconds,
            "gflop_per_s": self.flops / seconds / 1e9,
            "gb_per_s": self.bytes / seconds / 1e9,
            "roofline": least / seconds,
        }


def work_of(simulator: Simulator, number: int) -> Work:
    """Runs one round more, in which torch and compiled kernels count the products of matrices."""
    method, data = simulator.method, simulator.data
    with FlopCounterMode(display=False) as counter, count_products() as compiled:
        simulator.round(number)
    counted = counter.get_total_flops() + sum(compiled)
    interactions = int(data.positives.sum())
    trains = trains_on_samples(method) and (hasattr(method, "trainer") or not counted)
    samples = interactions * (1 + data.negatives) * int(getattr(method, "epochs", 1)) if trains else interactions
    width = int(getattr(method, "dim", 0)) if trains else 0
    network = 0 if counted or not trains else _weights(method)
    side = simulator.client_side
    held = (
        side.state_bytes()[0] - side.count_deferred_bytes() + sum(value.nbytes for value in simulator.server.values())
    )
    return Work(
        interactions,
        samples,
        samples * (PER_ENTRY * width + NETWORK * network) + counted,
        samples * PASSES * width * data.world.dtype.itemsize + 2 * held,
    )


def trains_on_samples(method: Any) -> bool:
    """By a trainer, or in mini-batches of its own."""
    return hasattr(method, "trainer") or hasattr(method, "batch")


def _weights(method: Any) -> int:
    """Of the network that a compiled kernel trains: torch does not see its products.

    What the first layer does to the user's half is the same for a whole batch.
    """
    model: Any = getattr(method, "model", None)  # a method with batches of its own may have none
    shapes = model.dense_shapes() if hasattr(model, "dense_shapes") else {}
    weights = [math.prod(shape) for shape in shapes.values() if len(shape) > 1]
    once = weights[0] // 2 if weights and getattr(model, "has_user", False) else 0
    return sum(weights) - once
