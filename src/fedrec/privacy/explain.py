"""What must be reported with an epsilon, or instead of one; for the terminal and the report."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def beside(privacy: Mapping[str, Any]) -> str:
    """From the `privacy` of a summary; those of old versions say less."""
    if "planned" not in privacy:
        return ""
    return _without_noise(privacy) if privacy["epsilon"] is None else _limits(privacy)


def _without_noise(privacy: Mapping[str, Any]) -> str:
    sizes = ", ".join(f"{part} {count:,}" for part, count in privacy["unprotected_bytes"].items())
    return f"bytes uploaded without noise, over all clients and rounds: {sizes}" if sizes else ""


def _limits(privacy: Mapping[str, Any]) -> str:
    planned = privacy["planned"]
    return (
        f"for the client that uploaded most often, {_times(privacy['uploads'])}; with one upload in each of "
        f"{planned['uploads']} rounds, epsilon {planned['epsilon']:.3g}; {_relation(privacy)}not covered: "
        f"{privacy['not_covered']}"
    )


def _relation(privacy: Mapping[str, Any]) -> str:
    """Whose data are protected against whom, and the other figures that follow; empty for runs that do not say."""
    if "unit" not in privacy:
        return ""
    words = f"unit: {privacy['unit']}; adjacency: {privacy['adjacency']}; trust: {privacy['trust']}; "
    if "other_adjacency" not in privacy:
        return words
    other, colluding = privacy["other_adjacency"], privacy["colluding"]
    return (
        f"{words}by {other['adjacency']}, epsilon {other['epsilon']:.3g}; where {colluding['share']:.0%} of clients "
        f"tell the server what noise they added, epsilon {colluding['epsilon']:.3g}; "
    )


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count} times"
