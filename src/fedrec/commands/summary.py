"""The result of a run, in the terminal."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fedrec.commands.console import describe_left_out, human, out, table
from fedrec.data import Filtered
from fedrec.evaluation import protocol
from fedrec.experiment.tested import Tested
from fedrec.privacy.explain import beside

MOST = 0.5  # of the users: below it a result says little about the others


def _how(summary: Mapping[str, Any]) -> str:
    """Why this round counts: where an epsilon is printed it is the last, never a chosen one."""
    return "counts, the last" if summary.get("privacy", {}).get("epsilon") is not None else "chosen"


def _with(summary: Mapping[str, Any]) -> str:
    """What was chosen together with the round."""
    return "".join(f", and {name}={value:g} with it" for name, value in summary.get("decided", {}).items())


def last_chosen(summary: Mapping[str, Any]) -> bool:
    """Whether validation was still improving when the rounds ended; of an epsilon it is always the last that counts."""
    at_end = summary["best_round"] + 1 == summary["rounds_run"] > 1
    # Under a budget the last round always counts, so that it was chosen says nothing about more rounds.
    private = summary.get("privacy", {}).get("epsilon") is not None
    return at_end and bool(summary["valid"]) and not private and not summary.get("stopped_early")


def show_summary(summary: Mapping[str, Any], more: str = "") -> None:
    """The result of one run: what was measured, on what, by which protocol, at what cost.

    `more`: the command that goes on for more rounds, where there is one.
    """
    data = summary["dataset"]
    out.print(
        f"{summary['method']}  {data['name']}@{data['version']}  protocol {summary['protocol']}  "
        f"seed {summary['seed']}",
        style="bold",
    )
    if (tested := Tested.from_summary(summary)) is not None:
        # Printed in another colour where few users were tested, because the figures then say little about the rest.
        out.print(f"tested on {tested}", style="bold" if tested.share >= MOST else "bold yellow")
    for leak in summary["leaks"]:
        out.print(f"not honest: {leak}", style="yellow")
    out.print(
        f"{data['users']:,} users, {data['items']:,} items, {data['interactions']:,} interactions, "
        f"{summary['clients']:,} clients; round {summary['best_round'] + 1} of {summary['rounds_run']} "
        f"{_how(summary)}{_with(summary)}"
    )
    if last_chosen(summary):
        out.print("the last round was chosen: more rounds may help" + (f": {more}" if more else ""))
    for record in summary["filtered"]:
        out.print(describe_left_out(Filtered.from_dict(record)))
    if summary.get("diverged"):
        out.print(f"warning: {summary['diverged']}", style="yellow")
    out.print(protocol(summary["protocol"]).masks)
    names = [name for name in summary["test"] if not name.startswith("hr@")]
    rows = [
        [name, summary["test"][name], summary["valid"].get(name, "-"), summary["chance"].get(name, "-")]
        for name in names
    ]
    table(["metric", "test", "validation", "chance"], rows)
    seconds, traffic = summary["seconds"], summary["bytes"]
    out.print(
        f"{seconds['train']:.1f} s training, {seconds['evaluate']:.1f} s evaluating; per client and round "
        f"{human(traffic['up_per_client_round'])} up, {human(traffic['down_per_client_round'])} down; "
        f"peak memory {summary['peak_memory_mb']:,.0f} MB"
    )
    out.print(
        f"a client stores {human(traffic['kept_per_client'])} between rounds and scores with "
        f"{human(traffic['to_score_per_client'])} of it; largest message {human(traffic['largest_up'])} up, "
        f"{human(traffic['largest_down'])} down"
    )
    if "privacy" in summary:
        show_privacy(summary["privacy"])


def show_privacy(privacy: Mapping[str, Any]) -> None:
    """What noise on uploads guarantees."""
    epsilon, delta = privacy["epsilon"], privacy["delta"]
    value = "no finite epsilon" if epsilon is None else f"epsilon {epsilon:.3g}, delta {delta:g}"
    out.print(f"privacy: {value} ({privacy['meaning']})")
    if more := beside(privacy):
        out.print(f"  {more}")
