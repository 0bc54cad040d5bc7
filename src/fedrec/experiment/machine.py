"""The machine that a run is on: its device, its memory, what is installed."""

from __future__ import annotations

import math
import os
import platform
import sys
from contextlib import suppress
from pathlib import Path

import numpy as np
import torch

from fedrec import __version__
from fedrec.errors import FedrecError

CGROUPS = (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"))


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


def processor() -> str:
    """Its name, as the system says it."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text(encoding="utf-8").splitlines() if info.exists() else []
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def hardware(device: torch.device) -> str:
    """What a run was computed on, in words."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    threads = torch.get_num_threads()
    return f"{processor()}, {threads} thread{'s' if threads > 1 else ''}"


def memory_of(device: torch.device) -> int | None:
    """Bytes that a process can have: of the device, or of this machine and of what contains the process.

    None where the system does not say.
    """
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[1])
    found = [_read_limit(path) for path in CGROUPS]
    with suppress(AttributeError, ValueError, OSError):  # Windows has no sysconf
        found.append(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    return min((size for size in found if size), default=None)


def _read_limit(path: Path) -> int | None:
    try:
        text = path.read_text(encoding="ascii").strip()
    except OSError:
        return None
    return int(text) if text.isdigit() else None


def size_text(count: float) -> str:
    """Bytes for people, as 1.5 GiB."""
    power = min(4, max(1, int(math.log2(max(count, 1)) // 10)))
    return f"{count / 1024**power:,.1f} {'KMGT'[power - 1]}iB"


def free_memory() -> int | None:
    """Bytes that a process can have now without others being pushed out; None where the system does not say."""
    info = Path("/proc/meminfo")
    lines = info.read_text(encoding="ascii").splitlines() if info.exists() else []
    return next((1024 * int(line.split()[1]) for line in lines if line.startswith("MemAvailable:")), None)
