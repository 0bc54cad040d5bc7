"""Methods with two kinds of local training under one name: of devices, and of silos with backbones of their own."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection

from fedrec.federation.contract import Method
from fedrec.methods.average.fedavg import FedAvg
from fedrec.methods.reference.local import Local
from fedrec.methods.silo.silo import SiloFedAvg, SiloLocal

KINDS: dict[type[Method], type[Method]] = {Local: SiloLocal, FedAvg: SiloFedAvg}


def kinds_of(cls: type[Method]) -> tuple[type[Method], ...]:
    """All kinds of a method, the usual one first."""
    return (cls, KINDS[cls]) if cls in KINDS else (cls,)


def backbones_of(cls: type[Method]) -> list[str]:
    """The backbones of all kinds."""
    return list(dict.fromkeys(name for kind in kinds_of(cls) for name in kind.info.backbones))


def choose_kind(cls: type[Method], backbone: str | None, preset: str | None, params: Collection[str]) -> type[Method]:
    """The first kind that knows this backbone, this preset and all these parameters; else the usual one."""
    for kind in kinds_of(cls):
        known = {field.name for field in dataclasses.fields(kind)}
        fits = (backbone is None or backbone in kind.info.backbones) and (preset is None or preset in kind.info.presets)
        if fits and known.issuperset(params):
            return kind
    return cls
