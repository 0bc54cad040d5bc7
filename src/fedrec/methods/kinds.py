"""Several classes under one name: of devices and of silos, and variants that other packages add.

A variant derives from a method of the library and adds what only a reproduction needs: the steps of a released
program, the switches of an ablation. It is found by the entry point group `fedrec.variants` under the name of the
method, a dot and a name of its own (`fedca.released`), and is loaded when a preset, parameter or backbone is asked for
that the library's own classes do not know.
"""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Iterator, Mapping
from functools import cache
from importlib.metadata import entry_points
from typing import Any

from fedrec.errors import FedrecError
from fedrec.federation.contract import Method
from fedrec.methods.average.fedavg import FedAvg
from fedrec.methods.reference.local import Local
from fedrec.methods.silo.silo import SiloFedAvg, SiloLocal
from fedrec.plugins import in_words
from fedrec.schema import kind_of

VARIANTS = "fedrec.variants"
STUDIED = ("cs-pfedrec", "fedca", "feddae", "ifedrec", "ifedrec-lan")  # methods of which fedrec-studies has variants
KINDS: dict[type[Method], type[Method]] = {Local: SiloLocal, FedAvg: SiloFedAvg}


def kinds_of(cls: type[Method]) -> tuple[type[Method], ...]:
    """Return the kinds of a method that this package has, the usual one first."""
    return (cls, KINDS[cls]) if cls in KINDS else (cls,)


def variants_of(cls: type[Method]) -> tuple[type[Method], ...]:
    """Return the variants that other packages add to a method of this one."""
    return _variants(cls.info.name) if cls.__module__.startswith("fedrec.methods.") else ()


@cache
def _variants(method: str) -> tuple[type[Method], ...]:
    points = [point for point in entry_points(group=VARIANTS) if point.name.split(".")[0] == method]
    return tuple(_load(point) for point in sorted(points, key=lambda point: point.name))


def hint_at_studies(cls: type[Method]) -> str:
    """Say where variants come from, of a method that has some, if none is installed; else nothing."""
    missing = cls.info.name in STUDIED and not variants_of(cls)
    return f"published variants of {cls.info.name} need pip install 'fedrec[studies]'" if missing else ""


def _load(point: Any) -> type[Method]:
    try:
        found: type[Method] = point.load()
    except (Exception, SystemExit) as error:  # whatever its module does when it is imported
        raise FedrecError(f"the variant '{point.name}' cannot be used: {in_words(error)}") from error
    return found


def backbones_of(cls: type[Method]) -> list[str]:
    """Return the backbones of all kinds."""
    return list(dict.fromkeys(name for kind in kinds_of(cls) for name in kind.info.backbones))


def choose_kind(cls: type[Method], backbone: str | None, preset: str | None, params: Mapping[str, Any]) -> type[Method]:
    """Return the first kind or variant that knows this backbone, this preset and all these settings.

    Where none does, it is the one that knows at least the names of the parameters: its message is of more help.
    """
    by_name = [kind for kind in kinds_of(cls) if _fits(kind, backbone, preset) and _hints(kind).keys() >= params.keys()]
    for kind in _candidates(cls):
        if _fits(kind, backbone, preset) and all(_accepts(kind, name, value) for name, value in params.items()):
            return kind
    return by_name[0] if by_name else cls


def _fits(kind: type[Method], backbone: str | None, preset: str | None) -> bool:
    return (backbone is None or backbone in kind.info.backbones) and (preset is None or preset in kind.info.presets)


def _accepts(kind: type[Method], name: str, value: Any) -> bool:
    """Whether it has the parameter, and the parameter takes the value."""
    if name not in _hints(kind):
        return False
    try:
        kind_of(_hints(kind)[name]).parse(value)
    except ValueError:
        return False
    return True


def _hints(kind: type[Method]) -> Mapping[str, Any]:
    hints = typing.get_type_hints(kind)
    return {field.name: hints[field.name] for field in dataclasses.fields(kind)}


def _candidates(cls: type[Method]) -> Iterator[type[Method]]:
    """Kinds before variants, which are imported only if no kind fits."""
    yield from kinds_of(cls)
    yield from variants_of(cls)
