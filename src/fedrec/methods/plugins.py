"""Methods of other packages, by the entry point group `fedrec.methods`. One that cannot be used spoils no other."""

from __future__ import annotations

from collections.abc import Collection
from importlib.metadata import EntryPoint, entry_points
from typing import TYPE_CHECKING

from fedrec.errors import FedrecError

if TYPE_CHECKING:
    from fedrec.federation.contract import Method


def found(taken: Collection[str]) -> tuple[dict[str, type[Method]], dict[str, str]]:
    """The methods under their own names, which must not be `taken`; and those that cannot be used, with the reason."""
    methods: dict[str, type[Method]] = {}
    broken: dict[str, str] = {}
    for point in entry_points(group="fedrec.methods"):
        try:
            method = _loaded(point, {*taken, *methods})
        except (Exception, SystemExit) as error:  # whatever its module does when it is imported
            package = f" of the package {point.dist.name}" if point.dist is not None else ""
            broken[point.name] = f"the method '{point.name}'{package} cannot be used: {_words(error)}"
        else:
            methods[method.info.name] = method
    return methods, broken


def _loaded(point: EntryPoint, taken: Collection[str]) -> type[Method]:
    from fedrec.federation.contract import Method

    method = point.load()
    if not (isinstance(method, type) and issubclass(method, Method)):
        raise FedrecError("it is not a method: a class derived from fedrec's Method is needed")
    if not (isinstance(method.info.name, str) and method.info.name):
        raise FedrecError("it has no name; set `info = MethodInfo(name, ...)` in its class")
    if method.info.name in taken:
        raise FedrecError(f"the name '{method.info.name}' belongs to another method; rename it")
    return method


def _words(error: BaseException) -> str:
    """One line; what fedrec itself says of it needs no name of an exception."""
    text = " ".join(str(error).split())
    return text if isinstance(error, FedrecError) else f"{type(error).__name__}: {text}"
