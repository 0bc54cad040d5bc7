"""What an accelerator did in a piece of work: launches, waits of the host, copies, and its share of the time."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch._C._autograd import DeviceType
from torch.profiler import ProfilerActivity, profile

from fedrec_studies.bench.machine import seconds

CALLS = {
    "launches": ("cudaLaunchKernel", "cudaLaunchKernelExC", "cuLaunchKernel", "cuLaunchKernelEx", "cudaGraphLaunch"),
    "waits": ("cudaStreamSynchronize", "cudaEventSynchronize", "cudaDeviceSynchronize"),
    "copies": ("cudaMemcpyAsync", "cudaMemcpy", "cudaMemsetAsync"),
}
NAMED = 6  # kernels, and places in the code that wait
TURNS = 5  # one after another, as in a run: the host may ask for the next while the device is at one


def trace_work(work: Callable[[], object], device: torch.device) -> dict[str, Any]:
    """Trace a piece of work, which is repeated, as {"trace": ...}; return nothing on a CPU."""
    if device.type != "cuda":
        return {}
    nothing, events = _profile_work(lambda: None, device), _profile_work(work, device)
    # less our own wait at the end, and the profiler's
    told = {kind: _calls(events, names) - _calls(nothing, names) for kind, names in CALLS.items()}
    kernels = [event for event in events if event.device_type == DeviceType.CUDA]
    busy = sum(event.self_device_time_total for event in kernels) / 1e6
    wall = seconds(lambda: [work() for _ in range(TURNS)], device) / TURNS
    longest = sorted(kernels, key=lambda event: -event.self_device_time_total)[:NAMED]
    return {
        "trace": told
        | {
            "busy_seconds": busy,
            "seconds": wall,
            "busy_share": busy / wall,
            "longest": [
                {"kernel": event.key[:100], "seconds": event.self_device_time_total / 1e6, "times": event.count}
                for event in longest
            ],
            "waits_at": dict(Counter(_waiting(work)).most_common(NAMED)),
        }
    }


def _profile_work(work: Callable[[], object], device: torch.device) -> Any:
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as seen:
        seconds(work, device)
    return seen.key_averages()


def _calls(events: Any, names: tuple[str, ...]) -> int:
    return sum(event.count for event in events if event.key in names)


def _waiting(work: Callable[[], object]) -> list[str]:
    """Where in the code the host waits for the device, once for every time."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        torch.cuda.set_sync_debug_mode("warn")
        try:
            work()
        finally:
            torch.cuda.set_sync_debug_mode("default")
    told = [found for found in caught if str(found.message).startswith("called a synchroniz")]
    return [f"{Path(found.filename).name}:{found.lineno}" for found in told]
