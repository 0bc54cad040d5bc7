"""What to change in a method's settings when a run cannot go on."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import fields

import numpy as np
import torch

from fedrec.errors import DivergedError
from fedrec.federation.contract import Method


def divergence_remedy(method: Method) -> str:
    """When training diverged: the learning rates, with what they are, after what the method itself would change."""
    found = [(item.name, getattr(method, item.name)) for item in fields(method) if _is_rate(item.name)]
    named = ", ".join(f"{name}={value:g}" for name, value in found if value is not None)
    usual = f"lower the learning rate ({named})" if named else "lower its large parameters"
    return usual if method.info.remedy is None else method.info.remedy(method) + usual


def noise_remedy(method: Method) -> str:
    """When something leaves a client without noise: the settings with which noise reaches everything."""
    wanted = {name: value for name, value in method.disclosure.covered_with.items() if getattr(method, name) != value}
    settings = " ".join(f"--set {name}={value}" for name, value in wanted.items())
    return f"add {settings}" if settings else "use a method that sends none of it, such as fedmf"


def _is_rate(name: str) -> bool:
    return name == "lr" or name.startswith("lr_") or name.endswith(("_lr", "rate_scale"))


@contextmanager
def explain_divergence(method: Method, round: int) -> Iterator[None]:
    """Say in one line that numbers have diverged: a matrix that cannot be decomposed is made of such.

    What has overflowed shows in the round's figures; numpy need not warn of it as well.
    """
    try:
        with np.errstate(over="ignore", invalid="ignore"):
            yield
    except torch.linalg.LinAlgError:  # type: ignore[attr-defined]
        what = f"a matrix cannot be decomposed in round {round + 1}"
        raise DivergedError(what, divergence_remedy(method)) from None
