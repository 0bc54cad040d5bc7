"""Centralised matrix factorisation: one model on everybody's data, the reference that federation is measured against.

One round is one epoch over all users' shuffled samples, negatives redrawn.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from fedrec import method as fm
from fedrec.methods.reference.local import Local


@dataclass(frozen=True)
class CentralMF(Local):
    """Local with a single client, which has everything."""

    info: ClassVar[fm.MethodInfo] = fm.MethodInfo(
        name="mf",
        summary="matrix factorisation",
        paper="Koren et al., Computer 2009",
        backbones={"mf": {}},
        centralised=True,
    )

    rounds: fm.Count = 30
    lr: float = 0.001
    optimiser: Literal["sgd", "adam"] = "adam"
