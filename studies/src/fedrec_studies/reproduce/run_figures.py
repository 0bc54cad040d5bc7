"""What a finished run of a table has figures for: its test metrics, and quantities that only some tables print."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedrec.experiment import RunFolder

# FedCA prints kilobytes of eight-byte floats; runs send four-byte ones, so bytes double before they become kilobytes
WIDE = 2 / 1024
# FedRKG's tables D.3 and D.4 print the first group relative to the second
RATIOS = (("followers", "distinct"), ("warm", "cold"))
# the usual size has no suffix: 100 users in D.3, 30 % in D.4
SIZED = ("", " 300", " 500", " 20%", " 10%")


def figures_of(summary: Mapping[str, Any], folder: Path) -> dict[str, float]:
    """By name: test metrics and, as `valid ...`, validation metrics; kilobytes per client and round, megabytes that a
    client has sent and received to the chosen round; and what the last guidance round changed."""
    valid = {f"valid {name}": value for name, value in summary.get("valid", {}).items()}
    return {**summary["test"], **valid, **_kilobytes(summary), **_megabytes(summary, folder), **_inside(folder)}


def figure_name(metric: str, group: str) -> str:
    """That of a metric in a group of users."""
    return f"{metric} {group}" if group else metric


def sent(summary: Mapping[str, Any], folder: Path) -> tuple[float, float]:
    """Bytes that a client has sent and received up to the chosen round, in the mean over clients."""
    chosen = [record for record in RunFolder(folder).records() if record["round"] <= summary["best_round"]]
    up, down = (sum(record[way] for record in chosen) / summary["clients"] for way in ("bytes_up", "bytes_down"))
    return up, down


def _megabytes(summary: Mapping[str, Any], folder: Path) -> dict[str, float]:
    if "clients" not in summary:
        return {}
    return dict(zip(("MB up", "MB down"), (way / 1e6 for way in sent(summary, folder)), strict=True))


def _kilobytes(summary: Mapping[str, Any]) -> dict[str, float]:
    sent = summary.get("bytes", {})
    names = {"download_kb": "down_per_client_round", "upload_kb": "up_per_client_round"}
    return {name: WIDE * float(sent[key]) for name, key in names.items() if key in sent}


def _inside(folder: Path) -> dict[str, float]:
    """Of the last round that was looked into: changes as they are, gates of two groups as a relative difference."""
    seen = [record["inside"] for record in RunFolder(folder).records() if record.get("inside")]
    return guidance_figures(seen[-1]) if seen else {}


def guidance_figures(inside: Mapping[str, float]) -> dict[str, float]:
    found = {name: value for name, value in inside.items() if " change " in name or name in ("improved", "declined")}
    for high, low in RATIOS:
        for size in SIZED:
            for kind in ("gate", "logit"):
                pair = f"{kind} {low}{size}", f"{kind} {high}{size}"
                if all(name in inside for name in pair) and inside[pair[0]]:
                    was, now = inside[pair[0]], inside[pair[1]]
                    found[f"{kind} change {high} to {low}{size}"] = (now - was) / abs(was)
    return found
