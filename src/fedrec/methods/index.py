"""What a list of methods says about each, kept in index.json: reading it is quick, importing all methods is not.

The file is made from what methods declare, by `make index`; a test fails when it is out of date.
"""

from __future__ import annotations

import dataclasses
import inspect
import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedrec.methods.meanings import Parameter, parameters_of

if TYPE_CHECKING:
    from fedrec.federation.contract import Disclosure, Method

FILE = Path(__file__).with_name("index.json")


@dataclasses.dataclass(frozen=True)
class NamedSettings:
    """A preset."""

    name: str
    meaning: str
    settings: Mapping[str, Any]


@dataclasses.dataclass(frozen=True)
class Kind:
    """The parameters and presets of one kind of local training."""

    backbones: list[str]
    parameters: list[Parameter]
    presets: list[NamedSettings]


@dataclasses.dataclass(frozen=True)
class Listing:
    """One method, with all kinds of local training that it has."""

    name: str
    summary: str
    centralised: bool
    attributes: str
    """Who sees item attributes: none, server or clients."""
    blind: str
    """Whether the server can do with secure sums: yes, no, or needed where it must not see more."""
    backbones: list[str]
    names: Mapping[str, str]
    """Its own name and its aliases, each with the module and class of the method."""
    paper: str
    about: str
    """What its module says of it."""
    server: str
    """What its server sees; empty of a centralised one."""
    kinds: list[Kind]
    """Usually one; of devices and of silos where a method trains both."""

    @property
    def aliases(self) -> list[str]:
        return [name for name in self.names if name != self.name]


def listing_of(method: type[Method]) -> Listing:
    """The listing of a method, from what it declares."""
    from fedrec.federation.exposure import describe_server_view
    from fedrec.methods.kinds import backbones_of, kinds_of

    info, names = method.info, dict[str, str]()
    for kind in kinds_of(method):
        for name in (kind.info.name, *kind.info.aliases):
            names.setdefault(name, path_of(kind))
    plain = method()
    return Listing(
        name=info.name,
        summary=info.summary,
        centralised=info.centralised,
        attributes=plain.disclosure.attributes,
        blind=blind(plain.disclosure),
        backbones=backbones_of(method),
        names=names,
        paper=info.paper,
        about=inspect.cleandoc(getattr(inspect.getmodule(method), "__doc__", None) or ""),
        server="" if info.centralised else describe_server_view(plain),
        kinds=list(map(describe_kind, kinds_of(method))),
    )


def describe_kind(method: type[Method]) -> Kind:
    """Describe one class of a method."""
    presets = [
        NamedSettings(name, getattr(settings, "meaning", ""), dict(settings))
        for name, settings in method.info.presets.items()
    ]
    return Kind(list(method.info.backbones), parameters_of(method), presets)


def blind(disclosure: Disclosure) -> str:
    """Whether the server can be blind: see sums over clients alone."""
    return "needed" if disclosure.secure_aggregation else "no" if disclosure.gathers else "yes"


def path_of(method: type[Method]) -> str:
    return f"{method.__module__.removeprefix('fedrec.methods.')}:{method.__name__}"


def read() -> dict[str, Listing]:
    """By the path of the class; empty where there is no index yet."""
    if not FILE.exists():
        return {}
    found = [_read(values) for values in json.loads(FILE.read_text(encoding="utf-8"))]
    return {listing.names[listing.name]: listing for listing in found}


def _read(values: dict[str, Any]) -> Listing:
    kinds = [
        Kind(
            kind["backbones"],
            [Parameter(**one) for one in kind["parameters"]],
            [NamedSettings(**one) for one in kind["presets"]],
        )
        for kind in values["kinds"]
    ]
    return Listing(**values | {"kinds": kinds})


def text() -> str:
    """The index of the methods as they are now."""
    from fedrec import methods

    found = [dataclasses.asdict(listing_of(method)) for method in methods.built_in()]
    return json.dumps(found, indent=1, ensure_ascii=False) + "\n"


def write() -> None:
    FILE.write_text(text(), encoding="utf-8")
