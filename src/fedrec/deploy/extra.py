"""Packages of the extra that deployment needs."""

from __future__ import annotations

from importlib.util import find_spec

from fedrec.errors import FedrecError


def require(package: str) -> None:
    """Refuse to go on where a package is missing, and say how to install it."""
    try:
        installed = find_spec(package) is not None
    except ImportError:
        installed = False
    if not installed:
        raise FedrecError(f"deployment needs the package {package}; install it with: pip install 'fedrec[flower]'")
