"""The machine that a run is on: its device, its memory, what is installed."""

from __future__ import annotations

import platform
import sys

import numpy as np
import torch

from fedrec.errors import FedrecError
from fedrec.version import __version__


def device_named(name: str) -> torch.device:
    if name not in ("cpu", "cuda"):
        raise FedrecError(f"--device {name}: use cpu or cuda")
    if name == "cuda" and not torch.cuda.is_available():
        raise FedrecError("--device cuda: PyTorch sees no CUDA device here; use --device cpu")
    return torch.device(name)


def peak_memory_mb() -> float:
    """Peak memory of this process; 0 where the system does not say."""
    try:
        import resource
    except ImportError:
        return 0.0
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return round(peak / (1024 * 1024 if sys.platform == "darwin" else 1024), 1)


def versions() -> dict[str, str]:
    return {
        "fedrec": __version__,
        "python": platform.python_version(),
        "torch": str(torch.__version__),
        "numpy": np.__version__,
    }
