"""Centralised matrix factorisation: one model on everybody's data, the reference that federation is measured against.

One round is one epoch over all users' shuffled samples, negatives redrawn.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal

from fedrec.methods.local import Local


@dataclass(frozen=True)
class CentralMF(Local):
    name: ClassVar[str] = "mf"
    aliases: ClassVar[Mapping[str, Mapping[str, object]]] = {}
    summary: ClassVar[str] = "matrix factorisation on all data in one place"
    paper: ClassVar[str] = "Koren et al., Computer 2009"
    presets: ClassVar[Mapping[str, Mapping[str, object]]] = {}
    centralised: ClassVar[bool] = True
    backbones: ClassVar[tuple[str, ...]] = ("mf",)
    fold_in_rounds: ClassVar[int | None] = None

    rounds: int = 30
    lr: float = 0.001
    optimiser: Literal["sgd", "adam"] = "adam"
