"""All methods by name. A method of another package registers under the entry point group `fedrec.methods`.

A method is imported when it is asked for: most of them need torch, which takes longer than listing them all.
"""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

from fedrec.errors import FedrecError, FedrecWarning, unknown
from fedrec.methods import index, plugins

# For the checker alone: the contract imports torch, and this module is read to list names.
if TYPE_CHECKING:
    from fedrec.federation.contract import Method

__all__ = ["built_in", "listing", "listings", "method_class", "methods", "register"]

REGISTERED: tuple[str, ...] = (
    "reference.popularity:Popularity",
    "reference.local:Local",
    "average.fedmf:FedMF",
    "average.fedavg:FedAvg",
    "average.fedopt:FedOpt",
    "average.fedfast:FedFast",
    "average.fedatt:FedAtt",
    "mixture.fedca:FedCA",
    "silo.fedcia:FedCIA",
    "personal.pfedrec:PFedRec",
    "cluster.cgfedrec:CGFedRec",
    "personal.fedrkg:FedRKG",
    "mixture.gpfedrec:GPFedRec",
    "cluster.cofedrec:CoFedRec",
    "personal.fedrap:FedRAP",
    "personal.feddae:FedDAE",
    "mixture.pfedgraph:PFedGraph",
    "average.perfedrec:PerFedRec",
    "cold.ifedrec:IFedRec",
    "cold.ifedrec_lan:IFedRecLAN",
    "cold.fedmvmf:FedMVMF",
    "cold.cs_fedncf:CsFedNCF",
    "cold.cs_pfedrec:CsPFedRec",
    "cold.fedvbpr:FedVBPR",
    "cold.feddcn:FedDCN",
    "closed_form.fedgram:FedGram",
    "closed_form.fedblend:FedBlend",
    "reference.mf:CentralMF",
    "cold.cs_mf:CsMF",
    "cold.cs_ncf:CsNCF",
    "cold.heater:Heater",
    "cold.gar:GAR",
    "reference.lightgcn:CentralLightGCN",
    "reference.gfcf:CentralGFCF",
    "reference.neumf:CentralNeuMF",
    "reference.sasrec:CentralSASRec",
    "reference.ease:Ease",
    "reference.ials:IALS",
    "reference.blend:Blend",
)
"""Module and class of every method of this package, in the order in which they are listed."""

NOT_HERE = {
    "fcf": "method 'FCF' (Ammad-ud-din et al. 2019: clients solve their vectors by least squares and send gradients of "
    "the items) is not in fedrec; the mean of item tables, which FedCA's paper calls FCF, is 'fedmf'",
}
"""What is said of names that somebody may expect to mean a method that is here."""

_MODULES = {path.partition(":")[2]: path for path in REGISTERED}


def _load(path: str) -> type[Method]:
    module, _, name = path.partition(":")
    found: type[Method] = getattr(importlib.import_module(f"fedrec.methods.{module}"), name)
    return found


def built_in() -> tuple[type[Method], ...]:
    """All methods of this package."""
    return tuple(map(_load, REGISTERED))


def __getattr__(name: str) -> Any:
    """Every method's class, and `BUILT_IN`, all of them."""
    if name == "BUILT_IN":
        return built_in()
    if name in _MODULES:
        return _load(_MODULES[name])
    raise AttributeError(f"module 'fedrec.methods' has no attribute '{name}'")


def __dir__() -> list[str]:
    return sorted([*globals(), *_MODULES, "BUILT_IN"])


@dataclass(frozen=True)
class Registry(Mapping[str, "type[Method]"]):
    """Methods by their own names; one of this package is imported when it is taken out."""

    own: Mapping[str, index.Listing]
    others: Mapping[str, type[Method]]

    def __getitem__(self, name: str) -> type[Method]:
        return _load(self.own[name].names[name]) if name in self.own else self.others[name]

    def __iter__(self) -> Iterator[str]:
        return iter([*self.own, *self.others])

    def __len__(self) -> int:
        return len(self.own) + len(self.others)

    def spoken(self) -> Iterator[tuple[str, str | type[Method]]]:
        """Every name and alias, with the method or with where it stands."""
        for listing in self.own.values():
            yield from listing.names.items()
        for method in self.others.values():
            yield from ((name, method) for name in (method.info.name, *method.info.aliases))


@cache
def _register() -> tuple[Registry, dict[str, str]]:
    """All methods that can be used, by name; those of other packages that cannot, with the reason."""
    known = index.read()
    # One that was registered since the index was made is looked at instead.
    own = [known.get(path) or index.listing_of(_load(path)) for path in REGISTERED]
    by_name = {listing.name: listing for listing in own}
    others, broken = plugins.find_methods(by_name)
    return Registry(by_name, others), broken


_REGISTERED_HERE: dict[str, type[Method]] = {}


def register(method: type[Method]) -> type[Method]:
    """Know a method by its name from now on; defined again, as in a notebook, it replaces the former one."""
    known, _ = _register()
    name = method.info.name
    # In lower case, because names are looked up in any case: two that differ in it alone could not be told apart.
    taken = {spoken.lower() for spoken, found in known.spoken() if found is not method}
    if name.lower() in taken:
        raise FedrecError(
            f"{method.__name__}: the name '{name}' belongs to another method; give info = "
            "MethodInfo(name, ...) with one that no other has"
        )
    _REGISTERED_HERE[name] = method
    return method


def is_installed(name: str) -> bool:
    """Whether the method with this name or alias needs no file of one's own."""
    return name.lower() in {spoken.lower() for spoken, _ in _register()[0].spoken()}


@cache
def _warn() -> None:
    for reason in _register()[1].values():
        warnings.warn(reason, FedrecWarning, stacklevel=3)


def _all() -> Registry:
    known, _ = _register()
    return Registry(known.own, {**known.others, **_REGISTERED_HERE})


def methods() -> Mapping[str, type[Method]]:
    """Every known method under its own name."""
    _warn()
    return _all()


def listings() -> list[index.Listing]:
    """What a list of all methods says about each, without importing those of this package."""
    _warn()
    known = _all()
    return [*known.own.values(), *map(index.listing_of, known.others.values())]


def listing(name: str) -> index.Listing:
    """What the list says about the method with this name or alias, without importing one of this package."""
    known, _ = _register()
    for found in known.own.values():
        if name.lower() in map(str.lower, found.names):
            _warn()
            return found
    return index.listing_of(method_class(name)[0])


def method_class(name: str | type[Method]) -> tuple[type[Method], Mapping[str, object]]:
    """The method with this name or alias (in any case), and the parameters that the alias implies."""
    # A class needs no name: methods in a notebook work before they are registered.
    if isinstance(name, type):
        return name, {}
    known, broken = _all(), _register()[1]
    for spoken, found in known.spoken():
        if name.lower() == spoken.lower():
            _warn()
            method = _load(found) if isinstance(found, str) else found
            return method, method.info.aliases.get(spoken, {})
    for spoken, reason in broken.items():
        if name.lower() == spoken.lower():
            raise FedrecError(reason)
    _warn()
    # Last, so that a method of another package may have such a name.
    if name.lower() in NOT_HERE:
        raise FedrecError(NOT_HERE[name.lower()])
    raise unknown("method", name, known, "one of your own is known after `fedrec --use FILE.py`")
