"""What is imported only when it is asked for: additions of other packages, and names of our own packages."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, TypeVar

from fedrec.errors import FedrecError

T = TypeVar("T")


def found(
    group: str, kind: str, named: Callable[[Any], tuple[str, T]], taken: Collection[str]
) -> tuple[dict[str, T], dict[str, str]]:
    """All of a group under their own names, which must not be `taken`; and those that cannot be used, with the reason.

    `kind`: what they are, for messages. `named`: the name of what was loaded, and the thing itself; an error where it
    is none of this kind.
    """
    from importlib.metadata import entry_points

    usable: dict[str, T] = {}
    broken: dict[str, str] = {}
    for point in entry_points(group=group):
        try:
            name, loaded = named(point.load())
            if name in taken or name in usable:
                raise FedrecError(f"the name '{name}' belongs to another {kind}; rename it")
        except (Exception, SystemExit) as error:  # whatever its module does when it is imported
            package = f" of the package {point.dist.name}" if point.dist is not None else ""
            broken[point.name] = f"the {kind} '{point.name}'{package} cannot be used: {in_words(error)}"
        else:
            usable[name] = loaded
    return usable, broken


def in_words(error: BaseException) -> str:
    """One line; what fedrec itself says of it needs no name of an exception."""
    text = " ".join(str(error).split())
    return text if isinstance(error, FedrecError) else f"{type(error).__name__}: {text}"


def lazily(package: str, modules: Mapping[str, Sequence[str]]) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Return `__getattr__` and `__dir__` of a package (PEP 562), given the names that each module lends it.

    A module is imported when one of its names is first used: torch takes a second, a listing needs none of it.
    """
    homes = {name: module for module, names in modules.items() for name in names}

    def get(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module '{package}' has no attribute '{name}'")
        home = importlib.import_module(homes[name])
        value = home if home.__name__ == f"{package}.{name}" else getattr(home, name)
        setattr(sys.modules[package], name, value)
        return value

    def names() -> list[str]:
        return sorted(sys.modules[package].__all__)

    return get, names
