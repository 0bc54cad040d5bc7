"""What must be reported with an epsilon, or instead of one; for the terminal and the report."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from fedrec.federation.noise import SumGaussian
from fedrec.federation.stages import Stage
from fedrec.privacy.accountant import Adjacency

# An assumption for reports, not a measurement: colluders tell the server what noise they added, which it can subtract.
COLLUDING = 0.2


def describe_relation(
    stages: Sequence[Stage],
    epsilon_by: Callable[[Adjacency, float], float | None],
    adjacency: Adjacency,
    *,
    single_users: bool,
    computed: bool,
) -> dict[str, Any]:
    """Say what an epsilon is of, and what it would be by the other relation and with colluding clients.

    `epsilon_by`: by the relation, and the share of a sum's noise that nobody knows.
    `computed`: the server sees sums alone because they are secure, not because that is assumed.
    """
    unit = "a client, which is one user" if single_users else "a client with all of its users"
    found: dict[str, Any] = {"unit": unit, "adjacency": adjacency}
    if not any(isinstance(stage, SumGaussian) for stage in stages):
        return found | {"trust": "nobody outside the client is trusted"}
    # Both relations are reported, because papers state either and the figures differ by up to a factor of two in
    # distance.
    other: Adjacency = "replace" if adjacency == "zero-out" else "zero-out"
    return found | {
        "trust": "the server sees nothing but sums" + ("" if computed else ", which is assumed here"),
        "other_adjacency": {"adjacency": other, "epsilon": epsilon_by(other, 1.0)},
        "colluding": {"share": COLLUDING, "epsilon": epsilon_by(adjacency, 1 - COLLUDING)},
    }


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
    # Run folders of old versions stay readable.
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
