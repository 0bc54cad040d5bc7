"""What a result cost: bytes on the wire, seconds, memory, and what privacy was had for it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import mean
from typing import Any

from fedrec.experiment.finished_run import FinishedRun
from fedrec.privacy.explain import beside
from fedrec.report.pages.views import View
from fedrec.report.records import total_bytes
from fedrec.schema import is_number


def cost_table(shown: Sequence[View]) -> dict[str, Any]:
    """One line per kind of cost, one column per configuration, means over seeds."""
    rows = [(name, [measure(view.row.runs) for view in shown]) for name, measure in MEASURES]
    if any("privacy" in run.summary for view in shown for run in view.row.runs):
        rows.append(("privacy", [_privacy(view.row.runs[0]) for view in shown]))
    if any("deployment" in run.summary for view in shown for run in view.row.runs):
        rows.append(("CPU time per node and round", [_describe_deployment(view.row.runs[0]) for view in shown]))
    return {"heads": [view.name for view in shown], "rows": rows}


def size(count: float) -> str:
    for unit in ("B", "KiB", "MiB", "GiB"):
        # Powers of 1024 with their own names, since traffic is counted in whole bytes.
        if count < 1024:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:,.1f} TiB"


def _traffic(key: str) -> Callable[[Sequence[FinishedRun]], str]:
    def measure(runs: Sequence[FinishedRun]) -> str:
        # Runs of old versions lack some.
        found = [run.summary["bytes"].get(key) for run in runs]
        # One run without the figure makes the mean one of other runs, so there is none.
        return size(mean(found)) if all(map(is_number, found)) else "–"

    return measure


def _total(direction: int) -> Callable[[Sequence[FinishedRun]], str]:
    return lambda runs: size(mean(total_bytes(run)[direction] for run in runs))


def _seconds(key: str) -> Callable[[Sequence[FinishedRun]], str]:
    return lambda runs: f"{mean(run.summary['seconds'][key] for run in runs):,.1f} s"


def _memory(runs: Sequence[FinishedRun]) -> str:
    # The largest of all seeds: a machine must hold the worst of them.
    return f"{max(run.summary['peak_memory_mb'] for run in runs):,.0f} MB"


def _rounds(runs: Sequence[FinishedRun]) -> str:
    return f"{mean(run.summary['rounds_run'] for run in runs):.3g}"


def _describe_deployment(run: FinishedRun) -> str:
    """CPU seconds of a node, beside those of a simulation of all clients where one was made."""
    found = run.summary.get("deployment", {})
    if not is_number(cpu := found.get("cpu_per_node_and_turn")):
        return "–"
    simulated = found.get("simulated_cpu_per_round")
    beside_it = f"; simulated, all clients in one process: {simulated:.2f} s" if is_number(simulated) else ""
    return f"{cpu:.2f} s on each of {found.get('nodes', 0)} nodes{beside_it}"


def _privacy(run: FinishedRun) -> str:
    found = run.summary.get("privacy")
    if found is None:
        return "none claimed"
    stages = ", ".join(found["stages"])
    more = beside(found)
    if found["epsilon"] is None:
        told = f"no finite epsilon: {found['meaning']} ({stages})"
    else:
        told = f"epsilon {found['epsilon']:.3g} at delta {found['delta']:g}; {found['meaning']} ({stages})"
    return f"{told}; {more}" if more else told


MEASURES: tuple[tuple[str, Callable[[Sequence[FinishedRun]], str]], ...] = (
    ("upload per client and round", _traffic("up_per_client_round")),
    ("download per client and round", _traffic("down_per_client_round")),
    ("largest upload", _traffic("largest_up")),
    ("largest download", _traffic("largest_down")),
    ("total upload, all clients", _total(0)),
    ("total download, all clients", _total(1)),
    ("client state between rounds", _traffic("kept_per_client")),
    ("of that, needed for scoring", _traffic("to_score_per_client")),
    ("rounds run", _rounds),
    ("training time", _seconds("train")),
    ("evaluation time", _seconds("evaluate")),
    ("peak memory", _memory),
)
