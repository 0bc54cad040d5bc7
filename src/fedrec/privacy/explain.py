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
        f"{planned['uploads']} rounds, epsilon {planned['epsilon']:.3g}; not covered: {privacy['not_covered']}"
    )


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count} times"
