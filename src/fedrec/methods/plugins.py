"""Methods of other packages, by the entry point group `fedrec.methods`."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING, Any

from fedrec import plugins
from fedrec.errors import FedrecError

if TYPE_CHECKING:
    from fedrec.federation.contract import Method


def find_methods(taken: Collection[str]) -> tuple[dict[str, type[Method]], dict[str, str]]:
    """The methods under their own names, which must not be `taken`; and those that cannot be used, with the reason."""
    return plugins.load_plugins("fedrec.methods", "method", _check_entry, taken)


def _check_entry(loaded: Any) -> tuple[str, type[Method]]:
    from fedrec.federation.contract import Method

    if not (isinstance(loaded, type) and issubclass(loaded, Method)):
        raise FedrecError("it is not a method: a class derived from fedrec's Method is needed")
    if not (isinstance(loaded.info.name, str) and loaded.info.name):
        raise FedrecError("it has no name; set `info = MethodInfo(name, ...)` in its class")
    return loaded.info.name, loaded
