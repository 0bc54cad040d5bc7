"""The programs of a GPU's training kernels by their shape: which number of lanes and warps is fastest.

`python -m fedrec_studies.bench.shapes` needs a CUDA device and Triton. After a change of a kernel, or on another GPU,
it says what `LANES` and `WARPS` of the kernels should be.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from itertools import count
from typing import Any

from fedrec.experiment import device_named
from fedrec_studies.bench.machine import fastest, print_result
from fedrec_studies.bench.task import Task

SHAPES = [(32, 1), (32, 2), (32, 4), (64, 2), (64, 4), (64, 8), (128, 4), (128, 8)]  # lanes, warps
WORK: dict[str, tuple[str, dict[str, Any]]] = {
    "rows_triton": ("fedmf", {}),
    "ncf_triton": ("fedavg", {"backbone": "ncf", "optimiser": "adam", "lr": "0.01", "batch": "256"}),
}
TURNS = 5  # the fastest of them counts


def by_shape(kernel: str) -> Iterator[tuple[str, float]]:
    """Lanes and warps in words, and seconds of a round with them: first as the kernel has them."""
    from fedrec.kernels import ncf_triton, rows_triton  # they need Triton

    module: Any = {"rows_triton": rows_triton, "ncf_triton": ncf_triton}[kernel]
    method, params = WORK[kernel]
    task = Task(method, size="1m", device="cuda", params=params)
    run, numbers = task.run(task.interactions()), count()
    for lanes, warps in [(rows_triton.LANES, module.WARPS), *SHAPES]:
        rows_triton.LANES, module.WARPS = lanes, warps
        took = fastest(lambda: run.simulator.round(next(numbers)), TURNS, run.world.device)
        yield f"{lanes} lanes, {warps} warps", took


def all_shapes() -> dict[str, dict[str, float]]:
    device_named("cuda")
    return {kernel: dict(by_shape(kernel)) for kernel in WORK}


if __name__ == "__main__":
    sys.exit(print_result(all_shapes))
