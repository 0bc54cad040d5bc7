"""The guarantee of noise that a method itself adds."""

from __future__ import annotations

from fedrec.federation.declarations import OwnNoise
from fedrec.privacy.accountant import NOT_COVERED, epsilon_of, zcdp


def epsilon(noise: OwnNoise) -> float:
    """By exact composition, for a client whose data are replaced."""
    # The exact figure leads; the looser bound is for comparison with work that composes so.
    return epsilon_of(noise.scale / noise.sensitivity, noise.steps, noise.delta)


def looser_epsilon(noise: OwnNoise) -> float:
    """The bound by zero-concentrated privacy."""
    return zcdp(noise.sensitivity / noise.scale, noise.steps, noise.delta)[1]


def sentence(noise: OwnNoise) -> str:
    limits = f", {noise.limits}" if noise.limits else ""
    return (
        f"{noise.settings}; {noise.steps} {noise.counted} give epsilon = {epsilon(noise):.4g} at delta = {noise.delta} "
        f"(by zero-concentrated privacy, a looser bound: {looser_epsilon(noise):.4g}){limits}; "
        f"not covered: {NOT_COVERED}"
    )
