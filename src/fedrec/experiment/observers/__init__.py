"""Observers look at a simulation from outside: for figures that no server has, and a method's own stopping rule.

Methods know nothing of observers. One that belongs to a method is found by the method's class.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fedrec.experiment.observers.guidance import GuidanceObserver
from fedrec.experiment.observers.labels import LabelObserver
from fedrec.experiment.observers.observer import Observer
from fedrec.experiment.observers.settling import SettlingObserver
from fedrec.federation.contract import Method
from fedrec.methods.cluster.cgfedrec import CGFedRec
from fedrec.methods.personal.feddae import FedDAE
from fedrec.methods.personal.fedrkg import FedRKG

OBSERVERS: dict[type[Method], Callable[[Any], Observer]] = {
    FedRKG: GuidanceObserver,
    CGFedRec: LabelObserver,
    FedDAE: SettlingObserver,
}


def observer_of(method: Method) -> Observer:
    """The observer of the method's class, or of its nearest base class."""
    made = next((OBSERVERS[kind] for kind in type(method).__mro__ if kind in OBSERVERS), None)
    return Observer() if made is None else made(method)


__all__ = ["Observer", "observer_of"]
