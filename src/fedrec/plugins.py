"""Names that are looked up when they are asked for: additions of other packages, our own, and those of old."""

from __future__ import annotations

import importlib
import sys
import warnings
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, TypeVar

from fedrec.errors import FedrecError, FedrecWarning

T = TypeVar("T")


def load_plugins(
    group: str, kind: str, named: Callable[[Any], tuple[str, T]], taken: Collection[str]
) -> tuple[dict[str, T], dict[str, str]]:
    """All of a group under their own names, which must not be `taken`; and those that cannot be used, with the reason.

    `kind`: what they are, for messages. `named`: the name of what was loaded, and the thing itself; an error where it
    is none of this kind.
    """
    # Imported here, because looking for entry points reads the metadata of every installed package.
    from importlib.metadata import entry_points

    usable: dict[str, T] = {}
    broken: dict[str, str] = {}
    for point in entry_points(group=group):
        try:
            name, loaded = named(point.load())
            if name in taken or name in usable:
                raise FedrecError(f"the name '{name}' belongs to another {kind}; rename it")
        # Whatever its module does on import, even an exit, must not take the program down: others can still be used.
        except (Exception, SystemExit) as error:
            package = f" of the package {point.dist.name}" if point.dist is not None else ""
            broken[point.name] = f"the {kind} '{point.name}'{package} cannot be used: {in_words(error)}"
        else:
            usable[name] = loaded
    return usable, broken


def in_words(error: BaseException) -> str:
    """One line; what fedrec itself says of it needs no name of an exception."""
    text = " ".join(str(error).split())
    return text if isinstance(error, FedrecError) else f"{type(error).__name__}: {text}"


def lazily(
    package: str, modules: Mapping[str, Sequence[str]], old: Mapping[str, str] | None = None
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Return `__getattr__` and `__dir__` of a package (PEP 562), given the names that each module lends it.

    A module is imported when one of its names is first used: torch takes a second, a listing needs none of it.
    `old`: names that have changed, as in `keep_old_names`.
    """
    homes = {name: module for module, names in modules.items() for name in names}
    get_old = keep_old_names(package, old or {})

    def get(name: str) -> Any:
        if name not in homes:
            return get_old(name)
        home = importlib.import_module(homes[name])
        value = home if home.__name__ == f"{package}.{name}" else getattr(home, name)
        # Stored in the package, so that the second use of a name does not come through here.
        setattr(sys.modules[package], name, value)
        return value

    def names() -> list[str]:
        return sorted(sys.modules[package].__all__)

    return get, names


def keep_old_names(module: str, new_names: Mapping[str, str]) -> Callable[[str], Any]:
    """Return the `__getattr__` of a module (PEP 562) that answers to its old names too, each with a warning."""

    def get(name: str) -> Any:
        # not in the module's own dictionary, or a second use would be silent
        if (new := new_names.get(name)) is None:
            raise AttributeError(f"module '{module}' has no attribute '{name}'")
        _warn_of_old_name(f"{module}.{name}", new)
        return getattr(sys.modules[module], new)

    return get


def answer_to_old_hooks(cls: type, new_names: Mapping[str, str]) -> None:
    """Take the functions that a subclass defines under their old names for those that are called now, with a warning.

    For `__init_subclass__` of a class whose functions are there to be overridden.
    """
    for old, new in new_names.items():
        # A class that defines both names has been ported already and keeps the old one for older versions.
        if old in vars(cls) and new not in vars(cls):
            setattr(cls, new, vars(cls)[old])
            # past this function and `__init_subclass__`, to the line that defines the class
            _warn_of_old_name(f"{cls.__name__}.{old}", new, depth=4)


class OldName:
    """The old name of a method or property, as in `old = OldName("new")`: it works for one version, with a warning."""

    def __init__(self, new: str) -> None:
        self.new = new

    def __set_name__(self, owner: type, name: str) -> None:
        self.old = name

    def __get__(self, instance: object, owner: type) -> Any:
        _warn_of_old_name(f"{owner.__name__}.{self.old}", self.new)
        return getattr(owner if instance is None else instance, self.new)


def _warn_of_old_name(old: str, new: str, depth: int = 3) -> None:
    # 3: past this function and the lookup, to the line that used the old name
    warnings.warn(
        f"{old} is now called {new}; the old name goes with the next version", FedrecWarning, stacklevel=depth
    )
