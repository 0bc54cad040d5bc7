"""What figures were measured on, how fast that machine copies and multiplies, and measuring in a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from fedrec.errors import FedrecError, explain
from fedrec.experiment import memory_of, peak_memory_mb, processor, sigterm_interrupts, versions

COPIED = 1 << 26  # numbers, far beyond a cache
SIDE = 1024  # of the matrices that are multiplied
TURNS = 5  # the fastest of them counts: other work on the machine only ever slows a turn down


def describe(device: torch.device) -> dict[str, Any]:
    """The machine and what is installed on it, with its rates as they are now."""
    cuda = device.type == "cuda"
    return {
        "device": torch.cuda.get_device_name(device) if cuda else processor(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "threads": torch.get_num_threads(),
        "memory_gib": round((memory_of(device) or 0) / 2**30, 1),
        "load": [round(value, 2) for value in os.getloadavg()] if hasattr(os, "getloadavg") else [],
        "versions": versions(),
        **rates(device),
    }


def rates(device: torch.device) -> dict[str, float]:
    """GB/s of a copy (read and written) and GFLOP/s of a product of matrices, both in single precision."""
    source = torch.ones(COPIED, device=device)
    target = torch.empty_like(source)
    left, right = torch.rand(2, SIDE, SIDE, device=device)
    copy = fastest(lambda: target.copy_(source), TURNS, device)
    multiply = fastest(lambda: left @ right, TURNS, device)
    return {"copy_gb_per_s": 8 * COPIED / copy / 1e9, "matmul_gflop_per_s": 2 * SIDE**3 / multiply / 1e9}


def fastest(work: Callable[[], object], turns: int, device: torch.device) -> float:
    """The least seconds of some turns, after one that is not counted: other work on the machine only adds to it."""
    return min([seconds(work, device) for _ in range(turns + 1)][1:])


def seconds(work: Callable[[], object], device: torch.device) -> float:
    """Of one turn, until the device has done it."""
    started = time.perf_counter()
    work()
    settle(device)
    return time.perf_counter() - started


def settle(device: torch.device) -> None:
    """Wait until an accelerator has done all that it was asked for."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def peak_gib() -> float:
    """The most memory that this process ever held."""
    status = Path("/proc/self/status")
    if not status.exists():
        return peak_memory_mb() / 1024
    # what the system counts for a process may include its parent's, from before the program began
    line = next(line for line in status.read_text(encoding="ascii").splitlines() if line.startswith("VmHWM"))
    return int(line.split()[1]) / 2**20


def device_peak_gib(device: torch.device) -> float:
    """The same of an accelerator, or of this process where that is the device."""
    return torch.cuda.max_memory_allocated(device) / 2**30 if device.type == "cuda" else peak_gib()


class Elsewhere:
    """How many cores other processes keep busy from now on: figures taken beside other work should say so."""

    def __init__(self) -> None:
        self._wall, self._busy = time.perf_counter(), _busy()

    def cores(self) -> float:
        """0 where the system does not say."""
        return max(0.0, (_busy() - self._busy) / (time.perf_counter() - self._wall))


def _busy() -> float:
    """Seconds that the cores have worked so far for others than this process and those that it waited for."""
    status = Path("/proc/stat")
    if not status.exists():
        return 0.0
    user, nice, system, _idle, _waiting, *interrupts = status.read_text(encoding="ascii").splitlines()[0].split()[1:9]
    ours = os.times()
    every = sum(map(int, (user, nice, system, *interrupts))) / os.sysconf("SC_CLK_TCK")
    return every - (ours.user + ours.system + ours.children_user + ours.children_system)


def in_a_process(words: Sequence[str], within: float | None = None) -> dict[str, Any]:
    """What Python prints as JSON on its last line when it is started with these words, within so many seconds.

    Interrupted, it ends with us.
    """
    command = [sys.executable, *words]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as child:
        try:
            out, complaint = child.communicate(timeout=within)
        except BaseException as stop:
            child.terminate()  # which it passes on to processes of its own
            if isinstance(stop, subprocess.TimeoutExpired):
                raise FedrecError(f"it took more than {within:g} s") from None
            raise
    lines = out.splitlines()
    if child.returncode or not lines:
        why = (complaint.strip().splitlines() or [f"it exited with code {child.returncode}"])[-1]
        raise FedrecError(f"{' '.join(command[1:4])} failed: {why}")
    found: dict[str, Any] = json.loads(lines[-1])
    return found


def print_result(work: Callable[[], dict[str, Any] | None]) -> int:
    """Print the result of `work`, or its error in one line, for `in_a_process`; return the exit code."""
    try:
        with sigterm_interrupts():
            found = work()
    except KeyboardInterrupt:
        return 130
    except Exception as error:
        if (message := explain(error)) is None:
            raise
        print(message, file=sys.stderr)
        return 2
    if found is not None:
        print(json.dumps(found))
    return 0
